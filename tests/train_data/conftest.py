"""A small corpus of made-up code, and configurations and data sets made from it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import train.data.durable_files as durable_files
from tests.train_data.made_up_data import MakeConfig, made_up_code
from train.data.config import DataConfig
from train.data.prepare import prepare
from train.data.shards import TokenDataset


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_the_disk() -> Iterator[None]:
    """Tests outlive no power failure; what waits for the disk, and when, has a test of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(durable_files.os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with 200 texts, all different."""
    folder = tmp_path_factory.mktemp("corpus")
    for seed in range(200):
        (folder / f"{seed:03d}.py").write_text(made_up_code(seed), encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def make_config(corpus: Path) -> MakeConfig:
    """Configuration that reads the corpus into small shards; keyword arguments change it."""

    def make(folder: Path, **changes: object) -> DataConfig:
        values: dict[str, object] = {
            "folder": str(folder),
            "source": "files",
            "paths": [str(corpus / "*.py")],
            "held_out_fraction": 0.2,
            "vocab_size": 400,
            "shard_tokens": 4000,
        }
        return DataConfig(**{**values, **changes})  # type: ignore[arg-type]

    return make


@pytest.fixture(scope="session")
def dataset(make_config: MakeConfig, tmp_path_factory: pytest.TempPathFactory) -> TokenDataset:
    """The prepared corpus; not to be changed."""
    return prepare(make_config(tmp_path_factory.mktemp("dataset")), progress=False)
