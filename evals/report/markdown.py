"""A report as Markdown: the scores, the settings and the table of problems."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from evals.report.printable import printable

# Whatever Markdown or HTML could read as markup; GitHub and CommonMark take a backslash before each.
_MARKUP = re.compile(r"([\\`*_{}\[\]<>#|~&!])")


def markdown(report: Mapping[str, Any]) -> str:
    """The report of :func:`evals.report.report.build_report` as one Markdown document."""
    settings = report["settings"]
    lines = [f"# {_plain(settings.get('suite', 'evaluation'))}: {_plain(settings.get('model', ''))}", ""]
    if not report["complete"]:
        lines += [f"**{partial_note(report)}**", ""]
    lines += _table(
        ["", "score", "interval"],
        [
            [f"pass@{row['k']}", _percent(row["value"]), f"{_percent(row['low'])} to {_percent(row['high'])}"]
            for row in report["pass_at_k"]
        ],
    )
    lines += ["", interval_note(report), ""]
    lines += _table(["status", "samples"], [[name, n] for name, n in report["status_counts"].items()])
    lines += ["", *(f"- {note}" for note in notes(report)), "", "## Settings", ""]
    lines += _table(["setting", "value"], [[name, shown(value)] for name, value in settings.items()])
    lines += ["", "## Problems", ""]
    rows = [
        [
            row["task_id"],
            row["n"],
            row["c"],
            "" if row["pass@1"] is None else f"{row['pass@1']:.2f}",
            ", ".join(f"{status} {count}" for status, count in row["statuses"].items()),
            f"{row['seconds']:.2f}",
            "" if row["longest_seconds"] is None else f"{row['longest_seconds']:.2f}",
        ]
        for row in report["per_problem"]
    ]
    lines += _table(["problem", "n", "c", "pass@1", "statuses", "seconds", "longest"], rows)
    return "\n".join(lines) + "\n"


def short_table(report: Mapping[str, Any]) -> str:
    """A few lines for the terminal."""
    lines = [] if report["complete"] else [partial_note(report)]
    lines.append(f"{report['problems_scored']} problems, {report['samples']} samples")
    lines += [
        f"  {'pass@' + str(row['k']):<10}{100 * row['value']:>7.2f} %   "
        f"({_percent(row['low'])} to {_percent(row['high'])})"
        for row in report["pass_at_k"]
    ]
    lines += [f"  {status:<10}{count:>7}" for status, count in report["status_counts"].items()]
    if report["tokens_per_second"] is not None:
        lines.append(f"  {report['tokens_per_second']:.1f} tokens/s")
    return "\n".join([*lines, interval_note(report)])


def partial_note(report: Mapping[str, Any]) -> str:
    """What a report of an unfinished run must say first."""
    return (
        f"PARTIAL: the run is not finished ({report['progress']}); the scores are of the "
        f"{report['problems_scored']} problems that have all their samples and are no score of the suite."
    )


def interval_note(report: Mapping[str, Any]) -> str:
    """How the intervals were made."""
    interval = report["interval"]
    note = (
        f"{100 * interval['confidence']:g} % intervals: {interval['method']}, {interval['resamples']} "
        f"resamples, seed {interval['seed']}."
    )
    alike = [f"pass@{row['k']}" for row in report["pass_at_k"] if row["all_alike"]]
    if alike:
        note += (
            f" All problems have the same {', '.join(alike)}, so resampling them shows no width: "
            "read no certainty into that."
        )
    return note


def notes(report: Mapping[str, Any]) -> list[str]:
    """Speed, tokens and what was not isolated."""
    speed = report["tokens_per_second"]
    tokens = report["tokens"]
    missing = [name for name, active in report["isolation"].items() if not active]
    retried = ", ".join(f"{status} {count}" for status, count in report["retried_timeouts"].items())
    return [
        "generation speed: " + ("not measured" if speed is None else f"{speed:.1f} tokens/s"),
        "generated tokens: "
        + (
            "not counted"
            if tokens is None
            else f"{tokens['total']} in the {tokens['samples_counted']} samples whose generator counts them"
        ),
        "isolation that was not active: " + (", ".join(missing) or "none"),
        "timeouts that were judged again, and their later verdicts: " + (retried or "none"),
    ]


def shown(value: Any) -> str:
    """A setting's value as text."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _percent(value: float) -> str:
    return f"{100 * value:.2f} %"


def _plain(value: Any) -> str:
    """``value`` on one line, without anything that is markup."""
    return _MARKUP.sub(r"\\\1", printable(" ".join(str(value).split())))


def _table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return lines + [f"| {' | '.join(_plain(cell) for cell in row)} |" for row in rows]
