"""The output folder of a run.

    samples.jsonl   one line per finished sample, in the order in which they finished
    summary.json    settings from the start; results once all samples have finished

Both are written so that an interruption at any point leaves a folder that the same run can continue.
"""

from __future__ import annotations

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
        """Appends one sample; callable from any thread."""
        line = json.dumps(asdict(sample)) + "\n"
        with self._lock, self._samples_path.open("a", encoding="utf-8") as file:
            file.write(line)

    def write_summary(self, results: Mapping[str, Any]) -> None:
        """Replaces summary.json, at once or not at all."""
        temporary = self._summary_path.with_suffix(".json.partial")
        temporary.write_text(
            json.dumps({"settings": self._settings, **results}, indent=2) + "\n", encoding="utf-8"
        )
        os.replace(temporary, self._summary_path)

    def _check_settings(self) -> None:
        try:
            found = json.loads(self._summary_path.read_text(encoding="utf-8"))["settings"]
            names = [
                name for name in {**found, **self._settings} if found.get(name) != self._settings.get(name)
            ]
        except (ValueError, KeyError, TypeError):
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
        except (ValueError, KeyError, TypeError):
            sample = None
        if sample is None or sample.status not in STATUSES:
            raise EvaluationError(
                f"{self._samples_path}, line {number} is damaged; use another output folder"
            )
        return sample
