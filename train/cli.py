"""``laneformer train`` and ``laneformer prepare``: Hydra in front of the trainer and the data pipeline.

laneformer train model=small data=files 'data.paths=[src/**/*.py]' run_dir=runs/mine
laneformer train --cfg job              # show the configuration
laneformer train --multirun optimizer.learning_rate=1e-3,3e-3 'run_dir=runs/${optimizer.learning_rate}'
laneformer prepare data=python data.max_bytes=50000000
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import hydra
from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf

from laneformer.errors import ConfigError, LaneformerError
from train.config import TrainConfig
from train.data.config import DataConfig
from train.data.prepare import prepare

EXIT_USER_ERROR = 2
Typed = TypeVar("Typed")


@dataclass
class PrepareConfig:
    """The configuration of ``laneformer prepare``: the ``data`` section alone."""

    data: DataConfig = field(default_factory=DataConfig)


def run_train(overrides: Sequence[str]) -> int:
    """Train with Hydra overrides as given on the command line; returns the exit code."""
    return _with_hydra("train", overrides, _train)


def run_prepare(overrides: Sequence[str]) -> int:
    """Prepare data with Hydra overrides; returns the exit code."""
    return _with_hydra("prepare", overrides, _prepare)


def _train(values: DictConfig) -> None:
    from train.trainer import train  # torch takes seconds: not needed for --help or --cfg

    result = train(_typed(values, TrainConfig))
    print(result.checkpoint)


def _prepare(values: DictConfig) -> None:
    dataset = prepare(_typed(values, PrepareConfig).data)
    for name in ("train", "validation"):
        split = dataset.split(name)
        print(f"{name}: {split.num_documents:,} documents, {split.num_tokens:,} tokens")
    print(dataset.folder)


def _typed(values: DictConfig, kind: type[Typed]) -> Typed:
    typed = OmegaConf.to_object(values)
    if not isinstance(typed, kind):
        raise ConfigError(f"expected a {kind.__name__}, found {type(typed).__name__}")
    return typed


def _with_hydra(name: str, overrides: Sequence[str], task: Callable[[DictConfig], None]) -> int:
    store = ConfigStore.instance()
    store.store(name="train_schema", node=TrainConfig)
    store.store(name="prepare_schema", node=PrepareConfig)

    def job(values: DictConfig) -> None:
        try:
            task(values)
        except LaneformerError as error:
            print(f"error: {' '.join(str(error).splitlines())}", file=sys.stderr)
            raise SystemExit(EXIT_USER_ERROR) from None

    before = sys.argv
    sys.argv = [f"laneformer {name}", *overrides]
    try:
        hydra.main(version_base="1.3", config_path="pkg://configs", config_name=name)(job)()
    finally:
        sys.argv = before
    return 0
