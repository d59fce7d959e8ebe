"""The output folder of a run.

    prompts.jsonl       one line per problem, from the start: what the model is given, and how it is judged
    completions.jsonl   one line per completion, as soon as the model has written it
    samples.jsonl       one line per judged sample, in the order in which they were judged
    retries.jsonl       one line per timeout that was judged again; the last of a sample is its verdict
    summary.json        settings from the start; results once all samples have been judged

All are written so that an interruption at any point leaves a folder that the same run can continue: what
was judged is kept, and what was only written is judged without being written again.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from evals.folder_lock import FolderLock
from evals.json_lines import append_line, read_lines, replace_file
from evals.problems import Problem
from evals.prompts import PromptFormat
from evals.sandbox.runner import STATUSES, Status
from laneformer.errors import EvaluationError

PROMPTS, COMPLETIONS, SAMPLES = "prompts.jsonl", "completions.jsonl", "samples.jsonl"
RETRIES = "retries.jsonl"


@dataclass(frozen=True)
class PromptRecord:
    """One problem of the run."""

    task_id: str
    entry_point: str
    prompt: str
    """The exact text given to the model."""
    prompt_sha256: str
    test: str
    context: str
    """Code that the judge runs before the test, for the helpers in it: the problem's own prompt."""
    adapter: str
    """See :class:`evals.problems.Problem`."""

    @classmethod
    def of(cls, problem: Problem, prompt_format: PromptFormat) -> PromptRecord:
        """What is recorded of ``problem`` when it is asked in ``prompt_format``."""
        prompt = prompt_format.prompt(problem)
        return cls(
            task_id=problem.task_id,
            entry_point=problem.entry_point,
            prompt=prompt,
            prompt_sha256=hashlib.sha256(prompt.encode()).hexdigest(),
            test=problem.test,
            context=problem.prompt,
            adapter=problem.adapter,
        )

    def problem(self) -> Problem:
        """All of the problem that judging a program needs."""
        return Problem(
            task_id=self.task_id,
            prompt=self.context,
            entry_point=self.entry_point,
            test=self.test,
            canonical_solution="",
            adapter=self.adapter,
        )


@dataclass(frozen=True)
class CompletionRecord:
    """One completion, judged or not."""

    task_id: str
    sample: int
    """0, 1, ... among the samples of one problem."""
    prompt_sha256: str
    completion: str
    """What the model wrote, unchanged."""
    refusal: str
    """Why the model could not take the prompt; empty where it could."""
    seed: int
    tokens: int | None
    """How many were generated; None where the source of text does not tell."""
    generation_seconds: float
    """Wall-clock time, the reading of the prompt included."""


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
    tokens: int | None = None
    """How many were generated; None where the source of text does not tell."""


@dataclass(frozen=True)
class Retry:
    """A later verdict on a sample that ran out of time, and the limits under which it was found."""

    task_id: str
    sample: int
    status: Status
    detail: str
    seconds: float
    timeout_seconds: float
    wall_seconds: float


def with_retries(samples: Iterable[Sample], retries: Iterable[Retry]) -> list[Sample]:
    """``samples`` with their last verdicts."""
    last = {(retry.task_id, retry.sample): retry for retry in retries}
    return [
        sample
        if (retry := last.get((sample.task_id, sample.sample))) is None
        else replace(sample, status=retry.status, detail=retry.detail, seconds=retry.seconds)
        for sample in samples
    ]


