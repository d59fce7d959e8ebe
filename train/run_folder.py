"""The folder of a run: one process at a time, its configuration, and whether a checkpoint belongs to it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from laneformer.config import LaneformerConfig
from laneformer.errors import TrainingError
from train.config import TrainConfig
from train.data.shards import TokenDataset


@contextmanager
def open_run_folder(config: TrainConfig) -> Iterator[Path]:
    """Create and lock ``run_dir`` and write its config.yaml.

    Raises :class:`TrainingError` where another process trains there, or where ``resume`` is ``never`` and
    checkpoints are there already.
    """
    run_dir = Path(config.run_dir)
    if config.resume == "never" and any((run_dir / "checkpoints").glob("step_*")):
        raise TrainingError(f"{run_dir} holds checkpoints and resume is 'never': choose another run_dir")
    try:
        (run_dir / "checkpoints").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TrainingError(f"run_dir {run_dir} cannot be made: {error.strerror}") from None
    if (run_dir / "last").is_dir() and not (run_dir / "last").is_symlink():
        raise TrainingError(f"{run_dir / 'last'} is in the way: it will be a link to the newest checkpoint")
    with (run_dir / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise TrainingError(f"{run_dir}: another process is training there") from None
        text = yaml.safe_dump(asdict(config), sort_keys=False)
        temporary = run_dir / ".config.yaml.partial"
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, run_dir / "config.yaml")
        yield run_dir


def trained_on(config: TrainConfig, shape: LaneformerConfig, dataset: TokenDataset) -> dict[str, Any]:
    """What a checkpoint must have in common with a run that resumes it, to be continued exactly."""
    return {
        "tokenizer": dataset.tokenizer.fingerprint,
        "data": dataset.fingerprint,
        "model": {name: value for name, value in shape.to_dict().items() if name != "torch_dtype"},
        "seed": config.seed,
        "sequence_length": config.sequence_length,
        "batch_size": config.batch_size,
        "gradient_accumulation": config.gradient_accumulation,
        "attention_within_documents": config.attention_within_documents,
    }


def check_same_run(folder: Path, then: dict[str, Any], now: dict[str, Any]) -> None:
    """:class:`TrainingError` naming the first thing in which a checkpoint and this run differ."""
    if then.get("tokenizer") != now["tokenizer"]:
        raise TrainingError(
            f"{folder} was trained with another tokenizer ({_short(then, 'tokenizer')}, now "
            f"{_short(now, 'tokenizer')}): its weights mean other tokens; choose another run_dir"
        )
    if then.get("data") != now["data"]:
        raise TrainingError(
            f"{folder} was trained on other data ({_short(then, 'data')}, now {_short(now, 'data')}): "
            "it cannot be resumed exactly; choose another run_dir"
        )
    shape = then.get("model", {})
    for name, value in now["model"].items():
        if shape.get(name) != value:
            raise TrainingError(
                f"{folder} has model.{name} = {shape.get(name)!r}, the configuration says {value!r}; "
                "choose another run_dir"
            )
    for name, value in now.items():
        if name != "model" and then.get(name) != value:
            raise TrainingError(
                f"{folder} was trained with {name} = {then.get(name)!r}, the configuration says {value!r}: "
                "it cannot be resumed exactly; choose another run_dir"
            )


def _short(values: dict[str, Any], name: str) -> str:
    return str(values.get(name))[:12]
