"""A run folder is read whole, or one error says what is wrong in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evals.report.run import read_run
from laneformer.errors import EvaluationError
from tests.evals.report.run_folders import write_run


def test_reads_problems_in_order_and_samples_by_number(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", [[True, False], [False, False]])
    lines = (folder / "samples.jsonl").read_text().splitlines(keepends=True)
    (folder / "samples.jsonl").write_text("".join(reversed(lines)))  # they finish in any order
    run = read_run(folder)
    assert run.complete
    assert [problem.asked.task_id for problem in run.problems] == ["HumanEval/0", "HumanEval/1"]
    assert [sample.status for sample in run.samples] == ["passed", "failed", "failed", "failed"]
    assert [problem.passed for problem in run.problems] == [1, 0]
    assert (run.requested_ks, run.tokens_per_second) == ((1,), 12.5)
    run.require_complete()


def test_an_unfinished_run_is_told_by_its_samples(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run", [[True, True], [True], []], complete=False))
    assert not run.complete
    assert run.progress == "3 of 6 samples, 1 of 3 problems with all 2"
    with pytest.raises(EvaluationError, match=r"unfinished run \(3 of 6 samples"):
        run.require_complete()


def test_half_a_line_at_the_end_is_an_interruption(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", [[True], [True]], complete=False)
    text = (folder / "samples.jsonl").read_text()
    (folder / "samples.jsonl").write_text(text[:-20])
    assert read_run(folder).progress.startswith("1 of 2 samples")
    (folder / "samples.jsonl").unlink()
    assert read_run(folder).progress.startswith("0 of 2 samples")


def damage_line(name: str, number: int, **changes: Any) -> Any:
    def damage(folder: Path) -> None:
        lines = [json.loads(line) for line in (folder / name).read_text().splitlines()]
        lines[number] |= changes
        (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))

    return damage


def replace_in(name: str, old: str, new: str) -> Any:
    def damage(folder: Path) -> None:
        text = (folder / name).read_text()
        assert old in text
        (folder / name).write_text(text.replace(old, new, 1))

    return damage


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "prompts.jsonl").unlink(), "no prompts.jsonl"),
        (lambda folder: (folder / "summary.json").unlink(), "no summary.json"),
        (lambda folder: (folder / "summary.json").write_text("[]"), "summary.json is damaged"),
        (lambda folder: (folder / "summary.json").write_text('{"settings": {}}'), "summary.json is damaged"),
        (lambda folder: (folder / "summary.json").write_text("[" * 100_000), "summary.json is damaged"),
        (lambda folder: (folder / "samples.jsonl").write_bytes(b"\xff\n"), "samples.jsonl cannot be read"),
        (lambda folder: (folder / "samples.jsonl").write_text("{\n"), "samples.jsonl, line 1 is damaged"),
        (lambda folder: (folder / "samples.jsonl").write_text("[]\n"), "line 1 is damaged: list"),
        (lambda folder: (folder / "samples.jsonl").unlink(), "complete, and 2 samples are missing"),
        (damage_line("samples.jsonl", 1, status="perfect"), "line 2: the status 'perfect' is unknown"),
        (damage_line("samples.jsonl", 1, task_id="HumanEval/7"), "HumanEval/7 is not in prompts.jsonl"),
        (damage_line("samples.jsonl", 1, task_id="HumanEval/0"), "another prompt"),
        (damage_line("samples.jsonl", 1, prompt_sha256="0"), "another prompt"),
        (damage_line("samples.jsonl", 1, sample=1), "1 samples per problem"),
        (damage_line("samples.jsonl", 1, sample=-1), "1 samples per problem"),
        (damage_line("samples.jsonl", 1, sample=False), "sample is bool, expected int"),
        (damage_line("samples.jsonl", 1, completion=None), "completion is NoneType, expected str"),
        (damage_line("samples.jsonl", 1, seconds=float("nan")), "line 2 is damaged: not JSON"),
        (replace_in("samples.jsonl", '"seconds": 0.25', '"seconds": 1e999'), "line 1 is damaged: not JSON"),
        (replace_in("samples.jsonl", '"tokens"', '"spoken"'), "tokens is missing"),
        (
            damage_line("prompts.jsonl", 0, prompt="def other():"),
            "not the one that prompt_sha256 was made of",
        ),
        (replace_in("prompts.jsonl", "HumanEval/1", "HumanEval/0"), "line 2: HumanEval/0 is there twice"),
        (replace_in("summary.json", '"problems": 2', '"problems": 3'), "summary.json says 3"),
        (replace_in("summary.json", '"problems": 2', '"problems": true'), "summary.json is damaged"),
    ],
)
def test_what_does_not_fit_is_one_error(tmp_path: Path, damage: Any, message: str) -> None:
    folder = write_run(tmp_path / "run", [[True], [False]])
    damage(folder)
    with pytest.raises(EvaluationError, match=message.replace(".", r"\.")):
        read_run(folder)


def test_a_sample_there_twice_is_an_error(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", [[True], [False]])
    text = (folder / "samples.jsonl").read_text()
    (folder / "samples.jsonl").write_text(text + text.splitlines(keepends=True)[0])
    with pytest.raises(EvaluationError, match="line 3: HumanEval/0, sample 0 is there twice"):
        read_run(folder)
