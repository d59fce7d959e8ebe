"""The judge's proxy behaves as the function itself would."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from evals.sandbox.judge import rebuild_exception, restore
from evals.sandbox.runner import Verdict
from laneformer.errors import EvaluationError
from tests.evals.cheats.forged import CHANNEL

Run = Callable[..., Verdict]


def _passes(verdict: Verdict) -> None:
    assert verdict.status == "passed", verdict


@pytest.mark.parametrize(
    ("body", "tests"),
    [
        ("x.sort()", "x = [3, 1]\ncandidate(x)\nassert x == [1, 3]"),
        ("x.append(4)", "x = [3]\ny = x\ncandidate(x)\nassert y == [3, 4]"),
        ("x[0].append(1)", "inner = []\nx = [inner]\ncandidate(x)\nassert inner == [1]"),
        ("x[0].append(1)", "inner = []\nx = (inner, 2)\ncandidate(x)\nassert inner == [1]"),
        ("x['b'] = x.pop('a')", "x = {'a': [1]}\ncandidate(x)\nassert x == {'b': [1]}"),
        ("x.add(2)", "x = {1}\ncandidate(x)\nassert x == {1, 2}"),
        ("x.clear()", "x = [float('nan'), 1]\ncandidate(x=x)\nassert x == []"),
        ("return list(reversed(x))", "x = [1, 2]\nassert candidate(x) == [2, 1]\nassert x == [1, 2]"),
    ],
)
def test_changes_in_place_come_back(judge: Run, body: str, tests: str) -> None:
    _passes(judge(f"def f(x):\n    {body}\n", tests))


def test_changes_that_cannot_cross_are_left_out(judge: Run) -> None:
    _passes(judge("def f(x):\n    x.append(object())\n    return 3\n", "assert candidate([]) == 3"))


@pytest.mark.parametrize(
    "name", ["ValueError", "KeyError", "ZeroDivisionError", "TypeError", "AssertionError"]
)
def test_builtin_exceptions_arrive_as_themselves(judge: Run, name: str) -> None:
    seen = f"except {name} as error:\n    assert 'told' in str(error)\n    return\n"
    tests = f"try:\n    candidate(0)\n{seen}assert False"
    _passes(judge(f"def f(x):\n    raise {name}('told')\n", tests))


def test_exceptions_keep_plain_arguments_and_otherwise_their_text(judge: Run) -> None:
    catch = "except ValueError as error:\n    assert error.args == {}\n    return\nassert False"
    catch = "try:\n    candidate(0)\n" + catch
    _passes(judge("def f(x):\n    raise ValueError('a', [1])\n", catch.format("('a', [1])")))
    _passes(judge("def f(x):\n    raise ValueError(print)\n", catch.format("('<built-in function print>',)")))
    _passes(judge("def f(x):\n    raise ValueError('a' * 20_000)\n", catch.format("('a' * 1000,)")))
    _passes(judge("def f(x):\n    b'\\xff'.decode()\n", catch.format("error.args and error.start == 0")))


def test_other_exceptions_arrive_as_their_nearest_builtin(judge: Run) -> None:
    program = "class Mine(LookupError):\n    pass\ndef f(x):\n    raise Mine\n"
    _passes(judge(program, "try:\n    candidate(0)\nexcept LookupError:\n    return\nassert False"))


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["UnicodeDecodeError", "UnicodeError", "ValueError"], UnicodeError),
        (["SystemExit", "BaseException"], Exception),
        (["eval", "Nothing", "int"], Exception),
        ([], Exception),
    ],
)
def test_only_ordinary_builtin_exceptions_are_rebuilt(names: list[str], expected: type) -> None:
    assert type(rebuild_exception(names, ("text",))) is expected
    assert type(rebuild_exception(["ExceptionGroup", "Exception"], ("text", [1]))) is Exception


@pytest.mark.parametrize(
    ("fault", "status"),
    [("import os\n    os._exit(0)", "crashed"), ("return object()", "failed")],
)
def test_tests_that_swallow_everything_cannot_pass_a_fault(judge: Run, fault: str, status: str) -> None:
    tests = (
        "try:\n    candidate(0)\nexcept:\n    pass\ntry:\n    candidate(0)\nexcept BaseException:\n    pass"
    )
    assert judge(f"def f(x):\n    {fault}\n", tests).status == status


def test_tests_may_use_helpers_of_the_prompt(judge: Run) -> None:
    prompt = "def double(x):\n    return 2 * x\n\ndef f(x):\n    '''Twice.'''\n"
    _passes(judge("def f(x):\n    return x + x\n", "assert candidate(2) == double(2)", prompt))
    open_prompt = "def double(x):\n    return 2 * x\n\ndef f(x):\n"
    _passes(judge("def f(x):\n    return x + x\n", "assert f(2) == double(2)", open_prompt))


def test_a_program_cannot_replace_the_helpers_of_the_tests(judge: Run) -> None:
    prompt = "def double(x):\n    return 2 * x\n\ndef f(x):\n    '''Twice.'''\n"
    equal = "class Equal:\n    __eq__ = lambda *_: True\n"
    program = equal + "def double(x):\n    return Equal()\ndef f(x):\n    return 0\n"
    assert judge(program, "assert candidate(2) == double(2)", prompt).status == "failed"


def test_lazy_results_are_as_lazy_as_they_were(judge: Run) -> None:
    program = "def f(x):\n    return map(str, x)\n"
    _passes(judge(program, "assert list(candidate([1])) == ['1']\nassert candidate([1]) != ['1']"))


def test_modules_of_the_program_work_as_usual(judge: Run) -> None:
    record = "from dataclasses import dataclass\n@dataclass\nclass P:\n    a: 'int'\n"
    program = record + "def f(x):\n    return P(x).a\n"
    _passes(judge(program, "assert candidate(3) == 3"))


def test_the_order_of_sets_is_the_same_every_time(judge: Run) -> None:
    program = "def f(x):\n    return ''.join({'a', 'b', 'c', 'd', 'e', 'f'})\n"
    orders = {judge(program, "raise ValueError(candidate(0))").detail for _ in range(4)}
    assert len(orders) == 1


def test_what_tests_print_is_no_verdict(judge: Run) -> None:
    tests = 'print(\'{"outcome": "passed"}\', flush=True)\nassert False'
    assert judge("def f(x):\n    return 0\n", tests).status == "failed"


@pytest.mark.parametrize(
    ("prompt", "tests", "message"),
    [
        ("raise ValueError\ndef f(x):\n", "pass", "cannot be loaded"),
        ("def f(x):\n", "candidate(object())", "type object"),
    ],
)
def test_broken_problems_are_errors_and_not_failures(
    judge: Run, prompt: str, tests: str, message: str
) -> None:
    with pytest.raises(EvaluationError, match=message):
        judge("def f(x):\n    return 0\n", tests, prompt)


FORGER = f"""{CHANNEL}
def f(x):
    own = channel()
    own.sendall(frame(text))
    own.recv(1 << 16)
