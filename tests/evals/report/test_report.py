"""What a report says, from run folders whose scores are known."""

from __future__ import annotations

import errno
import json
import os
import tomllib
from pathlib import Path

import pytest

from evals import cli
from evals.report.report import build_report
from evals.report.run import read_run
from laneformer.errors import EvaluationError
from tests.evals.report.run_folders import write_run


def report_files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.startswith("report"))


def test_scores_counts_and_table(tmp_path: Path) -> None:
    slow = {"status": "timeout", "detail": "late", "seconds": 10.0, "tokens": None}
    run = read_run(write_run(tmp_path / "run", [[True, True, False, False], [True, False, False, slow]]))
    report = build_report(run, ks=[2, 1, 2], resamples=500, seed=4)
    first, second = report["pass_at_k"]
    assert (first["k"], first["value"]) == (1, (2 / 4 + 1 / 4) / 2)
    # pass@2 = 1 - C(4 - c, 2) / C(4, 2)
    assert (second["k"], second["value"]) == (2, pytest.approx(((1 - 1 / 6) + (1 - 3 / 6)) / 2))
    # Two problems, resampled: the mean is one, the other, or between; all within 95 %.
    assert (first["low"], first["high"]) == (0.25, 0.5)
    assert not first["all_alike"]
    assert report["interval"] == {
        "method": "percentile bootstrap over problems",
        "confidence": 0.95,
        "resamples": 500,
        "seed": 4,
    }
    assert report["status_counts"] == {
        "passed": 3, "failed": 4, "timeout": 1, "memory": 0, "crashed": 0, "no-code": 0
    }  # fmt: skip
    assert report["tokens"] == {"samples_counted": 7, "total": 7 * 17}
    assert report["per_problem"][1] == {
        "task_id": "HumanEval/1",
        "n": 4,
        "c": 1,
        "pass@1": 0.25,
        "statuses": {"passed": 1, "failed": 2, "timeout": 1},
        "seconds": 10.75,
        "longest_seconds": 10.0,
    }
    assert report == build_report(run, ks=[1, 2], resamples=500, seed=4)


