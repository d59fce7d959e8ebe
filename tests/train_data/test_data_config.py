"""Settings: checks, fingerprints, and the files under configs/data."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest
from omegaconf import OmegaConf

import configs
from laneformer.errors import DataError
from train.data.config import SOURCE_FIELDS, DataConfig, settings_fingerprint

CONFIG_FOLDER = Path(configs.__file__).parent / "data"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("source", "web"),
        ("folder", ""),
        ("held_out_fraction", 0.0),
        ("held_out_fraction", 1.0),
        ("max_bytes", 0),
        ("max_documents", 0),
        ("min_document_bytes", 0),
        ("max_document_bytes", 1),
        ("tokenizer_sample_bytes", 0),
        ("shard_tokens", 0),
        ("shard_tokens", 1.5),
        ("vocab_size", 258),
    ],
)
def test_a_senseless_setting_is_named(name: str, value: object) -> None:
    config = DataConfig(**{name: value})  # type: ignore[arg-type]
    with pytest.raises(DataError, match=f"data.{name}"):
        config.validate()


@pytest.mark.parametrize(("source", "needed"), [("files", "data.paths"), ("huggingface", "data.dataset")])
def test_a_source_says_what_it_needs(source: str, needed: str) -> None:
    with pytest.raises(DataError, match=needed):
        DataConfig(source=source).validate()


@pytest.mark.parametrize("source", SOURCE_FIELDS)
def test_shipped_configuration_fits_the_dataclass(source: str) -> None:
    file = OmegaConf.load(CONFIG_FOLDER / f"{source}.yaml")
    needed = {"dataset": "some/name"} if source == "huggingface" else {"paths": ["a.txt"]}
    config = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(DataConfig), file, needed))
    assert isinstance(config, DataConfig)
    config.validate()
    assert config.source == source
    other_sources = {name for other, names in SOURCE_FIELDS.items() if other != source for name in names}
    expected = {field.name for field in fields(DataConfig)} - (other_sources - set(SOURCE_FIELDS[source]))
    assert set(file) == expected


def test_settings_that_change_nothing_do_not_count() -> None:
    plain = settings_fingerprint(DataConfig().settings(None))
    assert settings_fingerprint(DataConfig(folder="elsewhere", paths=["x"]).settings(None)) == plain
    assert settings_fingerprint(DataConfig(max_bytes=10).settings(None)) != plain
    assert settings_fingerprint(DataConfig().settings("abc")) != plain


def test_a_given_tokenizer_counts_by_its_content() -> None:
    here, there = DataConfig(tokenizer="here", vocab_size=300), DataConfig(tokenizer="there")
    assert here.settings("abc") == there.settings("abc") != there.settings("def")
