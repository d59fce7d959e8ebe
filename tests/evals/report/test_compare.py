"""Comparisons of two runs whose test has a closed form."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from evals import cli
from evals.report.compare import compare_runs
from evals.report.run import read_run
from laneformer.errors import EvaluationError
from tests.evals.report.run_folders import write_run


def write_pair(
    tmp_path: Path, first: list[list[bool]], second: list[list[bool]], **settings: Any
) -> tuple[Path, Path]:
    return (
        write_run(tmp_path / "first", first),
        write_run(tmp_path / "second", second, settings={"model": "checkpoints/theirs", **settings}),
    )


def singles(text: str) -> list[list[bool]]:
    return [[mark == "+"] for mark in text]


def test_one_sample_per_problem_is_mcnemar(tmp_path: Path) -> None:
    pair = write_pair(tmp_path, singles("+++-----" + "-" * 8), singles("++--" + "+" * 7 + "-" * 5))
    comparison = compare_runs(*(read_run(folder) for folder in pair))
    assert comparison["pass@1"] == [3 / 16, 9 / 16]
    assert comparison["difference"]["value"] == 6 / 16
    assert comparison["test"] == {
        "method": "McNemar, exact",
        "only_first_passed": 1,
        "only_second_passed": 7,
        "p_value": 2 * (1 + 8) / 256,
    }
    assert [row["task_id"] for row in comparison["first_better"]] == ["HumanEval/2"]
    assert [row["task_id"] for row in comparison["second_better"]] == [f"HumanEval/{i}" for i in range(4, 11)]
    assert comparison["different_settings"] == {"model": ["checkpoints/mine", "checkpoints/theirs"]}
    assert 0 < comparison["difference"]["low"] < 6 / 16 < comparison["difference"]["high"]


def test_several_samples_are_tested_by_sign_flips(tmp_path: Path) -> None:
    # Differences of passed samples: +1, +2, +2, 0.  Of 8 sign choices, 2 reach a sum of 5 or -5.
    first = [[True, False, False], [False] * 3, [True, False, False], [True] * 3]
    second = [[True, True, False], [True, True, False], [True] * 3, [True] * 3]
    comparison = compare_runs(*(read_run(folder) for folder in write_pair(tmp_path, first, second)))
    assert comparison["test"] == {
        "method": "paired permutation (sign flips), exact",
        "problems_that_differ": 3,
        "p_value": 2 / 8,
    }
    assert comparison["difference"]["value"] == pytest.approx(5 / 12)
    assert comparison["second_better"][1]["passed"] == [0, 2]
    assert comparison["first_better"] == []


def test_a_run_equals_itself(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run", singles("+-+")))
    comparison = compare_runs(run, run)
    assert comparison["test"]["p_value"] == 1.0
    difference = comparison["difference"]
    assert (difference["value"], difference["low"], difference["high"]) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"suite": "mbpp"}, "suite is humaneval and mbpp"),
        ({"problems_sha256": "2" * 64}, f"problems_sha256 is {'1' * 64} and {'2' * 64}"),
        ({"prompt_format": "chat"}, "prompt_format is completion and chat"),
        ({"shots": 3}, "shots is 0 and 3"),
        ({"samples_per_problem": 2}, "samples_per_problem is 1 and 2"),
    ],
)
def test_runs_of_other_questions_are_not_compared(
    tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    other = [[True, False], [True, True]] if "samples_per_problem" in settings else singles("+-")
    pair = write_pair(tmp_path, singles("+-"), other, **settings)
    with pytest.raises(EvaluationError, match=f"cannot be compared problem by problem: {message}"):
        compare_runs(*(read_run(folder) for folder in pair))


def test_a_folder_that_was_changed_is_not_compared(tmp_path: Path) -> None:
    first = write_run(tmp_path / "first", singles("+-"))
    second = write_run(tmp_path / "second", singles("+-"), prompts=[{"task_id": "Other/0"}])
    with pytest.raises(EvaluationError, match="hold other task ids"):
        compare_runs(read_run(first), read_run(second))
    summary = json.loads((second / "summary.json").read_text())
    del summary["settings"]["prompt_format"]
    (second / "summary.json").write_text(json.dumps(summary))
    with pytest.raises(EvaluationError, match="second does not say its prompt_format"):
        compare_runs(read_run(first), read_run(second))


def test_the_command_prints_what_flipped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = write_pair(tmp_path, singles("++---"), singles("-+++-"), temperature=0.2)
    assert cli.main(["compare", str(first), str(second)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "  model: A checkpoints/mine, B checkpoints/theirs" in lines
    assert "  temperature: A 0.8, B 0.2" in lines
    assert "pass@1 A 40.00 %, B 60.00 %" in lines
    assert any(line.startswith("B - A +20.00 points, 95 % interval ") for line in lines)
    assert "McNemar, exact: p = 1" in lines
    better = lines.index("A better: 1 problems")
    assert lines[better + 1] == "  HumanEval/0: A 1/1 (passed), B 0/1 (failed)"
    assert lines[better + 2] == "B better: 2 problems"
    assert lines[better + 4] == "  HumanEval/3: A 0/1 (failed), B 1/1 (passed)"


def test_json_is_the_comparison(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = write_pair(tmp_path, singles("++-"), singles("-++"))
    arguments = ["compare", str(first), str(second), "--json", "--resamples", "77", "--seed", "5"]
    assert cli.main(arguments) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == compare_runs(read_run(first), read_run(second), resamples=77, seed=5)


def test_other_prompt_texts_in_the_same_format_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = write_run(tmp_path / "first", singles("+-"))
    second = write_run(tmp_path / "second", singles("+-"), prompts=[{"prompt": "[user] def f0(x):\n"}])
    assert cli.main(["compare", str(first), str(second)]) == 0
    assert "the exact prompt differs on 1 problems" in capsys.readouterr().out
    shutil.rmtree(second)
    assert cli.main(["compare", str(first), str(second)]) == 2