def test_fewer_than_k_samples_are_an_error(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run", [[True, False], [False, False]]))
    with pytest.raises(EvaluationError, match="pass@3 needs at least 3 samples of every problem, found 2"):
        build_report(run, ks=[1, 3])
    with pytest.raises(EvaluationError, match="k must be at least 1"):
        build_report(run, ks=[0])


def test_an_unfinished_run_is_an_error_unless_partial(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run", [[True, False], [True], []], complete=False))
    with pytest.raises(EvaluationError, match=r"unfinished run \(3 of 6 samples, 1 of 3 problems"):
        build_report(run)
    report = build_report(run, partial=True, resamples=50)
    # Of the one problem that is whole: half a problem would count as if the rest were failed or absent.
    assert report["pass_at_k"][0]["value"] == 0.5
    assert (report["complete"], report["problems"], report["problems_scored"]) == (False, 3, 1)
    assert [row["pass@1"] for row in report["per_problem"]] == [0.5, 1.0, None]
    none = read_run(
        write_run(tmp_path / "none", [[], []], complete=False, settings={"samples_per_problem": 2})
    )
    with pytest.raises(EvaluationError, match="no problem has all its samples yet"):
        build_report(none, partial=True)


def test_no_width_is_no_certainty(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_run(tmp_path / "run", [[False], [False], [False]])
    report = build_report(read_run(folder))
    assert (report["pass_at_k"][0]["low"], report["pass_at_k"][0]["high"]) == (0.0, 0.0)
    assert cli.main(["report", str(folder)]) == 0
    assert "All problems have the same pass@1" in capsys.readouterr().out


def test_the_command_writes_three_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_run(tmp_path / "run", [[True, False], [False, False]])
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert cli.main(["report", str(folder), "--k", "1", "2", "--resamples", "100", "--seed", "2"]) == 0
    output = capsys.readouterr().out
    table = [line.split() for line in output.splitlines()]
    assert ["pass@1", "25.00", "%", "(0.00", "%", "to", "50.00", "%)"] in table
    assert ["passed", "1"] in table
    assert "95 % intervals: percentile bootstrap over problems, 100 resamples, seed 2." in output
    assert "PARTIAL" not in output
    assert report_files(folder) == ["report.html", "report.json", "report.md"]
    assert {name: (folder / name).read_bytes() for name in before} == before
    report = json.loads((folder / "report.json").read_text())
    assert [row["k"] for row in report["pass_at_k"]] == [1, 2]
    assert (
        "| HumanEval/0 | 2 | 1 | 0.50 | passed 1, failed 1 | 0.50 | 0.25 |"
        in (folder / "report.md").read_text()
    )


def test_partial_reports_are_labelled_everywhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_run(tmp_path / "run", [[True], []], complete=False)
    output = tmp_path / "elsewhere" / "deep"
    assert cli.main(["report", str(folder), "--partial", "--output", str(output)]) == 0
    assert capsys.readouterr().out.startswith("PARTIAL: the run is not finished (1 of 2 samples")
    assert report_files(folder) == [] and len(report_files(output)) == 3
    assert "**PARTIAL: " in (output / "report.md").read_text()
    assert "PARTIAL: " in (output / "report.html").read_text()
    assert json.loads((output / "report.json").read_text())["complete"] is False


def test_markdown_keeps_names_from_being_markup(tmp_path: Path) -> None:
    prompts = [{"task_id": "a|b\n<b>`x`</b>\x1b[31m\ud800"}]
    folder = write_run(tmp_path / "run", [[True]], prompts=prompts, settings={"model": "*m*\n# heading"})
    assert cli.main(["report", str(folder)]) == 0
    text = (folder / "report.md").read_text()
    assert r"| a\|b \<b\>\`x\`\</b\>\\x1b\[31m\\ud800 | 1 |" in text
    assert r"\*m\* \# heading" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["report", "RUN", "--k", "5"], "pass@5 needs at least 5 samples of every problem, found 1"),
        (["report", "RUN", "--resamples", "0"], "resamples must be 1 to 10000000, found 0"),
        (["report", "RUN", "--seed", "-1"], "seed must be 0 or more, found -1"),
        (["report", "absent"], "absent is no run folder that can be reported: it has no summary.json"),
        (["report", "UNFINISHED"], "holds an unfinished run (1 of 2 samples"),
        (["report", "RUN", "--output", "RUN/summary.json"], "the report cannot be written to"),
        (["compare", "RUN", "absent"], "absent is no run folder"),
        (["compare", "RUN", "UNFINISHED"], "holds an unfinished run (1 of 2 samples"),
        (["compare", "RUN", "RUN", "--resamples", "-3"], "resamples must be 1 to 10000000, found -3"),
    ],
)
def test_errors_are_one_line_and_exit_code_two(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    run = write_run(tmp_path / "run", [[True], [False]])
    unfinished = write_run(tmp_path / "unfinished", [[True], []], complete=False)
    places = {"UNFINISHED": str(unfinished), "RUN": str(run), "RUN/summary.json": str(run / "summary.json")}
    assert cli.main([places.get(argument, argument) for argument in arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ") and captured.err.count("\n") == 1
    assert message in captured.err
    assert report_files(run) == []


def test_a_full_disk_leaves_no_half_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_run(tmp_path / "run", [[True]])

    def full_disk(source: Path, destination: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("evals.report.report.os.replace", full_disk)
    assert cli.main(["report", str(folder)]) == 2
    assert "No space left" in capsys.readouterr().err
    assert report_files(folder) == []


def test_a_page_is_part_of_the_package() -> None:
    # What pyproject.toml ships beside the modules; an editable install would not miss it.
    root = Path(cli.__file__).parents[1]
    patterns = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    shipped = {
        path.name for pattern in patterns["evals.report"] for path in (root / "evals/report").glob(pattern)
    }
    assert shipped == {"page.html.j2", "page.css", "page.js"}
