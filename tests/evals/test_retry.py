"""Timeouts are judged again alone; both verdicts stay, and summary and report tell the last."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evals.cli import main
from evals.evaluate import SuiteResult, evaluate_suite
from evals.report.report import build_report, write_report
from evals.report.run import read_run
from evals.retry import retry_timeouts
from evals.suites import Suite, load_suite
from laneformer.errors import EvaluationError
from tests.evals.report.run_folders import write_run

SLOW = "    import time\n    end = time.process_time() + 1.0\n    while time.process_time() < end: pass\n"


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@pytest.fixture(scope="module")
def suite() -> Suite:
    return load_suite("basics").first(3)


class Writer:
    """Right, but slow once; endless; right at once."""

    def __init__(self, suite: Suite, most: int = 3) -> None:
        first, _, last = (problem.canonical_solution for problem in suite.problems)
        slow_once = "    import sys\n    done = sys.__dict__.setdefault('done', [])\n    if not done:\n"
        slow = "".join(f"        {line.strip()}\n" for line in SLOW.splitlines()) + "        done.append(1)\n"
        self._texts = [slow_once + slow + first, "    while True: pass\n", last][:most]

    def generate_text(self, prompt: str, **_: Any) -> Any:
        if not self._texts:
            raise KeyboardInterrupt
        yield self._texts.pop(0)


def _run(writer: Writer, suite: Suite, folder: Path) -> SuiteResult:
    return evaluate_suite(
        writer, suite, timeout_seconds=0.5, workers=1, output_dir=folder, memory_bytes=1 << 28, progress=False
    )


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def _summary(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "summary.json").read_text()))


def test_both_verdicts_stay_and_the_last_counts(suite: Suite, folder: Path) -> None:
    result = _run(Writer(suite), suite, folder)
    assert [sample.status for sample in result.samples] == ["timeout", "timeout", "passed"]
    assert _summary(folder)["retried_timeouts"] == 0
    run = read_run(folder)
    write_report(run, build_report(run, resamples=50, seed=3), folder)
    before = (folder / "samples.jsonl").read_bytes()

    again = retry_timeouts(folder, suite, timeout_seconds=3.0, wall_seconds=60.0, progress=False)
    assert [sample.status for sample in again.retried] == ["passed", "timeout"]
    assert again.complete
    assert again.pass_at_k == {1: pytest.approx(2 / 3)}
    assert (folder / "samples.jsonl").read_bytes() == before
    retries = _lines(folder / "retries.jsonl")
    assert [line["status"] for line in retries] == ["passed", "timeout"]
    assert {(line["timeout_seconds"], line["wall_seconds"]) for line in retries} == {(3.0, 60.0)}
    summary = _summary(folder)
    assert summary["complete"]
    assert summary["pass_at_k"] == {"1": pytest.approx(2 / 3)}
    assert (summary["status_counts"]["timeout"], summary["status_counts"]["passed"]) == (1, 2)
    assert summary["retried_timeouts"] == 2
    assert summary["settings"]["timeout_seconds"] == 0.5
    report = json.loads((folder / "report.json").read_text())
    assert report["pass_at_k"][0]["value"] == pytest.approx(2 / 3)
    assert (report["interval"]["resamples"], report["interval"]["seed"]) == (50, 3)
    assert report["retried_timeouts"] == {"passed": 1, "timeout": 1}
    assert "judged again, and their later verdicts: passed 1, timeout 1" in (folder / "report.md").read_text()
    assert "judged again; first timeout" in (folder / "report.html").read_text()

    # Only what is still a timeout is judged once more, by default under the run's own limit.
    third = retry_timeouts(folder, suite, progress=False)
    assert [sample.task_id for sample in third.retried] == [suite.problems[1].task_id]
    assert _lines(folder / "retries.jsonl")[-1]["timeout_seconds"] == 0.5
    assert _summary(folder)["retried_timeouts"] == 2


def test_an_interrupted_run_goes_on_with_the_later_verdicts(suite: Suite, folder: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        _run(Writer(suite, most=2), suite, folder)
    again = retry_timeouts(folder, suite, timeout_seconds=3.0, progress=False)
    assert not again.complete
    assert [sample.status for sample in again.retried] == ["passed"]
    assert not _summary(folder)["complete"]
    with pytest.raises(EvaluationError, match="unfinished"):
        read_run(folder).require_complete()
    last = Writer(suite)
    last._texts = last._texts[2:]
    result = _run(last, suite, folder)
    assert [sample.status for sample in result.samples] == ["passed", "timeout", "passed"]
    assert _summary(folder)["retried_timeouts"] == 1
    assert build_report(read_run(folder), resamples=50)["retried_timeouts"] == {"passed": 1}


def test_the_command(suite: Suite, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _run(Writer(suite), suite, folder)
    assert main(["retry-timeouts", str(folder), "--timeout", "3", "--wall-timeout", "60"]) == 0
    printed = capsys.readouterr().out.split()
    assert printed[:4] == ["2", "timeouts", "judged", "again"]
    assert printed[4:8] == ["passed", "1", "timeout", "1"]
    assert printed[8:] == ["pass@1", "66.67", "%"]


@pytest.mark.parametrize("arguments", [["--timeout", "0"], ["--wall-timeout", "nan"], ["--workers", "0"]])
def test_limits_without_sense_are_refused(
    suite: Suite, folder: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    _run(Writer(suite), suite, folder)
    assert main(["retry-timeouts", str(folder), *arguments]) == 2
    assert "error:" in capsys.readouterr().err
    assert not (folder / "retries.jsonl").exists()


@pytest.mark.parametrize(
    "change", [{"timeout_seconds": None}, {"timeout_seconds": "x"}, {"memory_bytes": None}, {"suite": [1]}]
)
def test_damaged_settings_are_one_error(
    suite: Suite, folder: Path, change: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    _run(Writer(suite), suite, folder)
    summary = _summary(folder)
    summary["settings"] |= change
    (folder / "summary.json").write_text(json.dumps(summary))
    before = (folder / "samples.jsonl").read_bytes()
    assert main(["retry-timeouts", str(folder)]) == 2
    printed = capsys.readouterr().err
    assert printed.count("error:") == 1 and "Traceback" not in printed
    assert (folder / "samples.jsonl").read_bytes() == before


def test_the_run_s_own_limits_are_taken(suite: Suite, folder: Path) -> None:
    evaluate_suite(
        Writer(suite),
        suite,
        timeout_seconds=0.5,
        wall_seconds=7.5,
        workers=1,
        output_dir=folder,
        progress=False,
    )
    retry_timeouts(folder, suite, progress=False)
    limits = {(line["timeout_seconds"], line["wall_seconds"]) for line in _lines(folder / "retries.jsonl")}
    assert limits == {(0.5, 7.5)}


def test_a_damaged_report_is_told_before_anything_is_judged(suite: Suite, folder: Path) -> None:
    _run(Writer(suite), suite, folder)
    (folder / "report.json").write_text("{}")
    with pytest.raises(EvaluationError, match=r"report.json is damaged"):
        retry_timeouts(folder, suite, progress=False)
    assert not (folder / "retries.jsonl").exists()


def test_other_folders_are_refused(suite: Suite, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["retry-timeouts", str(folder)]) == 2
    assert "no summary.json" in capsys.readouterr().err
    _run(Writer(suite), suite, folder)
    other = Suite("basics", (replace(suite.problems[0], test="def check(f):\n    pass\n"),))
    with pytest.raises(EvaluationError, match="other problems"):
        retry_timeouts(folder, other, progress=False)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"status": "good"}, "unknown"),
        ({"sample": 7}, "no timeout in samples.jsonl"),
        ({"task_id": "HumanEval/1"}, "no timeout in samples.jsonl"),
        ({"seconds": "1"}, "seconds is str"),
    ],
)
def test_damaged_retries_are_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    write_run(tmp_path, [[{"status": "timeout", "detail": "too long"}], [True]])
    line = {"task_id": "HumanEval/0", "sample": 0, "status": "passed", "detail": "", "seconds": 1.0}
    line |= {"timeout_seconds": 3.0, "wall_seconds": 18.0}
    path = tmp_path / "retries.jsonl"
    path.write_text(json.dumps(line) + "\n")
    assert read_run(tmp_path).samples[0].status == "passed"
    path.write_text(json.dumps(line | change) + "\n")
    with pytest.raises(EvaluationError, match=message):
        read_run(tmp_path)
