from __future__ import annotations

from pathlib import Path

import pytest

from evals.model_hash import model_sha256
from laneformer.errors import EvaluationError

DECISIVE = ["model.safetensors", "model.safetensors.index.json", "config.json", "tokenizer.json"]
DECISIVE += ["tokenizer_config.json", "model-00001-of-00002.safetensors"]


@pytest.mark.parametrize("name", DECISIVE)
def test_every_file_that_decides_the_text_counts(tmp_path: Path, name: str) -> None:
    for file in DECISIVE:
        (tmp_path / file).write_text(file)
    before = model_sha256(tmp_path)
    (tmp_path / "README.md").write_text("decides nothing")
    assert model_sha256(tmp_path) == before
    (tmp_path / name).write_text("other")
    assert model_sha256(tmp_path) != before


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(EvaluationError, match="cannot be read"):
        model_sha256(tmp_path / "absent")
