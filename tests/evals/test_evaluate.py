from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from evals.evaluate import SuiteResult, evaluate_suite
from evals.generate import CanonicalGenerator, sample_seed
from evals.problems import Problem
from evals.sandbox.runner import Sandbox
from evals.suites import Suite
from laneformer.errors import EvaluationError, RequestError

RIGHT, WRONG = "    return x + 1\n", "    return x\n"


class Scripted:
    """Answers in turn, whatever the prompt; an exception among the answers is raised."""

    def __init__(self, *answers: str | BaseException) -> None:
        self._answers = list(answers)
        self.seeds: list[int] = []

    def generate_text(self, prompt: str, *, seed: int, **_: Any) -> Iterator[str]:
        self.seeds.append(seed)
        answer = self._answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        yield answer


@pytest.fixture
def pair(increment: Problem) -> list[Problem]:
    other = Problem("Small/1", increment.prompt.replace("One", "1"), "f", increment.test, RIGHT)
    return [increment, other]


def _suite(problems: list[Problem]) -> Suite:
    return Suite("small", tuple(problems))


def _evaluate(generator: Any, problems: list[Problem], **options: Any) -> SuiteResult:
    return evaluate_suite(generator, _suite(problems), progress=False, workers=2, **options)


def _records(folder: Path, name: str = "samples.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def _summary(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "summary.json").read_text()))


def test_canonical_solutions_pass_within_a_minute(humaneval: list[Problem]) -> None:
    start = time.monotonic()
    result = evaluate_suite(CanonicalGenerator(), _suite(humaneval), progress=False)
    failures = [(sample.task_id, sample.status, sample.detail) for sample in result.samples]
    assert [failure for failure in failures if failure[1] != "passed"] == []
    assert result.pass_at_k == {1: 1.0}
    assert len(result.samples) == 164
    assert time.monotonic() - start < 60.0


# Task number, a part of its solution, and what makes it wrong.
MUTATIONS = [
    (0, "distance < threshold", "distance > threshold"),
    (1, "current_depth == 0", "current_depth == 1"),
    (2, "% 1.0", "% 2.0"),
    (32, "poly(xs, begin) > 0:\n            begin", "poly(xs, begin) < 0:\n            begin"),
    (38, "encode_cyclic(encode_cyclic(s))", "encode_cyclic(s)"),
    (50, "ord(ch) - 5", "ord(ch) + 5"),
    (53, "x + y", "x - y"),
]


def test_mutated_solutions_fail(humaneval: list[Problem]) -> None:
    sandbox = Sandbox()
    for number, old, new in MUTATIONS:
        problem = humaneval[number]
        assert old in problem.canonical_solution, problem.task_id
        program = problem.prompt + problem.canonical_solution.replace(old, new)
        verdict = sandbox.run(program, problem)
        assert verdict.status in ("failed", "timeout"), (problem.task_id, verdict)


def test_scores_and_counts(pair: list[Problem], tmp_path: Path) -> None:
    generator = Scripted(RIGHT, WRONG, WRONG, "no code")
    result = _evaluate(
        generator, pair, samples_per_problem=2, temperature=0.8, ks=(2, 1), output_dir=tmp_path / "run"
    )
    assert result.pass_at_k == {1: 0.25, 2: 0.5}
    assert result.status_counts == {
        "passed": 1, "failed": 2, "timeout": 0, "memory": 0, "crashed": 0, "no-code": 1
    }  # fmt: skip
    assert [(s.task_id, s.sample, s.status) for s in result.samples] == [
        ("Small/0", 0, "passed"),
        ("Small/0", 1, "failed"),
        ("Small/1", 0, "failed"),
        ("Small/1", 1, "no-code"),
    ]
    assert generator.seeds == [sample_seed(0, p, i) for p in range(2) for i in range(2)]

    records = {(record["task_id"], record["sample"]): record for record in _records(tmp_path / "run")}
    assert len(records) == 4
    first = records["Small/0", 0]
    assert first["completion"] == RIGHT
    assert first["program"].startswith(pair[0].prompt)
    assert first["prompt_sha256"] == hashlib.sha256(pair[0].prompt.encode()).hexdigest()
    assert first["seed"] == sample_seed(0, 0, 0)
    assert records["Small/1", 1]["program"] is None
    summary = _summary(tmp_path / "run")
    assert summary["complete"] is True
    assert summary["pass_at_k"] == {"1": 0.25, "2": 0.5}
    assert summary["status_counts"]["no-code"] == 1
    assert summary["settings"]["temperature"] == 0.8
    kinds = {"network", "processes", "read_only_files", "unprivileged_user", "system_calls"}
    assert set(summary["isolation"]) == kinds
    assert summary["tokens_per_second"] is None


def test_a_prompt_that_the_model_cannot_take_is_a_sample_without_code(pair: list[Problem]) -> None:
    result = _evaluate(Scripted(RequestError("prompt too long"), RIGHT), pair)
    assert [(s.status, s.completion) for s in result.samples] == [("no-code", ""), ("passed", RIGHT)]
    assert result.samples[0].detail == "prompt too long"


def test_a_model_that_takes_no_prompt_gets_no_score(pair: list[Problem], tmp_path: Path) -> None:
    with pytest.raises(EvaluationError, match="any of the prompts: too long"):
        _evaluate(Scripted(RequestError("too long"), RequestError("too long")), pair, output_dir=tmp_path)
    # Nor when the folder is read again.
    with pytest.raises(EvaluationError, match="any of the prompts: too long"):
        _evaluate(Scripted(), pair, output_dir=tmp_path)
    # A model that writes nothing of use has one.
    assert _evaluate(Scripted("", "no"), pair).pass_at_k == {1: 0.0}


def test_an_interrupted_run_continues(pair: list[Problem], tmp_path: Path) -> None:
    options: dict[str, Any] = {"samples_per_problem": 2, "temperature": 1.0, "output_dir": tmp_path}
    first = Scripted(RIGHT, WRONG, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        _evaluate(first, pair, **options)
    assert len(_records(tmp_path, "completions.jsonl")) == 2
    assert _summary(tmp_path)["complete"] is False

    # As when the machine went down while a line was being written, and before a sample was judged.
    lines = (tmp_path / "samples.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "samples.jsonl").write_text("".join(lines[:1]) + '{"task_id": "Small/1", "sam')
    with (tmp_path / "completions.jsonl").open("a") as file:
        file.write('{"task_id": "Small/1", "sam')
    second = Scripted(RIGHT, RIGHT)
    result = _evaluate(second, pair, **options)
    whole = Scripted(*[RIGHT] * 4)
    _evaluate(whole, pair, samples_per_problem=2, temperature=1.0)
    assert first.seeds[:2] + second.seeds == whole.seeds
    assert [sample.completion for sample in result.samples] == [RIGHT, WRONG, RIGHT, RIGHT]
    assert [sample.status for sample in result.samples] == ["passed", "failed", "passed", "passed"]
    for name in ("completions.jsonl", "samples.jsonl"):
        assert len(_records(tmp_path, name)) == 4
    assert _summary(tmp_path)["complete"] is True

    # A finished run is only read, also for another k.
    again = _evaluate(Scripted(), pair, ks=(2,), **options)
    assert again.samples == result.samples
    assert again.pass_at_k.keys() == {2}


def test_samples_are_written_while_others_are_generated(pair: list[Problem], tmp_path: Path) -> None:
    class Watching(Scripted):
        def generate_text(self, prompt: str, **options: Any) -> Iterator[str]:
            deadline = time.monotonic() + 20
            while self.seeds and not (tmp_path / "samples.jsonl").exists():
                assert time.monotonic() < deadline, "the first sample was not judged meanwhile"
                time.sleep(0.01)
            yield from super().generate_text(prompt, **options)

    assert _evaluate(Watching(RIGHT, RIGHT), pair, output_dir=tmp_path).pass_at_k == {1: 1.0}


@pytest.mark.parametrize(
    "change",
    [
        {"max_new_tokens": 9},
        {"seed": 1},
        {"timeout_seconds": 3.0},
        {"top_p": 0.5},
        {"model": "other"},
        {"model_sha256": "0"},
    ],
)
def test_other_settings_do_not_continue_a_run(
    pair: list[Problem], tmp_path: Path, change: dict[str, Any]
) -> None:
    _evaluate(Scripted(RIGHT, RIGHT), pair, output_dir=tmp_path)
    with pytest.raises(EvaluationError, match=f"other settings.*{next(iter(change))}"):
        _evaluate(Scripted(), pair, output_dir=tmp_path, **change)
    with pytest.raises(EvaluationError, match="problems_sha256"):
        _evaluate(Scripted(), pair[::-1], output_dir=tmp_path)


def test_damaged_folders_are_refused(pair: list[Problem], tmp_path: Path) -> None:
    _evaluate(Scripted(RIGHT, RIGHT), pair, output_dir=tmp_path)
    lines = (tmp_path / "samples.jsonl").read_text()
    for damaged in ("{}\n" + lines, lines.replace('"passed"', '"great"'), "x\n"):
        (tmp_path / "samples.jsonl").write_text(damaged)
        with pytest.raises(EvaluationError, match="line 1 is damaged"):
            _evaluate(Scripted(), pair, output_dir=tmp_path)
    (tmp_path / "summary.json").write_text("[]")
    with pytest.raises(EvaluationError, match=r"summary.json is damaged"):
        _evaluate(Scripted(), pair, output_dir=tmp_path)
    (tmp_path / "summary.json").unlink()
    with pytest.raises(EvaluationError, match=r"no summary.json"):
        _evaluate(Scripted(), pair, output_dir=tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(EvaluationError, match="cannot be used"):
        _evaluate(Scripted(), pair, output_dir=tmp_path / "file")


def test_broken_tests_end_the_run(increment: Problem) -> None:
    broken = Problem("Broken/0", increment.prompt, "f", "import nothing_of_this_name\n", "")
    with pytest.raises(EvaluationError, match="Broken/0 cannot be judged"):
        _evaluate(Scripted(RIGHT), [broken])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ks": (2,)}, "pass@2 needs at least 2 samples"),
        ({"ks": ()}, "at least one k"),
        ({"ks": (0,)}, "each at least 1"),
        ({"samples_per_problem": 0}, "samples per problem must be at least 1"),
        ({"samples_per_problem": 3}, "3 identical samples"),
        ({"max_new_tokens": 0}, "max new tokens must be at least 1"),
        ({"temperature": float("nan")}, "temperature must be 0"),
        ({"temperature": float("inf")}, "temperature must be 0"),
        ({"temperature": -1e-9}, "temperature must be 0"),
        ({"top_p": 0.0}, "top-p must be above 0"),
        ({"top_p": 1.001}, "top-p must be above 0"),
        ({"top_p": float("nan")}, "top-p must be above 0"),
        ({"seed": -1}, "seed must be 0 or more"),
        ({"timeout_seconds": 0.0}, "timeout must be"),
        ({"timeout_seconds": float("nan")}, "timeout must be"),
        ({"timeout_seconds": float("inf")}, "timeout must be"),
        ({"memory_bytes": 1 << 20}, "memory must be"),
        ({"memory_bytes": 1 << 63}, "memory must be"),
        ({"workers": 0}, "workers must be at least 1"),
    ],
)
def test_requests_without_a_right_answer_are_refused(
    pair: list[Problem], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(EvaluationError, match=message):
        evaluate_suite(Scripted(), _suite(pair), progress=False, **options)
    with pytest.raises(EvaluationError, match="no problems"):
        evaluate_suite(Scripted(), _suite([]), progress=False)
