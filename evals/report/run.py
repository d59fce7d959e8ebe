"""Reads a run folder: what was asked, what was written, what the verdicts were.

    run = read_run(Path("results/mine"))
    run.problems[0].samples[0].status       # "passed"

The files are described in ``docs/evaluation.md``.  They are held against each other, so that a
folder whose files do not belong together gives one error and never a number.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from evals.records import RETRIES, Retry
from evals.sandbox.runner import STATUSES
from laneformer.errors import EvaluationError


@dataclass(frozen=True)
class JudgedSample:
    """One line of ``samples.jsonl``."""

    task_id: str
    sample: int
    prompt_sha256: str
    completion: str
    """The model's text, unchanged."""
    program: str | None
    """What was run; None where the completion held no program."""
    status: str
    detail: str
    seconds: float
    """Wall-clock time of the program with its tests."""
    seed: int
    tokens: int | None
    """Generated tokens; None where the generator did not tell."""


@dataclass(frozen=True)
class AskedProblem:
    """One line of ``prompts.jsonl``."""

    task_id: str
    entry_point: str
    prompt: str
    """The exact text that the model was given."""
    prompt_sha256: str
    test: str


@dataclass(frozen=True)
class ProblemResult:
    """A problem and its judged samples, by their number."""

    asked: AskedProblem
    samples: tuple[JudgedSample, ...]

    @property
    def passed(self) -> int:
        """How many samples passed."""
        return sum(sample.status == "passed" for sample in self.samples)


@dataclass(frozen=True)
class Run:
    """A run folder in memory; ``problems`` in the order in which they were asked."""

    folder: Path
    settings: Mapping[str, Any]
    problems: tuple[ProblemResult, ...]
    samples_per_problem: int
    complete: bool
    """Whether every problem has all its samples."""
    requested_ks: tuple[int, ...]
    """The k that the run itself reported; empty while it has not finished."""
    isolation: Mapping[str, bool]
    retried: tuple[Retry, ...]
    """The last verdicts on timeouts that were judged again."""
    tokens_per_second: float | None
    """Generation speed as the run measured it; None where it did not."""

    @property
    def samples(self) -> list[JudgedSample]:
        """All samples, by problem."""
        return [sample for problem in self.problems for sample in problem.samples]

    @property
    def whole_problems(self) -> tuple[ProblemResult, ...]:
        """The problems that have all their samples."""
        return tuple(item for item in self.problems if len(item.samples) == self.samples_per_problem)

    @property
    def progress(self) -> str:
        """How much of the run is there, in words."""
        expected = len(self.problems) * self.samples_per_problem
        whole = len(self.whole_problems)
        return (
            f"{len(self.samples)} of {expected} samples, {whole} of {len(self.problems)} problems with all "
            f"{self.samples_per_problem}"
        )

    def require_complete(self) -> None:
        """EvaluationError, with counts, while samples are missing."""
        if not self.complete:
            raise EvaluationError(
                f"{self.folder} holds an unfinished run ({self.progress}): give the command that began it "
                "once more, which continues it"
            )


def read_run(folder: Path) -> Run:
    """Reads ``folder``.

    Raises EvaluationError naming the file and line where something is missing, damaged, there twice, or
    does not fit the rest: a sample of an unknown problem, another prompt, more samples than were asked for.
    """
    summary = _summary(folder / "summary.json")
    settings = summary["settings"]
    prompts = folder / "prompts.jsonl"
    asked: dict[str, AskedProblem] = {}
    for where, values in _lines(prompts):
        problem = _record(AskedProblem, values, where)
        if problem.task_id in asked:
            raise EvaluationError(f"{where}: {problem.task_id} is there twice")
        if (
            problem.prompt_sha256
            != hashlib.sha256(problem.prompt.encode("utf-8", "surrogatepass")).hexdigest()
        ):
            raise EvaluationError(f"{where}: the prompt is not the one that prompt_sha256 was made of")
        asked[problem.task_id] = problem
    if len(asked) != settings["problems"]:
        raise EvaluationError(
            f"{prompts} holds {len(asked)} problems, and summary.json says {settings['problems']}"
        )
    samples = _samples(folder / "samples.jsonl", asked, settings["samples_per_problem"])
    retries = _last_retries(folder, samples)
    for retry in retries:
        first = samples[retry.task_id][retry.sample]
        samples[retry.task_id][retry.sample] = replace(
            first,
            status=retry.status,
            detail=f"{retry.detail} (judged again; first {first.status}: {first.detail})".lstrip(),
            seconds=retry.seconds,
        )
    problems = tuple(
        ProblemResult(problem, tuple(samples[task_id][index] for index in sorted(samples[task_id])))
        for task_id, problem in asked.items()
    )
    per_problem = settings["samples_per_problem"]
    complete = all(len(problem.samples) == per_problem for problem in problems)
    if summary["complete"] and not complete:
        counts = Counter(len(problem.samples) for problem in problems)
        missing = sum((per_problem - count) * number for count, number in counts.items())
        raise EvaluationError(f"{folder} says that it is complete, and {missing} samples are missing in it")
    return Run(
        folder=folder,
        settings=settings,
        problems=problems,
        samples_per_problem=per_problem,
        complete=complete,
        requested_ks=tuple(sorted(int(k) for k in summary.get("pass_at_k", {}))),
        isolation=summary.get("isolation", {}),
        retried=tuple(retries),
        tokens_per_second=summary.get("tokens_per_second"),
    )


