"""The output folder of a run.

    samples.jsonl   one line per finished sample, in the order in which they finished
    summary.json    settings from the start; results once all samples have finished

Both are written so that an interruption at any point leaves a folder that the same run can continue.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from evals.sandbox.runner import STATUSES, Status
from laneformer.errors import EvaluationError


@dataclass(frozen=True)
class Sample:
    """One judged sample."""

    task_id: str
    sample: int
    """0, 1, ... among the samples of one problem."""
    prompt_sha256: str
    completion: str
    """What the model wrote, unchanged."""
    program: str | None
    """What was run; None when the completion held no code."""
    status: Status
    detail: str
    seconds: float
    """Wall-clock time of the program with its tests."""
    seed: int


class RunFolder:
    """Opens ``folder`` for a run with ``settings``, new or to be continued.

    ``finished`` holds the samples found there.  Raises EvaluationError when the folder belongs to
    a run with other settings or is damaged.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        self._folder = folder
        self._samples_path = folder / "samples.jsonl"
        self._summary_path = folder / "summary.json"
        self._settings = json.loads(json.dumps(settings))
        self._lock = threading.Lock()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if self._summary_path.exists():
                self._check_settings()
            elif self._samples_path.exists():
                raise EvaluationError(
                    f"{folder} holds samples.jsonl but no summary.json to say how they were made"
                )
            self.finished = self._read_samples()
            self.write_summary({"complete": False})
        except OSError as error:
            raise EvaluationError(f"the output folder {folder} cannot be used: {error}") from None

    def add(self, sample: Sample) -> None:
        """Appends one sample; callable from any thread.  Raises EvaluationError where it does not fit."""
        line = (json.dumps(asdict(sample)) + "\n").encode()
        with self._lock:
            try:
                _append(self._samples_path, line)
            except OSError as error:
                raise self._unwritable(error) from None

    def write_summary(self, results: Mapping[str, Any]) -> None:
        """Replaces summary.json, at once or not at all; EvaluationError where that is not possible."""
        temporary = self._summary_path.with_suffix(".json.partial")
        text = json.dumps({"settings": self._settings, **results}, indent=2) + "\n"
        try:
            temporary.write_text(text, encoding="utf-8")
            os.replace(temporary, self._summary_path)
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise self._unwritable(error) from None

    def _unwritable(self, error: OSError) -> EvaluationError:
        return EvaluationError(
            f"the output folder {self._folder} cannot be written: {error}; "
            "what is finished in it is kept, and the same command continues"
        )

    def _check_settings(self) -> None:
        try:
            found = json.loads(self._summary_path.read_text(encoding="utf-8"))["settings"]
            names = [
                name for name in {**found, **self._settings} if found.get(name) != self._settings.get(name)
            ]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise EvaluationError(f"{self._summary_path} is damaged; use another output folder") from None
        if names:
            changes = ", ".join(f"{name} {found.get(name)} -> {self._settings.get(name)}" for name in names)
            if "model_sha256" in names and "model" not in names:
                changes += "; the model has changed since, under the same name"
            raise EvaluationError(
                f"{self._summary_path.parent} holds a run with other settings ({changes}): "
                "use another output folder, or the same settings to continue that run"
            )

    def _read_samples(self) -> list[Sample]:
        if not self._samples_path.exists():
            return []
        data = self._samples_path.read_bytes()
        whole = data.rpartition(b"\n")[0] + b"\n" if b"\n" in data else b""
        if len(whole) < len(data):
            # The interruption cut this line; its sample is made again.
            os.truncate(self._samples_path, len(whole))
        return [self._sample(number, line) for number, line in enumerate(whole.splitlines(), start=1)]

    def _sample(self, number: int, line: bytes) -> Sample:
        try:
            values = json.loads(line)
            sample = Sample(**{field.name: values[field.name] for field in fields(Sample)})
        except (ValueError, KeyError, TypeError, RecursionError):
            sample = None
        if sample is None or not _well_formed(sample):
            raise EvaluationError(
                f"{self._samples_path}, line {number} is damaged; use another output folder"
            )
        return sample


def _well_formed(sample: Sample) -> bool:
    return isinstance(sample.task_id, str) and type(sample.sample) is int and sample.status in STATUSES


def _append(path: Path, line: bytes) -> None:
    """All of ``line`` or, where the disk is full, nothing: another thread may append after it."""
    with path.open("ab", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        try:
            written = 0
            while written < len(line):
                written += file.write(line[written:])
        except OSError:
            with contextlib.suppress(OSError):
                file.truncate(size)
            raise
