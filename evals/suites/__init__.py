"""The problem suites by name: what they are, where their problems come from, how they are prompted.

    suite = load_suite("humaneval")
    suite = load_suite("mbpp", "mbpp.jsonl", split="test")

A suite's problems come from ``source`` where one is given; else from a package, from a file that the
environment variable ``LANEFORMER_SUITES`` leads to, or from the Hugging Face hub, in that order as far as the
suite has them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from evals.problems import Problem, answer_locations, load_problems
from evals.suites.evalplus import load_evalplus
from evals.suites.mbpp import SPLITS, choose_shots, in_split, load_mbpp
from laneformer.errors import EvaluationError

FOLDER_VARIABLE = "LANEFORMER_SUITES"
BASICS_FILE = Path(__file__).parents[1] / "data" / "basics.jsonl"


@dataclass(frozen=True)
class Suite:
    """Problems that are scored together."""

    name: str
    problems: tuple[Problem, ...]
    split: str | None = None
    """Which part of the data set; None where it has no parts."""
    examples: tuple[Problem, ...] = ()
    """Solved problems that a prompt may show, in the order in which they are taken."""
    default_shots: int = 0
    """How many of them a prompt shows when nobody says."""
    timeout_seconds: float = 10.0
    """For one program with its tests, when nobody says."""
    answer_locations: tuple[Path, ...] = ()
    """Where the answers lie on this machine; programs must not read them."""

    def first(self, count: int | None) -> Suite:
        """The same suite with its first ``count`` problems, all with None."""
        return replace(self, problems=self.problems[:count])

    def shots(self, count: int | None = None) -> tuple[Problem, ...]:
        """The ``count`` solved examples of a prompt (None: the default).  Raises EvaluationError."""
        count = self.default_shots if count is None else count
        if count < 0:
            raise EvaluationError(f"shots must be 0 or more, found {count}")
        if count > len(self.examples):
            raise EvaluationError(
                f"{count} shots were asked for, and {self.name} has {len(self.examples)} solved examples here"
            )
        return self.examples[:count]


@dataclass(frozen=True)
class SuiteKind:
    """What is known of a suite before its problems are loaded."""

    summary: str
    """One line for the command's help."""
    load: Callable[[str | Path | None], list[Problem]]
    """From a source; None stands for the default that is no file of the folder."""
    files: tuple[str, ...] = ()
    """Names under which the problems are published, looked for in the folder."""
    has_splits: bool = False
    timeout_seconds: float = 10.0
    """For one program, where nobody says; hundreds of inputs, which the reference answers too, take more."""


def _no_default(load: Callable[[str | Path], list[Problem]], files: str) -> Callable[..., list[Problem]]:
    def checked(source: str | Path | None) -> list[Problem]:
        if source is None:
            raise EvaluationError(
                f"this suite's problems come in the file {files}, from the EvalPlus releases: name it with "
                f"--problems, or its folder in the environment variable {FOLDER_VARIABLE}"
            )
        return load(source)

    return checked


SUITES: dict[str, SuiteKind] = {
    "humaneval": SuiteKind("164 Python functions from their docstrings (Chen et al. 2021)", load_problems),
    "humaneval_plus": SuiteKind(
        "HumanEval with many more tests (Liu et al. 2023)",
        _no_default(lambda source: load_evalplus(source, "humaneval_plus"), "HumanEvalPlus.jsonl"),
        files=("HumanEvalPlus.jsonl", "HumanEvalPlus.jsonl.gz"),
        timeout_seconds=60.0,
    ),
    "mbpp": SuiteKind(
        "974 short Python programs from one sentence each (Austin et al. 2021)",
        lambda source: load_mbpp(source, sanitized=False),
        files=("mbpp.jsonl",),
        has_splits=True,
    ),
    "mbpp_sanitized": SuiteKind(
        "the 427 problems of MBPP that were checked by hand",
        lambda source: load_mbpp(source, sanitized=True),
        files=("sanitized-mbpp.json",),
        has_splits=True,
    ),
    "mbpp_plus": SuiteKind(
        "MBPP with many more tests (Liu et al. 2023)",
        _no_default(lambda source: load_evalplus(source, "mbpp_plus"), "MbppPlus.jsonl"),
        files=("MbppPlus.jsonl", "MbppPlus.jsonl.gz"),
        timeout_seconds=60.0,
    ),
    "basics": SuiteKind(
        "20 easy functions of our own, on which small models show progress",
        lambda source: load_problems(BASICS_FILE if source is None else source),
    ),
}


def load_suite(name: str, source: str | Path | None = None, *, split: str | None = None) -> Suite:
    """Loads the suite ``name``, from ``source`` or from where it is by default (see above).

    ``source`` is a file of the suite's published layout or a Hugging Face data set (``NAME`` or
    ``NAME:CONFIGURATION``); ``split`` is one of :data:`evals.suites.mbpp.SPLITS` for the MBPP suites, by
    default "test".  Raises EvaluationError saying what is missing, damaged or unknown.
    """
    if name not in SUITES:
        raise EvaluationError(f"unknown suite {name!r}: expected one of {', '.join(SUITES)}")
    kind = SUITES[name]
    if split is not None and not kind.has_splits:
        raise EvaluationError(f"{name} has no splits: leave --split out")
    if split is not None and split not in SPLITS:
        raise EvaluationError(f"unknown split {split!r}: expected one of {', '.join(SPLITS)}")
    found = source if source is not None else _published_file(kind)
    problems = kind.load(found)
    hidden = [*answer_locations(), BASICS_FILE]
    if found is not None:
        hidden.append(Path(found))
    suite = Suite(name, tuple(problems), timeout_seconds=kind.timeout_seconds, answer_locations=tuple(hidden))
    if not kind.has_splits:
        return suite
    split = "test" if split is None else split
    chosen = tuple(problem for problem in problems if in_split(problem, split))
    if not chosen:
        raise EvaluationError(f"the problems of {name} hold none of the {split} split")
    return replace(suite, problems=chosen, split=split, examples=choose_shots(problems), default_shots=3)


def _published_file(kind: SuiteKind) -> Path | None:
    """The suite's file in the folder that the environment names; None without one."""
    folder = os.environ.get(FOLDER_VARIABLE)
    if not folder:
        return None
    paths = [Path(folder) / file for file in kind.files]
    return next((path for path in paths if os.path.exists(path)), None)
