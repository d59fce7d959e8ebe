"""Where numbers go: always ``metrics.jsonl``, one line on the terminal, Weights & Biases if asked for.

Every line of ``metrics.jsonl`` has ``step`` and ``kind`` (``train``, ``held_out``, ``skipped`` or a
suite's name); a number that is not finite is null.  A resumed run drops what it will write again, so nothing
stands twice.
"""

from __future__ import annotations

import json
import math
import os
import sys
import uuid
from pathlib import Path
from typing import Any

from tqdm import tqdm

from laneformer.errors import TrainingError
from train.config import TrainConfig


class MetricsLog:
    """Opened for one process of a run; ``close`` it at the end."""

    def __init__(self, config: TrainConfig, run_dir: Path, resumed_step: int) -> None:
        self._path = run_dir / "metrics.jsonl"
        finished = resumed_step >= config.steps  # then its last evaluations run again
        _drop_later_lines(self._path, resumed_step, ("train", "skipped") if finished else None)
        _drop_later_lines(run_dir / "samples.jsonl", resumed_step, () if finished else None)
        self._file = self._path.open("a", encoding="utf-8")
        self._wandb_run: Any = None
        if config.log.wandb != "off":
            self._wandb_run = _start_wandb(config, run_dir)
        # disable=None: a live line on a terminal, plain lines in a log
        self._line = tqdm(total=None, bar_format="{desc}", disable=None, file=sys.stderr, leave=False)

    def write(self, kind: str, step: int, values: dict[str, Any]) -> None:
        """Record ``values`` for the state after ``step`` optimizer steps."""
        finite = {name: _finite(value) for name, value in values.items()}
        self._file.write(json.dumps({"step": step, "kind": kind, **finite}, allow_nan=False) + "\n")
        self._file.flush()
        if self._wandb_run is not None:
            numbers = {f"{kind}/{name}": value for name, value in values.items()}
            self._wandb_run.log(numbers, step=step)

    def progress(self, text: str) -> None:
        """Show the progress line."""
        if self._line.disable:
            print(text, file=sys.stderr, flush=True)
        else:
            self._line.set_description_str(text)

    def say(self, text: str) -> None:
        """Print a message that stays."""
        tqdm.write(text, file=sys.stderr)

    def close(self) -> None:
        """Flush to disk and end the Weights & Biases run."""
        self._line.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        if self._wandb_run is not None:
            self._wandb_run.finish()


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _start_wandb(config: TrainConfig, run_dir: Path) -> Any:
    """Start, or go on with, the run whose id the run folder keeps."""
    try:
        import wandb  # only where asked for: importing it starts threads and reads settings
    except ImportError:
        raise TrainingError("log.wandb needs wandb: pip install 'laneformer[train]'") from None

    id_file = run_dir / "wandb_id"
    if not id_file.exists():
        id_file.write_text(uuid.uuid4().hex, encoding="utf-8")
    mode: Any = config.log.wandb
    try:
        return wandb.init(
            project=config.log.wandb_project,
            name=config.name,
            dir=str(run_dir),
            mode=mode,
            id=id_file.read_text(encoding="utf-8"),
            resume="allow",
        )
    except wandb.Error as error:
        raise TrainingError(f"Weights & Biases cannot start: {error}; log.wandb=off goes without") from None


def _drop_later_lines(path: Path, step: int, kinds_at_step: tuple[str, ...] | None) -> None:
    """Keep lines before ``step``, and of those at ``step`` the kinds given (None: all)."""
    if not path.exists():
        return
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            values = json.loads(line)
            at_step = values["step"] == step and (kinds_at_step is None or values["kind"] in kinds_at_step)
            if values["step"] < step or at_step:
                kept.append(line + "\n")
        except (ValueError, KeyError, TypeError):
            continue  # the half-written last line of a process that was killed
    temporary = path.with_suffix(".partial")
    temporary.write_text("".join(kept), encoding="utf-8")
    os.replace(temporary, path)


def progress_text(
    step: int,
    total_steps: int,
    loss: float,
    learning_rate: float,
    tokens_per_second: float,
    utilization: float | None,
) -> str:
    """The progress line without its ETA: step, loss (nats per token), learning rate, speed, MFU."""
    mfu = "n/a" if utilization is None else f"{100 * utilization:.1f}%"
    return (
        f"step {step}/{total_steps}  loss {loss:.4f}  lr {learning_rate:.2e}  "
        f"{tokens_per_second:,.0f} tokens/s  MFU {mfu}"
    )


def eta_text(seconds: float) -> str:
    """``h:mm:ss`` or ``m:ss``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