class RunFolder:
    """Opens ``folder`` for a run with ``settings`` and ``prompts``, new or to be continued.

    Without ``prompts``, those in the folder stay as they are.  ``finished`` holds the judged samples found
    there, with their last verdicts, ``retries`` those verdicts, ``completions`` all completions.  Raises
    EvaluationError when the folder belongs to a run with other settings, is damaged, or is being written by
    another evaluation, until that one's :meth:`close`.
    """

    def __init__(
        self, folder: Path, settings: Mapping[str, Any], prompts: Iterable[PromptRecord] | None = None
    ) -> None:
        self._folder = folder
        self._summary_path = folder / "summary.json"
        self._settings = json.loads(json.dumps(settings))
        self._lock = threading.Lock()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._writing = FolderLock(folder)
            if self._summary_path.exists():
                self._check_settings()
            else:
                self._check_new()
            if prompts is not None:
                lines = "".join(json.dumps(asdict(prompt)) + "\n" for prompt in prompts)
                replace_file(folder / PROMPTS, lines)
            self.completions: list[CompletionRecord] = read_lines(folder / COMPLETIONS, _completion)
            self.retries: list[Retry] = read_lines(folder / RETRIES, _retry)
            self.finished = with_retries(read_lines(folder / SAMPLES, _sample), self.retries)
            self.write_summary({"complete": False})
        except OSError as error:
            raise EvaluationError(f"the output folder {folder} cannot be used: {error}") from None

    def close(self) -> None:
        """Lets others write."""
        self._writing.close()

    def add_completion(self, completion: CompletionRecord) -> None:
        """Appends one completion; callable from any thread.  Raises EvaluationError where it does not fit."""
        self._append(COMPLETIONS, asdict(completion))

    def add(self, sample: Sample) -> None:
        """Appends one sample; callable from any thread.  Raises EvaluationError where it does not fit."""
        self._append(SAMPLES, asdict(sample))

    def _append(self, name: str, value: Mapping[str, Any]) -> None:
        with self._lock:
            try:
                append_line(self._folder / name, value)
            except OSError as error:
                raise self._unwritable(error) from None

    def write_summary(self, results: Mapping[str, Any]) -> None:
        """Replaces summary.json, at once or not at all; EvaluationError where that is not possible."""
        text = json.dumps({"settings": self._settings, **results}, indent=2) + "\n"
        try:
            replace_file(self._summary_path, text)
        except OSError as error:
            raise self._unwritable(error) from None

    def _unwritable(self, error: OSError) -> EvaluationError:
        return EvaluationError(
            f"the output folder {self._folder} cannot be written: {error}; "
            "what is finished in it is kept, and the same command continues"
        )

    def _check_new(self) -> None:
        for name in (SAMPLES, COMPLETIONS):
            if (self._folder / name).exists():
                raise EvaluationError(
                    f"{self._folder} holds {name} but no summary.json to say how they were made"
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
                f"{self._folder} holds a run with other settings ({changes}): "
                "use another output folder, or the same settings to continue that run"
            )


def read_prompts(folder: Path) -> list[PromptRecord]:
    """The problems of a run; EvaluationError where they are missing or damaged."""
    try:
        prompts: list[PromptRecord] = read_lines(folder / PROMPTS, _prompt)
    except OSError as error:
        raise EvaluationError(f"{folder / PROMPTS} cannot be read: {error}") from None
    if not prompts:
        raise EvaluationError(f"{folder} holds no {PROMPTS}: it is no folder of an evaluation")
    return prompts


def _prompt(values: Any) -> PromptRecord:
    prompt = PromptRecord(**{field.name: values[field.name] for field in fields(PromptRecord)})
    _require(all(isinstance(value, str) for value in asdict(prompt).values()))
    return prompt


def _completion(values: Any) -> CompletionRecord:
    completion = CompletionRecord(**{field.name: values[field.name] for field in fields(CompletionRecord)})
    _require(_has_identity(completion) and _has_count(completion))
    _require(isinstance(completion.refusal, str) and type(completion.seed) is int)
    _require(type(completion.generation_seconds) in (int, float))
    return completion


def _sample(values: Any) -> Sample:
    sample = Sample(**{field.name: values[field.name] for field in fields(Sample)})
    _require(_has_identity(sample) and _has_count(sample) and sample.status in STATUSES)
    return sample


def read_samples(folder: Path) -> tuple[list[Sample], list[Retry]]:
    """First verdicts and later ones; EvaluationError where a line is damaged."""
    try:
        return read_lines(folder / SAMPLES, _sample), read_lines(folder / RETRIES, _retry)
    except OSError as error:
        raise EvaluationError(f"{folder} cannot be read: {error}") from None


def _retry(values: Any) -> Retry:
    retry = Retry(**{field.name: values[field.name] for field in fields(Retry)})
    _require(isinstance(retry.task_id, str) and type(retry.sample) is int and retry.status in STATUSES)
    _require(isinstance(retry.detail, str))
    _require(all(type(x) in (int, float) for x in (retry.seconds, retry.timeout_seconds, retry.wall_seconds)))
    return retry


def _has_identity(record: CompletionRecord | Sample) -> bool:
    texts = (record.task_id, record.completion, record.prompt_sha256)
    return all(isinstance(text, str) for text in texts) and type(record.sample) is int


def _has_count(record: CompletionRecord | Sample) -> bool:
    return record.tokens is None or type(record.tokens) is int


def _require(condition: bool) -> None:
    if not condition:
        raise ValueError
