"""HumanEval+ and MBPP+: the problems of HumanEval and MBPP with many more inputs (Liu et al. 2023,
arXiv:2305.01210).

The published files hold one object a line: ``task_id``, ``prompt``, ``entry_point``,
``canonical_solution``, ``base_input`` and ``plus_input`` (lists of argument lists), ``atol``, ``contract``,
and in MBPP+ ``assertion``.  There are no expected answers: a program is right when it answers every input as
the canonical solution does, which our judge runs beside it (:mod:`evals.sandbox.reference`).  ``contract``
says which inputs make sense; the authors used it to make the inputs, and no verdict depends on it.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from evals.problems import Problem, check_continuation, parsed, text_field, validated
from evals.sources import read_records
from laneformer.errors import EvaluationError

# Problems with more than one right answer, by suite and function; the rest must equal the reference.
# Which those are, and the rule of each, is as in EvalPlus 0.3, so that verdicts compare.
ORACLES: dict[str, dict[str, str]] = {
    "humaneval_plus": {"find_zero": "root of the polynomial"},
    "mbpp_plus": {
        "are_equivalent": "anything",
        "sum_div": "or zero",
        "surface_Area": "or by perpendicular height",
        "digit_distance_nums": "or padded with zeros",
        "check_str": "truth of not None",
        "text_match_three": "truth of not None",
        "text_starta_endb": "truth of not None",
        "similar_elements": "same set",
        "find_char_long": "same set",
        "common_in_nested_lists": "same set",
        "extract_singly": "same set",
        "larg_nnum": "same set",
        "intersection_array": "same set",
        "find_dissimilar": "same set",
        "Diff": "same set",
    },
}

# What a JSON value stood for: None as it is, else a kind and the type of its items.
Type = Any
# The types of arguments are seen in the assertions (:func:`argument_types`).  These problems' assertions say
# another type than the one that the authors give to programs, or do not show how deep it goes.
_TYPES: dict[str, list[Type]] = {
    "multiply_num": [None],
    "sort_sublists": [None],
    "extract_singly": [None],
    "max_Abs_Diff": [None],
    "tuple_size": [("tuple", None)],
    "extract_even": [("nested tuples", None)],
    "remove_nested": [("nested tuples", None)],
    "empty_dit": [("list", ("set or empty dict", None))],
    "angle_complex": [("float", None), ("complex", None)],
    "convert": [("complex", None)],
}


def load_evalplus(source: str | Path, suite: str) -> list[Problem]:
    """The problems of ``suite``, "humaneval_plus" or "mbpp_plus", in their order.

    Raises EvaluationError naming the source and the field when it is damaged or of another layout.
    """
    records, name = read_records(source)

    def build(record: Mapping[str, Any], where: str) -> Problem:
        return _problem(record, where, suite)

    return validated(records, name, build)


def _problem(record: Mapping[str, Any], where: str, suite: str) -> Problem:
    inputs = [*_inputs(record, "base_input", where), *_inputs(record, "plus_input", where)]
    if not inputs:
        raise EvaluationError(f"{where}: base_input and plus_input are both empty")
    atol = record.get("atol")
    if isinstance(atol, bool) or not isinstance(atol, (int, float)) or not 0 <= atol < float("inf"):
        raise EvaluationError(f"{where}: atol is {atol!r}, expected a number of at least 0")
    problem = Problem(
        task_id=text_field(record, "task_id", where),
        prompt=text_field(record, "prompt", where),
        entry_point=text_field(record, "entry_point", where),
        test="",
        canonical_solution=text_field(record, "canonical_solution", where),
    )
    types: list[Type] = []
    if suite == "mbpp_plus":
        assertion = text_field(record, "assertion", where)
        types = argument_types(assertion, problem.entry_point, where)
        problem = _described(problem, assertion, where)
    check_continuation(problem, where)
    program = parsed(problem.prompt + problem.canonical_solution, f"{where}: the canonical solution")
    if not any(
        isinstance(node, ast.FunctionDef) and node.name == problem.entry_point for node in program.body
    ):
        raise EvaluationError(f"{where}: the canonical solution does not define {problem.entry_point}")
    oracle = ORACLES[suite].get(problem.entry_point, "equal")
    return replace(problem, test=build_test(problem, inputs, types, float(atol), oracle))


def _inputs(record: Mapping[str, Any], name: str, where: str) -> list[list[Any]]:
    inputs = record.get(name)
    if inputs == {}:  # how the published file writes that there are none
        return []
    if not isinstance(inputs, list) or not all(isinstance(arguments, list) for arguments in inputs):
        found = "missing" if name not in record else repr(inputs)[:60]
        raise EvaluationError(f"{where}: {name} is {found}, expected a list of argument lists")
    return inputs


def _described(problem: Problem, assertion: str, where: str) -> Problem:
    """With the sentence and the first assertion: in the prompt's docstring, and apart for chat prompts.

    Releases of 2023 keep the assertion outside of the prompt, later ones write it in as here.
    """
    body = parsed(problem.prompt, f"{where}: the prompt").body
    written = problem.prompt.strip()
    quotes = written[-3:]
    if len(body) != 1 or not _is_string(body[0]) or quotes not in ('"""', "'''"):
        raise EvaluationError(f"{where}: the prompt is not one docstring")
    lines = written[3:-3].strip().splitlines()  # as written, with its backslashes
    shown = [line for line in lines if line.startswith("assert ")]
    if not shown:
        tests = parsed(assertion, f"{where}: assertion").body
        first = next((node for node in tests if isinstance(node, ast.Assert)), None)
        if first is None:
            raise EvaluationError(f"{where}: assertion holds no assertion")
        shown = (ast.get_source_segment(assertion, first) or ast.unparse(first)).splitlines()
        lines += shown
    description = "\n".join(line for line in lines if line not in shown)
    prompt = "\n".join([quotes, *lines, quotes, ""])
    return replace(problem, prompt=prompt, description=description, shown_tests=("\n".join(shown),))


