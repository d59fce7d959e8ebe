"""Two runs of one suite, problem by problem: is the difference more than chance?

comparison = compare_runs(read_run(Path("results/a")), read_run(Path("results/b")))
comparison["test"]["p_value"]
"""

from __future__ import annotations

from typing import Any

from evals.report.markdown import shown
from evals.report.printable import printable
from evals.report.run import ProblemResult, Run
from evals.report.statistics import (
    CONFIDENCE,
    DEFAULT_RESAMPLES,
    bootstrap_interval,
    check_resampling,
    mcnemar_p_value,
    sign_flip_p_value,
)
from laneformer.errors import EvaluationError

# Without these being equal, no problem of one run is the same question as in the other.  The number of
# samples is among them because the test asks what would change if the two runs were swapped.
_MUST_BE_EQUAL = ("suite", "problems_sha256", "prompt_format", "shots", "samples_per_problem")


def compare_runs(
    first: Run, second: Run, *, resamples: int = DEFAULT_RESAMPLES, seed: int = 0
) -> dict[str, Any]:
    """pass@1 of both runs, its difference (second - first) with an interval, and a paired test.

    Raises EvaluationError, naming what differs, for runs of other problems or prompts, and for an
    unfinished run.
    """
    check_resampling(resamples, seed)
    for run in (first, second):
        run.require_complete()
    _check_comparable(first, second)
    pairs = list(zip(first.problems, second.problems, strict=True))
    samples = first.samples_per_problem
    gains = [theirs.passed - ours.passed for ours, theirs in pairs]
    low, high = bootstrap_interval([gain / samples for gain in gains], resamples=resamples, seed=seed)
    return {
        "runs": [str(run.folder) for run in (first, second)],
        "settings": {name: first.settings[name] for name in _MUST_BE_EQUAL},
        "different_settings": _differences(first, second),
        "prompts_that_differ": sum(
            ours.asked.prompt_sha256 != theirs.asked.prompt_sha256 for ours, theirs in pairs
        ),
        "problems": len(pairs),
        "pass@1": [
            sum(problem.passed for problem in run.problems) / (samples * len(pairs))
            for run in (first, second)
        ],
        "difference": {
            "value": sum(gains) / (samples * len(pairs)),
            "low": low,
            "high": high,
            "confidence": CONFIDENCE,
            "method": "paired percentile bootstrap over problems",
            "resamples": resamples,
            "seed": seed,
        },
        "test": _test(gains, samples),
        "first_better": [_pair(*pair) for pair, gain in zip(pairs, gains, strict=True) if gain < 0],
        "second_better": [_pair(*pair) for pair, gain in zip(pairs, gains, strict=True) if gain > 0],
    }


def _check_comparable(first: Run, second: Run) -> None:
    for run in (first, second):
        missing = [name for name in _MUST_BE_EQUAL if name not in run.settings]
        if missing:
            raise EvaluationError(f"{run.folder} does not say its {', '.join(missing)}: make the run anew")
    wrong = [name for name in _MUST_BE_EQUAL if first.settings[name] != second.settings[name]]
    if wrong:
        changes = "; ".join(
            f"{name} is {shown(first.settings[name])} and {shown(second.settings[name])}" for name in wrong
        )
        raise EvaluationError(
            f"{first.folder} and {second.folder} cannot be compared problem by problem: {changes}"
        )
    if [item.asked.task_id for item in first.problems] != [item.asked.task_id for item in second.problems]:
        raise EvaluationError(
            f"{first.folder} and {second.folder} say that their problems are the same, and hold other "
            "task ids: one of the folders has been changed"
        )


def _differences(first: Run, second: Run) -> dict[str, list[Any]]:
    names = {**first.settings, **second.settings}
    pairs = {name: [first.settings.get(name), second.settings.get(name)] for name in names}
    return {name: values for name, values in pairs.items() if values[0] != values[1]}


def _test(gains: list[int], samples: int) -> dict[str, Any]:
    if samples == 1:
        only_first, only_second = gains.count(-1), gains.count(1)
        return {
            "method": "McNemar, exact",
            "only_first_passed": only_first,
            "only_second_passed": only_second,
            "p_value": mcnemar_p_value(only_first, only_second),
        }
    return {
        "method": "paired permutation (sign flips), exact",
        "problems_that_differ": sum(gain != 0 for gain in gains),
        "p_value": sign_flip_p_value(gains),
    }


def _pair(first: ProblemResult, second: ProblemResult) -> dict[str, Any]:
    return {
        "task_id": first.asked.task_id,
        "passed": [first.passed, second.passed],
        "statuses": [sorted({sample.status for sample in item.samples}) for item in (first, second)],
    }


def comparison_text(comparison: dict[str, Any]) -> str:
    """The comparison for the terminal."""
    first, second = (printable(name) for name in comparison["runs"])
    scores, difference, test = comparison["pass@1"], comparison["difference"], comparison["test"]
    settings = comparison["settings"]
    lines = [
        f"A  {first}",
        f"B  {second}",
        f"{printable(shown(settings['suite']))}, {comparison['problems']} problems, "
        f"{settings['samples_per_problem']} samples each, "
        f"prompt format {printable(shown(settings['prompt_format']))}",
    ]
    lines += [
        f"  {printable(name)}: A {printable(shown(values[0]))}, B {printable(shown(values[1]))}"
        for name, values in comparison["different_settings"].items()
    ]
    if comparison["prompts_that_differ"]:
        lines.append(
            f"  the exact prompt differs on {comparison['prompts_that_differ']} problems, as it does where "
            "models have chat templates of their own"
        )
    lines += [
        f"pass@1 A {100 * scores[0]:.2f} %, B {100 * scores[1]:.2f} %",
        f"B - A {100 * difference['value']:+.2f} points, {100 * difference['confidence']:g} % interval "
        f"{100 * difference['low']:+.2f} to {100 * difference['high']:+.2f} ({difference['method']}, "
        f"{difference['resamples']} resamples, seed {difference['seed']})",
        f"{test['method']}: p = {test['p_value']:.4g}",
    ]
    lines += _side("A better", comparison["first_better"], settings["samples_per_problem"])
    lines += _side("B better", comparison["second_better"], settings["samples_per_problem"])
    return "\n".join(lines)


def _side(title: str, rows: list[dict[str, Any]], samples: int) -> list[str]:
    lines = [f"{title}: {len(rows)} problems"]
    for row in rows:
        (ours, theirs), (our_statuses, their_statuses) = row["passed"], row["statuses"]
        lines.append(
            f"  {printable(row['task_id'])}: A {ours}/{samples} ({', '.join(our_statuses)}), "
            f"B {theirs}/{samples} ({', '.join(their_statuses)})"
        )
    return lines
