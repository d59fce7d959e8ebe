"""Judges the timeouts of a run again, alone: a busy machine may have made them.

    result = retry_timeouts(Path("results/mine"), load_suite("humaneval"), timeout_seconds=60.0)

Nothing is generated again, and no other verdict is touched.  The first verdicts stay in ``samples.jsonl``,
later ones go to ``retries.jsonl``, where the last of a sample counts.  Summary and report are written anew.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from evals.evaluate import checked_limits
from evals.folder_lock import FolderLock
from evals.json_lines import append_line, replace_file
from evals.judging import Judges, pool_size, progress_bar
from evals.passk import mean_pass_at_k
from evals.problems import fingerprint
from evals.records import RETRIES, CompletionRecord, Retry, Sample, read_samples, with_retries
from evals.report.report import build_report, write_report
from evals.report.run import read_run
from evals.sandbox.folders import hideable, remove_abandoned
from evals.sandbox.runner import STATUSES, Limits, Sandbox
from evals.suites import Suite
from laneformer.errors import EvaluationError


@dataclass(frozen=True)
class RetryResult:
    """What judging again came to."""

    retried: list[Sample]
    """The samples that had run out of time, with their new verdicts."""
    complete: bool
    """Whether the run has all its samples; summary and report were written anew only then."""
    pass_at_k: dict[int, float]
    """As the summary has it now; empty while the run is not complete."""


def run_settings(folder: Path) -> dict[str, Any]:
    """The settings of the run in ``folder``; EvaluationError where there is none."""
    return dict(read_run(folder).settings)


def retry_timeouts(
    folder: Path,
    suite: Suite,
    *,
    timeout_seconds: float | None = None,
    wall_seconds: float | None = None,
    workers: int = 1,
    progress: bool = True,
) -> RetryResult:
    """Judges every sample in ``folder`` whose last verdict is ``timeout``, of a finished run or not.

    ``timeout_seconds`` is by default that of the run; for it and ``wall_seconds`` see
    :class:`evals.sandbox.runner.Limits`.  ``suite`` must be the one that the run was about.  Raises
    EvaluationError where it is not, and where the folder holds no run or is damaged.
    """
    settings = run_settings(folder)
    if fingerprint(suite.problems) != settings.get("problems_sha256"):
        raise EvaluationError(f"{folder} holds a run with other problems: give its own with --problems")
    if timeout_seconds is None:
        timeout_seconds = _number(settings, "timeout_seconds", folder)
        if wall_seconds is None and "wall_seconds" in settings:
            wall_seconds = _number(settings, "wall_seconds", folder)
    memory_bytes = int(_number(settings, "memory_bytes", folder))
    limits = checked_limits(timeout_seconds, wall_seconds, memory_bytes, workers)
    lock = FolderLock(folder)
    try:
        return _retry(folder, suite, limits, workers, progress)
    finally:
        lock.close()


def _number(settings: dict[str, Any], name: str, folder: Path) -> float:
    value = settings.get(name)
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise EvaluationError(f"{folder / 'summary.json'} is damaged: {name} is {value!r}, not a number")
    return float(value)


def _retry(folder: Path, suite: Suite, limits: Limits, workers: int, progress: bool) -> RetryResult:
    first, retries = read_samples(folder)
    report = folder / "report.json"
    report_options = (
        _report_options(report) if report.exists() else None
    )  # damaged: said before anything is done
    waiting = [sample for sample in with_retries(first, retries) if sample.status == "timeout"]

    def keep(sample: Sample) -> None:
        retry = Retry(
            sample.task_id,
            sample.sample,
            sample.status,
            sample.detail,
            sample.seconds,
            timeout_seconds=limits.timeout_seconds,
            wall_seconds=limits.clock_seconds,
        )
        try:
            append_line(folder / RETRIES, asdict(retry))
        except OSError as error:
            raise EvaluationError(f"{folder} cannot be written: {error}") from None
        if bar is not None:
            bar.update()

    remove_abandoned()
    hidden = [*suite.answer_locations, hideable(folder)]
    sandbox = Sandbox(limits, hidden_paths=hidden)
    sandbox.isolation()  # which no program may lack from here on
    problems = {problem.task_id: problem for problem in suite.problems}
    bar = progress_bar(len(waiting), suite.name, progress)
    try:
        with Judges(sandbox, pool_size(limits.memory_bytes, workers), keep) as judges:
            for sample in waiting:
                judges.submit(problems[sample.task_id], _completion(sample), sample.program)
            retried = judges.results()
    finally:
        if bar is not None:
            bar.close()
    return _rewrite(folder, retried, report_options)


def _completion(sample: Sample) -> CompletionRecord:
    return CompletionRecord(
        task_id=sample.task_id,
        sample=sample.sample,
        prompt_sha256=sample.prompt_sha256,
        completion=sample.completion,
        refusal="",
        seed=sample.seed,
        tokens=sample.tokens,
        generation_seconds=0.0,
    )


def _rewrite(folder: Path, retried: list[Sample], report_options: dict[str, Any] | None) -> RetryResult:
    """Summary and, where there is one, report by the last verdicts."""
    path = folder / "summary.json"
    summary = json.loads(path.read_text(encoding="utf-8"))
    if not summary["complete"]:
        return RetryResult(retried, False, {})
    run = read_run(folder)
    counts = [(len(problem.samples), problem.passed) for problem in run.problems]
    statuses = Counter(sample.status for sample in run.samples)
    pass_at_k = {k: mean_pass_at_k(counts, k) for k in run.requested_ks}
    summary["pass_at_k"] = {str(k): value for k, value in pass_at_k.items()}
    summary["status_counts"] = {status: statuses[status] for status in STATUSES}
    summary["retried_timeouts"] = len(run.retried)
    try:
        replace_file(path, json.dumps(summary, indent=2) + "\n")
    except OSError as error:
        raise EvaluationError(f"{path} cannot be written: {error}") from None
    if report_options is not None:
        write_report(run, build_report(run, **report_options), folder)
    return RetryResult(retried, True, pass_at_k)


def _report_options(path: Path) -> dict[str, Any]:
    """How the report that is there was asked for."""
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
        interval = report["interval"]
        return {
            "ks": [int(row["k"]) for row in report["pass_at_k"]],
            "resamples": int(interval["resamples"]),
            "seed": int(interval["seed"]),
        }
    except (OSError, ValueError, LookupError, TypeError):
        raise EvaluationError(
            f"{path} is damaged: write it anew with evaluate report {path.parent}"
        ) from None
