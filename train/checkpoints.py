"""Checkpoints of a run: whole or not there at all.

    run_dir/
      checkpoints/step_00000500/     a checkpoint folder as anyone can load it, plus
          trainer_state.pt           optimizer and random states
          checkpoint.json            step, sizes of all files, what it was trained on
      last -> checkpoints/step_00000500

A checkpoint is written into a hidden folder, flushed to disk and renamed; a process killed at any
moment leaves either the folder or nothing.  ``newest`` passes over a folder whose files are missing or
of another size than recorded, and says so.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import torch

from laneformer.errors import TrainingError
from laneformer.model import LaneformerForCausalLM
from laneformer.tokenizer import Tokenizer

FORMAT = 1
STATE_FILE = "trainer_state.pt"
RECORD_FILE = "checkpoint.json"


def save(
    run_dir: Path,
    step: int,
    model: LaneformerForCausalLM,
    tokenizer: Tokenizer,
    state: dict[str, Any],
    trained_on: dict[str, Any],
    keep_last: int,
) -> Path:
    """Write the checkpoint of ``step``, then remove all but the newest ``keep_last``; returns its folder."""
    folder = run_dir / "checkpoints" / f"step_{step:08d}"
    if not _is_whole(folder):
        partial = folder.with_name(f".partial_{folder.name}")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        model.save_pretrained(partial)
        tokenizer.save(partial)
        torch.save(state, partial / STATE_FILE)
        sizes = {file.name: file.stat().st_size for file in sorted(partial.iterdir())}
        record = {"format": FORMAT, "step": step, "files": sizes, "trained_on": trained_on}
        (partial / RECORD_FILE).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        for file in partial.iterdir():
            flush_to_disk(file)
        flush_to_disk(partial)
        shutil.rmtree(folder, ignore_errors=True)  # only ever a damaged one
        os.replace(partial, folder)
        flush_to_disk(folder.parent)
    _point_last(run_dir, folder)
    for old in _folders(run_dir)[keep_last:]:
        shutil.rmtree(old, ignore_errors=True)
    return folder


def newest(run_dir: Path) -> Path | None:
    """The newest whole checkpoint, None where there is none; clears away what a killed process began."""
    for partial in (run_dir / "checkpoints").glob(".partial_*"):
        shutil.rmtree(partial, ignore_errors=True)
    for folder in _folders(run_dir):
        if _is_whole(folder):
            return folder
        print(f"warning: {folder} is damaged; trying the one before", file=sys.stderr)
    return None


def read_record(folder: Path) -> dict[str, Any]:
    """The checkpoint.json of a whole checkpoint."""
    record: dict[str, Any] = json.loads((folder / RECORD_FILE).read_text(encoding="utf-8"))
    if record.get("format") != FORMAT:
        raise TrainingError(
            f"{folder}: written in format {record.get('format')!r}, this software reads {FORMAT}"
        )
    return record


def read_state(folder: Path) -> dict[str, Any]:
    """Optimizer and random states, on the CPU."""
    state: dict[str, Any] = torch.load(folder / STATE_FILE, map_location="cpu", weights_only=True)
    return state


def flush_to_disk(path: Path) -> None:
    """fsync a file or folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _folders(run_dir: Path) -> list[Path]:
    """Checkpoint folders, newest first."""
    return sorted((run_dir / "checkpoints").glob("step_*"), reverse=True)


def _is_whole(folder: Path) -> bool:
    try:
        files = json.loads((folder / RECORD_FILE).read_text(encoding="utf-8"))["files"]
        return all((folder / name).stat().st_size == size for name, size in files.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _point_last(run_dir: Path, folder: Path) -> None:
    temporary = run_dir / ".last.partial"
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(folder.relative_to(run_dir))
    os.replace(temporary, run_dir / "last")
