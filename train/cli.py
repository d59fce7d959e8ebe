"""``laneformer train`` and ``laneformer prepare``: Hydra in front of the trainer and the data pipeline.

laneformer train model=small data=files 'data.paths=[src/**/*.py]' run_dir=runs/mine
laneformer train --cfg job              # show the configuration
laneformer train --multirun optimizer.learning_rate=1e-3,3e-3 'run_dir=runs/${optimizer.learning_rate}'
laneformer prepare data=python data.max_bytes=50000000
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import hydra
from hydra.core.config_store import ConfigStore
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

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

    run_dirs: set[str] = set()

    def job(values: DictConfig) -> None:
        try:
            if name == "train":
                _require_new(str(values["run_dir"]), run_dirs)
            task(values)
        except (LaneformerError, OSError) as error:
            raise SystemExit(_user_error(error)) from None  # unlike an exception, Hydra lets it pass

    before = sys.argv
    sys.argv = [f"laneformer {name}", *overrides]
    os.environ["HYDRA_FULL_ERROR"] = "1"  # exceptions as they are: what follows decides how they are shown
    try:
        hydra.main(version_base="1.3", config_path="pkg://configs", config_name=name)(job)()
    except (HydraException, OmegaConfBaseException) as error:
        return _user_error(error)
    finally:
        sys.argv = before
    return 0


def _require_new(run_dir: str, run_dirs: set[str]) -> None:
    """:class:`ConfigError` where an earlier job of this sweep has the run folder already."""
    if run_dir in run_dirs:
        raise ConfigError(
            f"two jobs of this sweep have the run_dir {run_dir}; give each its own, for example "
            "'run_dir=runs/lr${optimizer.learning_rate}'"
        )
    run_dirs.add(run_dir)


def _user_error(error: Exception) -> int:
    """One line on stderr; Hydra's messages have several, and the reason in the cause."""
    lines = str(error).splitlines()
    if isinstance(error, HydraException) and error.__cause__ is not None:
        lines += str(error.__cause__).splitlines()[:1]
    print(f"error: {' '.join(line.strip() for line in lines if line.strip())}", file=sys.stderr)
    return EXIT_USER_ERROR
