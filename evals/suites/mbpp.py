"""MBPP: short programs from one sentence and three assertions (Austin et al. 2021, arXiv:2108.07732).

The full data set (974 problems) and the part that was checked by hand (427), as published: one object
a problem with ``task_id``, the sentence (``text``, or ``prompt`` in the checked part), ``code``,
``test_list`` and ``test_setup_code`` or ``test_imports``.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from evals.problems import CASES, Problem, parsed, text_field, text_list_field, validated
from evals.sources import read_records
from laneformer.errors import EvaluationError

HUB_NAMES = {False: "google-research-datasets/mbpp:full", True: "google-research-datasets/mbpp:sanitized"}
# By the number in the task's id, both ends included, as the data set's authors divide it.
SPLITS: dict[str, tuple[int, int]] = {
    "prompt": (1, 10),
    "test": (11, 510),
    "validation": (511, 600),
    "train": (601, 974),
    "all": (1, 974),
}
# The authors' three examples are 2, 3 and 4; for more, the others of the prompt split follow.
SHOT_ORDER = (2, 3, 4, 1, 5, 6, 7, 8, 9, 10)


def load_mbpp(source: str | Path | None, *, sanitized: bool) -> list[Problem]:
    """All problems, in their order, from a file or data set; None stands for the Hugging Face hub.

    Raises EvaluationError as :func:`evals.problems.load_problems` does.
    """
    records, name = read_records(HUB_NAMES[sanitized] if source is None else source)

    def build(record: Mapping[str, Any], where: str) -> Problem:
        return _problem(record, where, sanitized)

    problems = validated(records, name, build)
    return sorted(problems, key=_number)  # a data set's splits come in an order of their own


def in_split(problem: Problem, split: str) -> bool:
    """Whether ``problem`` belongs to ``split``, a key of :data:`SPLITS`."""
    first, last = SPLITS[split]
    return first <= _number(problem) <= last


def choose_shots(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """The solved examples that are there, in the order in which prompts take them."""
    by_number = {_number(problem): problem for problem in problems}
    return tuple(by_number[number] for number in SHOT_ORDER if number in by_number)


def _number(problem: Problem) -> int:
    return int(problem.task_id.rpartition("/")[2])


def _problem(record: Mapping[str, Any], where: str, sanitized: bool) -> Problem:
    number = record.get("task_id")
    if type(number) is not int or number < 1:
        raise EvaluationError(f"{where}: task_id is {number!r}, expected a number from 1")
    where = f"{where} (task {number})"
    description = _one_newline(text_field(record, "prompt" if sanitized else "text", where)).strip()
    code = _one_newline(text_field(record, "code", where))
    tests = tuple(_one_newline(test) for test in text_list_field(record, "test_list", where))
    if sanitized:
        setup = "\n".join(text_list_field(record, "test_imports", where))
    else:
        setup = _one_newline(text_field(record, "test_setup_code", where))
    if not tests:
        raise EvaluationError(f"{where}: test_list is empty")
    entry_point = find_entry_point(code, tests, where)
    test, adapter = build_test(code, setup, tests, entry_point, where)
    return Problem(f"MBPP/{number}", "", entry_point, test, code, description, tests, adapter)


def _one_newline(text: str) -> str:
    # Half of the data set was written on Windows; a prompt should not show which half.
    return text.replace("\r\n", "\n")


def find_entry_point(code: str, tests: Sequence[str], where: str) -> str:
    """The function of ``code`` that ``tests`` call.  Raises EvaluationError where there is none."""
    called = {
        node.func.id
        for test in tests
        for node in ast.walk(parsed(test, f"{where}: a test"))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    defined = [
        node.name
        for node in parsed(code, f"{where}: the code").body
        if isinstance(node, ast.FunctionDef) and node.name in called
    ]
    if not defined:
        raise EvaluationError(f"{where}: the tests call no function that the code defines")
    return defined[-1]


def build_test(code: str, setup: str, tests: Sequence[str], entry_point: str, where: str) -> tuple[str, str]:
    """``check(candidate)`` out of assertions that call the function by name, and the adapter that it needs.

    Where setup or assertions use other names of the program, such as a class whose objects are
    arguments, the calls are made beside the program, by the adapter; the assertions, with what they
    expect, stay with the judge.
    """
    setup_statements = parsed(setup, f"{where}: the test's setup").body
    imports = [node for node in setup_statements if _is_import(node)]
    has_more_than_imports = len(imports) < len(setup_statements)
    imports += _missing_imports(code, tests, imports)
    known = set(dir(builtins)) | _bound_by(imports) | {entry_point}
    statements = [node for test in tests for node in parsed(test, f"{where}: a test").body]
    adapter = ""
    if has_more_than_imports or _names(statements) - known:
        cases = _Cases(entry_point)
        statements = [cases.visit(node) for node in statements]
        if _names(statements) - known - {CASES}:
            raise EvaluationError(
                f"{where}: the tests use the program's names outside of calls to {entry_point}"
            )
        adapter = _adapter(setup, cases.calls)
    # The parameter has the function's name, which may also be ``check``.
    lines = [*map(ast.unparse, imports), "", "", f"def check({CASES if adapter else entry_point}):"]
    # An assertion that nothing had to be replaced in is shown as it was written.
    shown = list(map(ast.unparse, statements)) if adapter or any("\n" in test for test in tests) else tests
    return "\n".join([*lines, *(f"    {line.strip()}" for line in shown), ""]).lstrip("\n"), adapter


def _adapter(setup: str, calls: Sequence[str]) -> str:
    lines = [f"def {CASES}(number):", *(f"    {line}" for line in setup.splitlines()), "    calls = ["]
    lines += [f"        lambda: {call}," for call in calls]
    return "\n".join(["", "", *lines, "    ]", "    return calls[number]()", ""])


class _Cases(ast.NodeTransformer):
    """Replaces each call of the function by a call of its number."""

    def __init__(self, entry_point: str) -> None:
        self._entry_point = entry_point
        self.calls: list[str] = []

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if not (isinstance(node.func, ast.Name) and node.func.id == self._entry_point):
            return self.generic_visit(node)
        self.calls.append(ast.unparse(node))
        name = ast.Name(CASES, ast.Load())
        return ast.copy_location(ast.Call(name, [ast.Constant(len(self.calls) - 1)], []), node)


def _is_import(node: ast.stmt) -> bool:
    return isinstance(node, (ast.Import, ast.ImportFrom))


def _bound_by(imports: Iterable[ast.stmt]) -> set[str]:
    return {
        alias.asname or alias.name.split(".")[0]
        for node in imports
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
    }


def _names(statements: Iterable[ast.AST]) -> set[str]:
    """Names that are read and not bound within, such as by a comprehension."""
    nodes = [node for statement in statements for node in ast.walk(statement) if isinstance(node, ast.Name)]
    bound = {node.id for node in nodes if not isinstance(node.ctx, ast.Load)}
    return {node.id for node in nodes} - bound


def _missing_imports(code: str, tests: Sequence[str], imports: Sequence[ast.stmt]) -> list[ast.stmt]:
    """Modules that the assertions take from the reference program, whose imports they were written beside."""
    wanted = _names(parsed("\n".join(tests), "the tests").body) - set(dir(builtins)) - _bound_by(imports)
    return [node for node in parsed(code, "the code").body if _is_import(node) and _bound_by([node]) & wanted]