def _is_string(node: ast.stmt) -> bool:
    constant = node.value if isinstance(node, ast.Expr) else None
    return isinstance(constant, ast.Constant) and isinstance(constant.value, str)


def argument_types(assertion: str, entry_point: str, where: str) -> list[Type]:
    """What each argument is, where JSON cannot say: seen in the calls that ``assertion`` makes.

    Returns a type for every position: None, or (kind, type of items).
    """
    if entry_point in _TYPES:
        return _TYPES[entry_point]
    calls = [
        node.args
        for node in ast.walk(parsed(assertion, f"{where}: assertion"))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == entry_point
    ]
    width = max((len(arguments) for arguments in calls), default=0)
    return [
        _merged([_type(arguments[place]) for arguments in calls if place < len(arguments)])
        for place in range(width)
    ]


def _type(node: ast.expr) -> Type:
    match node:
        case ast.Tuple(items):
            return ("tuple", _merged(list(map(_type, items))))
        case ast.List(items):
            return ("list", _merged(list(map(_type, items))))
        case ast.Dict(values=items):
            return ("dict", _merged(list(map(_type, items))))
    return None


def _merged(types: Sequence[Type]) -> Type:
    """The one type of several values; a tuple where some are tuples, for JSON made lists of both."""
    known = [kind for kind in types if kind is not None]
    if not known:
        return None
    kinds = {kind for kind, _ in known}
    return ("tuple" if "tuple" in kinds else known[0][0], _merged([items for _, items in known]))


def build_test(
    problem: Problem, inputs: Sequence[Sequence[Any]], types: Sequence[Type], atol: float, oracle: str
) -> str:
    """Code that defines ``check(candidate)``: the canonical solution, the inputs, and the comparison."""
    reference = f"{problem.prompt}{problem.canonical_solution}".strip()
    return f"""\
{reference}


_reference = {problem.entry_point}

import json

from evals.sandbox.reference import check_outputs

_INPUTS = json.loads(
    {json.dumps(inputs)!r}
)


def check(candidate):
    check_outputs(candidate, _reference, _INPUTS, types={list(types)!r}, atol={atol!r}, oracle={oracle!r})
"""
