"""From a run to its report: the numbers, as one JSON object.

report = build_report(read_run(Path("results/mine")), ks=[1, 10])
report["pass_at_k"][0]      # {"k": 1, "value": 0.31, "low": 0.24, "high": 0.38}
"""

from __future__ import annotations

import contextlib
import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evals.passk import pass_at_k
from evals.report.markdown import markdown
from evals.report.page import page
from evals.report.run import ProblemResult, Run
from evals.report.statistics import CONFIDENCE, DEFAULT_RESAMPLES, bootstrap_interval, check_resampling
from evals.sandbox.runner import STATUSES
from laneformer.errors import EvaluationError


def build_report(
    run: Run,
    *,
    ks: Sequence[int] | None = None,
    resamples: int = DEFAULT_RESAMPLES,
    seed: int = 0,
    partial: bool = False,
) -> dict[str, Any]:
    """The report of ``run``; ``ks`` are the k of pass@k, by default those that the run was asked for.

    With ``partial``, an unfinished run is scored on the problems that have all their samples, and the
    report says so.  Raises EvaluationError for an unfinished run otherwise, for a problem with fewer than
    k samples, and for numbers of resamples that make no sense.
    """
    check_resampling(resamples, seed)
    if not partial:
        run.require_complete()
    scored = run.whole_problems
    if not scored:
        raise EvaluationError(f"{run.folder}: no problem has all its samples yet ({run.progress})")
    samples = run.samples
    statuses = Counter(sample.status for sample in samples)
    tokens = [sample.tokens for sample in samples if sample.tokens is not None]
    return {
        "settings": dict(run.settings),
        "complete": run.complete,
        "progress": run.progress,
        "problems": len(run.problems),
        "problems_scored": len(scored),
        "samples": len(samples),
        "pass_at_k": [
            _score(scored, k, resamples, seed) for k in sorted(set(ks or run.requested_ks or (1,)))
        ],
        "interval": {
            "method": "percentile bootstrap over problems",
            "confidence": CONFIDENCE,
            "resamples": resamples,
            "seed": seed,
        },
        "status_counts": {status: statuses[status] for status in STATUSES},
        "retried_timeouts": dict(Counter(retry.status for retry in run.retried)),
        "tokens": {"samples_counted": len(tokens), "total": sum(tokens)} if tokens else None,
        "tokens_per_second": run.tokens_per_second,
        "isolation": dict(run.isolation),
        "per_problem": [_problem_row(problem) for problem in run.problems],
    }


def _score(scored: Sequence[ProblemResult], k: int, resamples: int, seed: int) -> dict[str, Any]:
    values = [pass_at_k(len(problem.samples), problem.passed, k) for problem in scored]
    low, high = bootstrap_interval(values, resamples=resamples, seed=seed)
    # Where every problem scores alike, the interval has no width, which is no certainty.
    return {
        "k": k,
        "value": sum(values) / len(values),
        "low": low,
        "high": high,
        "all_alike": len(set(values)) == 1,
    }


def _problem_row(problem: ProblemResult) -> dict[str, Any]:
    samples = problem.samples
    statuses = Counter(sample.status for sample in samples)
    return {
        "task_id": problem.asked.task_id,
        "n": len(samples),
        "c": problem.passed,
        "pass@1": problem.passed / len(samples) if samples else None,
        "statuses": {status: statuses[status] for status in STATUSES if statuses[status]},
        "seconds": round(sum(sample.seconds for sample in samples), 4),
        "longest_seconds": max((sample.seconds for sample in samples), default=None),
    }


def write_report(run: Run, report: Mapping[str, Any], folder: Path) -> list[Path]:
    """Writes report.json, report.md and report.html into ``folder``; returns their paths.

    Each is replaced at once or not at all.  Raises EvaluationError where they cannot be written.
    """
    texts = {
        "report.json": json.dumps(report, indent=2, allow_nan=False) + "\n",
        "report.md": markdown(report),
        "report.html": page(run, report),
    }
    temporary = folder / "report.partial"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            # The HTML may hold halves of surrogate pairs, from a setting; nothing else can here.
            temporary.write_text(text, encoding="utf-8", errors="xmlcharrefreplace")
            os.replace(temporary, folder / name)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise EvaluationError(f"the report cannot be written to {folder}: {error}") from None
    return [folder / name for name in texts]