"""


@pytest.mark.parametrize(
    ("body", "tests"),
    [
        ("x[:] = own", "found = []\ncandidate(found)"),
        ("return own", "found = candidate(0)"),
        (
            "raise ValueError(own)",
            "try:\n    candidate(0)\nexcept ValueError as error:\n    found = error.args",
        ),
    ],
    ids=["changed", "returned", "raised"],
)
def test_what_a_program_answers_makes_no_problem_a_broken_one(judge: Run, body: str, tests: str) -> None:
    program = f"own = []\nfor _ in range(90): own = [own]\ndef f(x):\n    {body}\n"
    # Deep enough to come back from the program, and in the brackets of the tests too deep to go there again.
    verdict = judge(program, f"{tests}\nfor _ in range(10): found = [found]\ncandidate(found)")
    assert verdict.status == "failed", verdict
    assert "the tests pass a value nested deeper" in verdict.detail


def test_a_forged_answer_makes_no_problem_a_broken_one(judge: Run) -> None:
    deep = '["list",[' * 200 + "]]" * 200
    forged = f"""text = '["tuple",["returned",{deep},null]]'\n"""
    verdict = judge(forged + FORGER, "candidate(candidate(0))")
    assert verdict.status == "failed", verdict
    assert "sent a value nested deeper" in verdict.detail


def test_details_are_one_short_line(judge: Run) -> None:
    program = "def f(x):\n    return type('a\\n' * 10**6, (), {})()\n"
    verdict = judge(program, "candidate(0)")
    assert verdict.status == "failed"
    assert verdict.detail.startswith("the result is not a plain value: a value of type a a a")
    assert len(verdict.detail) <= 300 and "\n" not in verdict.detail
    forged = """text = '["tuple",["opaque","' + 'a' * (8 << 20) + '"]]'\n"""
    verdict = judge(forged + FORGER, "candidate(0)")
    assert verdict.status == "failed"
    assert verdict.detail.startswith("the result is not a plain value")
    assert len(verdict.detail) <= 300 and "\n" not in verdict.detail
    verdict = judge("def f(x):\n    raise ValueError('a\\n' * 500)\n", "candidate(0)")
    assert verdict.detail.startswith("ValueError: a a a")
    assert len(verdict.detail) <= 300


@pytest.mark.parametrize(
    ("original", "changed"),
    [
        ([1, 2, 3], [3]),
        ([], [1, 2]),
        ([[1], {"a": {2}}], [[1, 1], {"b": {3}}]),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ([(1, [2])], [(3, [4])]),
        ({1, 2}, set()),
    ],
)
def test_restore_changes_the_object_itself(original: Any, changed: Any) -> None:
    restore(original, changed)
    assert original == changed
    assert list(original) == list(changed)
