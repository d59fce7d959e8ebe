"""Suites: where problems come from, and that their tests pass what is right and nothing else."""

from __future__ import annotations

import ast
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evals.evaluate import evaluate_suite
from evals.generate import CanonicalGenerator
from evals.problems import Problem
from evals.sandbox.runner import Sandbox, Verdict
from evals.suites import FOLDER_VARIABLE, SUITES, Suite, load_suite
from laneformer.errors import EvaluationError

PUBLISHED = Path(os.environ.get(FOLDER_VARIABLE, "absent"))


def _write(path: Path, records: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def _judge(problem: Problem, program: str | None = None) -> Verdict:
    program = problem.prompt + problem.canonical_solution if program is None else program
    return Sandbox().run(program + problem.adapter, problem)


def mbpp_record(number: int, code: str, *tests: str, **changes: Any) -> dict[str, Any]:
    record = {"task_id": number, "text": f"Write task {number}.", "code": code, "test_list": list(tests)}
    return record | {"test_setup_code": "", "challenge_test_list": []} | changes


DOUBLE = "def double(x):\r\n    return 2 * x"
# What MBPP's tests do beyond calling a function with plain values.
ODD: dict[str, tuple[dict[str, Any], str]] = {
    "a function called check": (
        mbpp_record(11, "def check(n):\n    return n > 2", "assert check(3) == True"),
        "def check(n):\n    return False",
    ),
    "a type as an argument": (
        mbpp_record(12, "def pick(xs, t):\n    return [x for x in xs if type(x) is t]",
                    "assert pick([1, 'a'], int) == [1]"),
        "def pick(xs, t):\n    return xs",
    ),
    "a match as a result": (
        mbpp_record(13, "import re\ndef find(t):\n    return re.search('a+', t)",
                    "assert find('baa')", "assert not find('b')", "assert find('baa').group() == 'aa'"),
        "def find(t):\n    return None",
    ),
    "objects of the program": (
        mbpp_record(14, "class Pair:\n    def __init__(self, a, b):\n        self.a, self.b = a, b\n\n"
                    "def total(pairs):\n    return sum(p.a * p.b for p in pairs)",
                    "assert total([Pair(1, 2), Pair(3, 4)]) == 14", "assert total([]) == 0"),
        "class Pair:\n    def __init__(self, a, b):\n        pass\n\ndef total(pairs):\n    return 14",
    ),
    "objects that the setup builds": (
        mbpp_record(15, "class Node:\n    def __init__(self):\n        self.next = None\n\n"
                    "def length(node):\n    return 1 + length(node.next) if node else 0",
                    "assert length(root) == 2", test_setup_code="root = Node()\r\nroot.next = Node()"),
        "class Node:\n    pass\n\ndef length(node):\n    return 3",
    ),
    "a module of the program": (
        mbpp_record(16, "import sys\ndef size(x):\n    return sys.getsizeof(x)",
                    "assert size(5) == sys.getsizeof(5)"),
        "def size(x):\n    return -1",
    ),
    "sets and complex numbers": (
        mbpp_record(17, "def square(xs):\n    return {x * x for x in xs}",
                    "assert square({1j, 2}) == {(-1+0j), 4}"),
        "def square(xs):\n    return [-1, 4]",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", ODD)
def test_mbpp_tests_of_every_kind_can_be_judged(tmp_path: Path, case: str) -> None:
    record, wrong = ODD[case]
    (problem,) = load_suite("mbpp", _write(tmp_path / "mbpp.jsonl", [record])).problems
    assert _judge(problem).status == "passed"
    assert _judge(problem, wrong).status == "failed"


def test_programs_with_an_adapter_do_not_learn_the_answers(tmp_path: Path) -> None:
    record, _ = ODD["objects of the program"]
    (problem,) = load_suite("mbpp", _write(tmp_path / "mbpp.jsonl", [record])).problems
    assert "14" not in problem.adapter and "assert" not in problem.adapter
    # Without the class that the tests use, as in the published protocol.
    assert _judge(problem, "def total(pairs):\n    return 14").status == "failed"


def test_mbpp_splits_go_by_number_and_examples_come_from_the_prompt_split(tmp_path: Path) -> None:
    numbers = [3, 974, 2, 600, 10, 4, 11, 510, 511, 601]
    path = _write(
        tmp_path / "mbpp.jsonl", [mbpp_record(n, DOUBLE, "assert double(1) == 2\r\n") for n in numbers]
    )

    def found(split: str | None) -> list[str]:
        return [problem.task_id for problem in load_suite("mbpp", path, split=split).problems]

    assert found(None) == found("test") == ["MBPP/11", "MBPP/510"]
    assert found("validation") == ["MBPP/511", "MBPP/600"]
    assert found("train") == ["MBPP/601", "MBPP/974"]
    assert found("all") == [f"MBPP/{number}" for number in sorted(numbers)]
    suite = load_suite("mbpp", path)
    assert suite.split == "test"
    assert [problem.task_id for problem in suite.shots()] == ["MBPP/2", "MBPP/3", "MBPP/4"]
    assert [problem.task_id for problem in suite.shots(4)][3:] == ["MBPP/10"]
    assert suite.shots(0) == ()
    with pytest.raises(EvaluationError, match="5 shots were asked for, and mbpp has 4"):
        suite.shots(5)
    with pytest.raises(EvaluationError, match="shots must be 0 or more"):
        suite.shots(-1)
    assert "\r" not in suite.problems[0].canonical_solution + suite.problems[0].test


def test_the_checked_part_of_mbpp_has_a_layout_of_its_own(tmp_path: Path) -> None:
    record = {
        "task_id": 11,
        "prompt": "Area?",
        "code": "import math\ndef area(r):\n    return math.pi * r * r",
        "test_imports": ["import math"],
        "test_list": ["assert math.isclose(area(1), 3.14, rel_tol=0.01)"],
    }
    path = tmp_path / "sanitized-mbpp.json"
    path.write_text(json.dumps([record]))
    (problem,) = load_suite("mbpp_sanitized", path).problems
    assert problem.description == "Area?"
    assert _judge(problem).status == "passed"
    assert _judge(problem, "def area(r):\n    return r").status == "failed"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task_id": "11"}, "task_id is '11'"),
        ({"text": None}, "text is NoneType"),
        ({"code": "def f(:"}, "the code is not Python"),
        ({"code": "x = 1"}, "call no function that the code defines"),
        ({"test_list": []}, "test_list is empty"),
        ({"test_list": ["assert ("]}, "a test is not Python"),
        ({"test_list": "assert double(1) == 2"}, "expected a list of strings"),
        ({"test_list": ["assert double(1) == helper(2)"]}, "names outside of calls to double"),
        ({"test_setup_code": "x ="}, "setup is not Python"),
        ({"text": "\ud800"}, "half of a surrogate pair"),
    ],
)
def test_refuses_wrong_mbpp_records(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    record = mbpp_record(11, DOUBLE, "assert double(1) == 2") | changes
    with pytest.raises(EvaluationError, match=message):
        load_suite("mbpp", _write(tmp_path / "mbpp.jsonl", [record]))


def test_mbpp_is_read_from_the_hub_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    asked = []

    def load(path: str, **options: Any) -> dict[str, list[dict[str, Any]]]:
        asked.append((path, options))
        record = mbpp_record(12, DOUBLE, "assert double(1) == 2")
        return {"test": [record], "prompt": [record | {"task_id": 2}]}

    monkeypatch.delenv(FOLDER_VARIABLE, raising=False)
    monkeypatch.setattr(datasets, "load_dataset", load)
    suite = load_suite("mbpp")
    assert asked == [("google-research-datasets/mbpp", {"split": None, "name": "full"})]
    assert [problem.task_id for problem in (*suite.examples, *suite.problems)] == ["MBPP/2", "MBPP/12"]


def test_the_folder_variable_leads_to_published_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    with pytest.raises(EvaluationError, match=r"MbppPlus.jsonl, from the EvalPlus releases"):
        load_suite("mbpp_plus")
    path = _write(tmp_path / "mbpp.jsonl", [mbpp_record(11, DOUBLE, "assert double(1) == 2")])
    suite = load_suite("mbpp")
    assert len(suite.problems) == 1
    assert path in suite.answer_locations


def test_unknown_names_are_told() -> None:
    with pytest.raises(EvaluationError, match="unknown suite 'apps': expected one of humaneval"):
        load_suite("apps")
    with pytest.raises(EvaluationError, match="unknown split 'dev'"):
        load_suite("mbpp", "x.jsonl", split="dev")
    with pytest.raises(EvaluationError, match="basics has no splits"):
        load_suite("basics", split="test")
    with pytest.raises(EvaluationError, match="has 0 solved examples"):
        load_suite("basics").shots(1)


def test_our_own_suite_passes_what_is_right_and_fails_the_rest() -> None:
    suite = load_suite("basics")
    assert len(suite.problems) == 20
    right = evaluate_suite(CanonicalGenerator(), suite, progress=False)
    assert right.pass_at_k == {1: 1.0}
    # What a careless program answers: nothing, its own argument, or only the docstring's first example.
    for answer in ("None", "next(iter(locals().values()))", "{first}"):
        problems = [_answering(problem, answer) for problem in suite.problems]
        wrong = evaluate_suite(CanonicalGenerator(), Suite("wrong", tuple(problems)), progress=False)
        assert [s.task_id for s in wrong.samples if s.status == "passed"] == []


def _answering(problem: Problem, answer: str) -> Problem:
    lines = [line.strip() for line in problem.prompt.splitlines()]
    first = lines[next(i for i, line in enumerate(lines) if line.startswith(">>>")) + 1]
    return replace(problem, canonical_solution=f"    return {answer.replace('{first}', first)}\n")


def evalplus_record(problem: Problem) -> dict[str, Any] | None:
    """HumanEval's own inputs in the layout of HumanEval+; None where they are no literals."""
    inputs = []
    for node in ast.walk(ast.parse(problem.test)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "candidate":
            try:
                inputs.append([ast.literal_eval(argument) for argument in node.args])
            except ValueError:
                return None
    half = len(inputs) // 2
    return {
        "task_id": problem.task_id, "prompt": problem.prompt, "entry_point": problem.entry_point,
        "canonical_solution": problem.canonical_solution, "contract": "", "atol": 0,
        "base_input": inputs[:half], "plus_input": inputs[half:],
    }  # fmt: skip


def test_humaneval_plus_agrees_with_humaneval_on_its_inputs(tmp_path: Path, humaneval: list[Problem]) -> None:
    made = [(problem, evalplus_record(problem)) for problem in humaneval[::6]]
    records = {problem.task_id: record for problem, record in made if record is not None}
    suite = load_suite("humaneval_plus", _write(tmp_path / "HumanEvalPlus.jsonl", list(records.values())))
    assert len(suite.problems) >= 20
    right = evaluate_suite(CanonicalGenerator(), suite, progress=False)
    assert [(s.task_id, s.detail) for s in right.samples if s.status != "passed"] == []
    nothing = [replace(problem, canonical_solution="    return None\n") for problem in suite.problems]
    wrong = evaluate_suite(CanonicalGenerator(), Suite("wrong", tuple(nothing)), progress=False)
    assert {s.status for s in wrong.samples} == {"failed"}
    assert all("expected" in s.detail and "found None" in s.detail for s in wrong.samples)


def test_a_root_is_right_where_the_polynomial_is_small(tmp_path: Path, humaneval: list[Problem]) -> None:
    record = evalplus_record(humaneval[1])
    assert record is not None
    record |= {"task_id": "HumanEval/32", "prompt": humaneval[32].prompt, "entry_point": "find_zero"}
    record |= {"canonical_solution": humaneval[32].canonical_solution, "atol": 1e-4}
    record |= {"base_input": [[[-6, 11, -6, 1]], [[1, 2]]], "plus_input": []}
    (problem,) = load_suite("humaneval_plus", _write(tmp_path / "plus.jsonl", [record])).problems
    assert _judge(problem).status == "passed"
    program = problem.prompt + "    return {root} if len(xs) == 4 else -0.5\n"
    assert (
        _judge(problem, program.replace("{root}", "3.0")).status == "passed"
    )  # another root than the reference's
    assert _judge(problem, program.replace("{root}", "2.9")).status == "failed"


PLUS = {
    "task_id": "Mbpp/2", "prompt": "'''\nWrite a function to merge tuples.\n'''", "entry_point": "merge",
    "canonical_solution": "\ndef merge(a, b):\n    assert type(a) is tuple\n    return a + b\n",
    "base_input": [[[1], [2]]], "plus_input": [[[], [3, 4]]], "atol": 0, "contract": "",
    "assertion": "\nassert merge((1,), (2,)) == (1, 2)\nassert merge((), ()) == ()\n",
}  # fmt: skip


def test_mbpp_plus_shows_one_assertion_and_gives_the_types_that_it_shows(tmp_path: Path) -> None:
    (problem,) = load_suite("mbpp_plus", _write(tmp_path / "plus.jsonl", [PLUS])).problems
    assert (
        problem.prompt == "'''\nWrite a function to merge tuples.\nassert merge((1,), (2,)) == (1, 2)\n'''\n"
    )
    assert problem.description == "Write a function to merge tuples."
    assert problem.shown_tests == ("assert merge((1,), (2,)) == (1, 2)",)
    assert _judge(problem).status == "passed"
    verdict = _judge(problem, problem.prompt + "def merge(a, b):\n    return (1, 2)\n")
    assert verdict.status == "failed"
    assert "input 2 of 2, ((), (3, 4)): expected (3, 4), found (1, 2)" in verdict.detail
    # Later releases write the assertion in themselves.
    later = PLUS | {
        "prompt": '"""\nWrite a function to merge tuples.\nassert merge((1,), (2,)) == (1, 2)\n"""\n'
    }
    (other,) = load_suite("mbpp_plus", _write(tmp_path / "later.jsonl", [later])).problems
    assert other.prompt == problem.prompt.replace("'''", '"""')
    assert other.shown_tests == problem.shown_tests


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"base_input": 5}, "base_input is 5, expected a list of argument lists"),
        ({"base_input": [], "plus_input": {}}, "both empty"),
        ({"atol": -1}, "atol is -1"),
        ({"atol": "0"}, "atol is '0'"),
        ({"atol": None}, "atol is None"),
        ({"assertion": "x = 1"}, "assertion holds no assertion"),
        ({"assertion": None}, "assertion is NoneType"),
        ({"prompt": "x = 1"}, "not one docstring"),
        ({"canonical_solution": "\nx = 1\n"}, "does not define merge"),
        ({"canonical_solution": "\ndef merge(\n"}, "canonical solution is not Python"),
        ({"entry_point": "a b"}, "not a function's name"),
    ],
)
def test_refuses_wrong_evalplus_records(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(EvaluationError, match=message):
        load_suite("mbpp_plus", _write(tmp_path / "plus.jsonl", [PLUS | changes]))


@pytest.mark.parametrize("suite", ["mbpp", "mbpp_sanitized", "mbpp_plus"])
def test_published_files(suite: str) -> None:
    if not any((PUBLISHED / file).exists() for file in SUITES[suite].files):
        pytest.skip(f"{FOLDER_VARIABLE} does not lead to {SUITES[suite].files[0]}")
    problems = load_suite(suite, split="all" if SUITES[suite].has_splits else None).problems
    assert len(problems) == {"mbpp": 974, "mbpp_sanitized": 427}.get(suite, len(problems))
    # Those that once failed.  All of them: evaluate SUITE --verify-canonical --split all
    numbers = {11, 56, 115, 124, 252, 349, 367, 533, 580, 596, 601, 737, 787, 794, 899, 927, 967}
    chosen = tuple(p for p in problems if int(p.task_id.rpartition("/")[2]) in numbers)
    assert len(chosen) > 5
    result = evaluate_suite(CanonicalGenerator(), Suite(suite, chosen), progress=False)
    assert [(s.task_id, s.detail) for s in result.samples if s.status != "passed"] == []
