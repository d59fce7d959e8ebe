"""``scripts/random_model.py``: the benchmark's weights as an engine file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from infer.engine_file import EngineFile
from laneformer.config import LaneformerConfig
from scripts import random_model
from scripts.bench_cuda import SeededWeights


def test_the_file_holds_the_weights_of_the_benchmark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 48,
        "vocab_size": 320,
        "max_position_embeddings": 64,
        "dtype": "bfloat16",
    }
    monkeypatch.setitem(random_model.SHAPES, "smollm2-135m", shape)
    out = tmp_path / "model.laneformer"
    assert random_model.main(["smollm2-135m", str(out)]) == 0
    again = tmp_path / "again.laneformer"
    assert random_model.main(["smollm2-135m", str(again)]) == 0
    assert again.read_bytes() == out.read_bytes()
    file = EngineFile(out)
    weights = SeededWeights(file.config)
    assert file.config == LaneformerConfig(**shape)
    assert sorted(file.names) == sorted(weights.names)
    for name in weights.names:
        assert file.dtype(name) == "bfloat16"
        np.testing.assert_array_equal(file.raw(name), weights.raw(name))


def test_a_file_that_is_there_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "model.laneformer"
    out.write_text("mine")
    assert random_model.main(["smollm2-135m", str(out)]) == 2
    assert "exists already" in capsys.readouterr().err
    assert out.read_text() == "mine"