def _summary(path: Path) -> dict[str, Any]:
    text = _text(path)
    try:
        summary = _json(text)
        settings = summary["settings"]
        well_formed = (
            isinstance(summary["complete"], bool)
            and all(_whole(settings[name]) and settings[name] > 0 for name in _COUNTS)
            and all(k.isdecimal() for k in summary.get("pass_at_k", {}))
            and isinstance(summary.get("isolation", {}), dict)
            and isinstance(summary.get("tokens_per_second"), (int, float, type(None)))
        )
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        well_formed = False
    if not well_formed:
        raise EvaluationError(f"{path} is damaged: no summary of a run")
    return dict(summary)


_COUNTS = ("problems", "samples_per_problem")


def _samples(
    path: Path, asked: Mapping[str, AskedProblem], per_problem: int
) -> dict[str, dict[int, JudgedSample]]:
    """Task -> number -> sample."""
    samples: dict[str, dict[int, JudgedSample]] = {task_id: {} for task_id in asked}
    # An interrupted run may leave half a line at the end, and one that has only begun no file.
    lines = _lines(path, may_be_cut=True) if path.exists() else iter(())
    for where, values in lines:
        sample = _record(JudgedSample, values, where)
        name = f"{sample.task_id}, sample {sample.sample}"
        if sample.task_id not in asked:
            raise EvaluationError(f"{where}: {sample.task_id} is not in prompts.jsonl")
        if sample.prompt_sha256 != asked[sample.task_id].prompt_sha256:
            raise EvaluationError(f"{where}: {name} was made from another prompt than prompts.jsonl holds")
        if not 0 <= sample.sample < per_problem:
            raise EvaluationError(f"{where}: {name}, and the run has {per_problem} samples per problem")
        if sample.sample in samples[sample.task_id]:
            raise EvaluationError(f"{where}: {name} is there twice")
        if sample.status not in STATUSES:
            raise EvaluationError(f"{where}: the status {sample.status!r} is unknown")
        samples[sample.task_id][sample.sample] = sample
    return samples


def _last_retries(folder: Path, samples: Mapping[str, Mapping[int, JudgedSample]]) -> list[Retry]:
    path = folder / RETRIES
    last: dict[tuple[str, int], Retry] = {}
    for where, values in _lines(path, may_be_cut=True) if path.exists() else iter(()):
        retry = _record(Retry, values, where)
        first = samples.get(retry.task_id, {}).get(retry.sample)
        if first is None or first.status != "timeout":
            name = f"{retry.task_id}, sample {retry.sample}"
            raise EvaluationError(f"{where}: {name} has no timeout in samples.jsonl to be judged again")
        if retry.status not in STATUSES:
            raise EvaluationError(f"{where}: the status {retry.status!r} is unknown")
        last[retry.task_id, retry.sample] = retry
    return list(last.values())


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise EvaluationError(
            f"{path.parent} is no run folder that can be reported: it has no {path.name}"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise EvaluationError(f"{path} cannot be read: {error}") from None


def _lines(path: Path, *, may_be_cut: bool = False) -> Iterator[tuple[str, Any]]:
    """Where each line stands, and its value."""
    text = _text(path)
    lines = text.split("\n")  # not splitlines(), which also splits at U+2028 and the like
    rest = lines.pop()
    if rest and not may_be_cut:
        lines.append(rest)
    for number, line in enumerate(lines, start=1):
        where = f"{path}, line {number}"
        try:
            yield where, _json(line)
        except (ValueError, RecursionError):
            raise EvaluationError(f"{where} is damaged: not JSON") from None


def _json(text: str) -> Any:
    """Strict JSON: NaN and what is too large for a float are refused, for no browser reads them back."""
    return json.loads(text, parse_constant=_finite, parse_float=_finite)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is no finite number")
    return number


Record = TypeVar("Record", JudgedSample, AskedProblem, Retry)

# What each annotation of the three records accepts; a bool is no number.
_ACCEPTED: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "Status": (str,),
    "str | None": (str, type(None)),
    "int": (int,),
    "int | None": (int, type(None)),
    "float": (int, float),
}


def _record(kind: type[Record], values: Any, where: str) -> Record:
    if not isinstance(values, dict):
        raise EvaluationError(f"{where} is damaged: {type(values).__name__}, expected an object")
    found: dict[str, Any] = {}
    for field in fields(kind):
        accepted = _ACCEPTED[str(field.type)]
        if field.name not in values:
            raise EvaluationError(f"{where} is damaged: {field.name} is missing")
        value = values[field.name]
        if isinstance(value, bool) or not isinstance(value, accepted):
            raise EvaluationError(
                f"{where} is damaged: {field.name} is {type(value).__name__}, expected {field.type}"
            )
        found[field.name] = value
    return kind(**found)


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
