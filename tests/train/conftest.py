"""A tiny prepared data set and a run on it that takes seconds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from train.config import (
    CheckpointConfig,
    HeldOutConfig,
    LogConfig,
    OptimizerConfig,
    ScheduleConfig,
    TrainConfig,
)
from train.data.config import DataConfig
from train.data.prepare import prepare

MODEL: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "num_lanes": 4,
    "broadcast_delay": 2,
    "sliding_window": 8,
    "swa_layers": [0, 1],
}
MakeRun = Callable[..., TrainConfig]


def write_texts(folder: Path, count: int = 60) -> str:
    """Made-up source files; returns the glob that finds them."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        lines = [f"def f{number}_{i}(a, b):\n    return a * {i * number} + b\n" for i in range(12)]
        (folder / f"{number:03d}.py").write_text("\n".join(lines))
    return str(folder / "*.py")


@pytest.fixture(scope="session")
def data_config(tmp_path_factory: pytest.TempPathFactory) -> DataConfig:
    """Settings of a prepared data set of some 20,000 tokens."""
    folder = tmp_path_factory.mktemp("data")
    config = DataConfig(
        folder=str(folder / "shards"),
        source="files",
        paths=[write_texts(folder / "texts")],
        vocab_size=300,
        held_out_fraction=0.2,
    )
    prepare(config, progress=False)
    return config


@pytest.fixture
def make_run(data_config: DataConfig, tmp_path: Path) -> MakeRun:
    """Configuration of a run in a folder of the test's own; keyword arguments change it."""

    def make(name: str = "run", **changes: Any) -> TrainConfig:
        values: dict[str, Any] = {
            "name": name,
            "run_dir": str(tmp_path / name),
            "steps": 60,
            "sequence_length": 32,
            "batch_size": 4,
            "device": "cpu",
            "model": MODEL,
            "data": data_config,
            "optimizer": OptimizerConfig(learning_rate=1e-2),
            "schedule": ScheduleConfig(warmup_steps=5),
            "held_out": HeldOutConfig(every=0, max_tokens=2000),
            "checkpoint": CheckpointConfig(every=0),
            "log": LogConfig(every=1),
        }
        return TrainConfig(**(values | changes))

    return make
