"""Checkpoints of a run: whole or not there at all.

    run_dir/
      checkpoints/step_00000500/     a checkpoint folder as anyone can load it, plus
          trainer_state.pt           optimizer and random states
          checkpoint.json            step, sizes of all files, what it was trained on
      last -> checkpoints/step_00000500

A checkpoint is written into a hidden folder, flushed to disk and renamed; a process killed at any
moment leaves either the folder or nothing.  A folder whose files are missing, of another size than
recorded or unreadable is passed over with a warning, and never counts as one of those to keep.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from laneformer.errors import TrainingError
from laneformer.model import LaneformerForCausalLM
from laneformer.tokenizer import Tokenizer

FORMAT = 1
STATE_FILE = "trainer_state.pt"
RECORD_FILE = "checkpoint.json"


@dataclass(frozen=True)
class Saved:
    """A whole checkpoint: its folder, its step, what it was trained on, optimizer and random states."""

    folder: Path
    step: int
    trained_on: dict[str, Any]
    state: dict[str, Any]


def save(
    run_dir: Path,
    step: int,
    model: LaneformerForCausalLM,
    tokenizer: Tokenizer,
    state: dict[str, Any],
    trained_on: dict[str, Any],
    keep_last: int,
) -> Path:
    """Write the checkpoint of ``step``, then remove all whole ones but the newest ``keep_last``.

    Returns the folder.  :class:`TrainingError` where it cannot be written; older checkpoints stay then.
    """
    folder = run_dir / "checkpoints" / f"step_{step:08d}"
    if not _is_whole(folder):
        partial = folder.with_name(f".partial_{folder.name}")
        try:
            _write(partial, step, model, tokenizer, state, trained_on)
            shutil.rmtree(folder, ignore_errors=True)  # only ever a damaged one
            os.replace(partial, folder)
            flush_to_disk(folder.parent)
        except (OSError, RuntimeError, SafetensorError) as error:  # torch reports a full disk as RuntimeError
            shutil.rmtree(partial, ignore_errors=True)
            raise TrainingError(f"{folder}: the checkpoint cannot be written ({error})") from None
    _point_last(run_dir, folder)
    for old in list(_whole_folders(run_dir))[keep_last:]:
        if old != folder:
            shutil.rmtree(old, ignore_errors=True)
    return folder


def newest(run_dir: Path) -> Saved | None:
    """The newest whole checkpoint, None where there is none; clears away what a killed process began."""
    for partial in (run_dir / "checkpoints").glob(".partial_*"):
        shutil.rmtree(partial, ignore_errors=True)
    for folder in _step_folders(run_dir):
        try:
            if _is_whole(folder):
                return _read(folder)
        except (OSError, RuntimeError, ValueError, KeyError, EOFError, pickle.UnpicklingError):
            pass
        print(f"warning: {folder} is damaged; trying the one before", file=sys.stderr)
    return None


def flush_to_disk(path: Path) -> None:
    """fsync a file or folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write(
    partial: Path,
    step: int,
    model: LaneformerForCausalLM,
    tokenizer: Tokenizer,
    state: dict[str, Any],
    trained_on: dict[str, Any],
) -> None:
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


def _read(folder: Path) -> Saved:
    record = json.loads((folder / RECORD_FILE).read_text(encoding="utf-8"))
    if record["format"] != FORMAT:
        raise TrainingError(f"{folder}: written in format {record['format']!r}, this software reads {FORMAT}")
    state = torch.load(folder / STATE_FILE, map_location="cpu", weights_only=True)
    return Saved(folder, int(record["step"]), dict(record["trained_on"]), state)


def _step_folders(run_dir: Path) -> list[Path]:
    """Folders named as this module names them, newest first; copies under other names are the user's."""
    found = [
        path for path in (run_dir / "checkpoints").glob("step_*") if re.fullmatch(r"step_\d{8,}", path.name)
    ]
    return sorted(found, key=lambda path: int(path.name.removeprefix("step_")), reverse=True)


def _whole_folders(run_dir: Path) -> Iterator[Path]:
    return (folder for folder in _step_folders(run_dir) if _is_whole(folder))


def _is_whole(folder: Path) -> bool:
    try:
        record = json.loads((folder / RECORD_FILE).read_text(encoding="utf-8"))
        files = record["files"]
        return (
            {STATE_FILE, "config.json"} <= files.keys()
            and all((folder / name).stat().st_size == size for name, size in files.items())
            and {"format", "step", "trained_on"} <= record.keys()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _point_last(run_dir: Path, folder: Path) -> None:
    temporary = run_dir / ".last.partial"
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(folder.relative_to(run_dir))
    os.replace(temporary, run_dir / "last")
