"""``evaluate report`` and ``evaluate compare``.

evaluate report results/mine --k 1 10
evaluate compare results/mine results/theirs --json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from evals.report.printable import printable
from laneformer.errors import EvaluationError


def add_report_commands(commands: Any) -> None:
    """Adds the two commands to the sub-parsers ``commands``, each with its function as ``evaluate``."""
    report = commands.add_parser(
        "report",
        help="score a run folder: report.json, report.md and a page in which to read the samples",
        description="Reads a run folder and writes report.json, report.md and report.html.",
    )
    report.add_argument("folder", metavar="RUN", type=Path, help="the --output folder of a run")
    report.add_argument("--k", metavar="K", type=int, nargs="+", help="the k of pass@k (default: the run's)")
    report.add_argument("--output", metavar="DIR", type=Path, help="write here (default: into RUN)")
    report.add_argument("--partial", action="store_true", help="an unfinished run too, and say so in it")
    report.set_defaults(evaluate=run_report)

    compare = commands.add_parser(
        "compare",
        help="two runs of one suite, problem by problem, with a paired test",
        description="Compares pass@1 of two runs on the same problems.",
    )
    compare.add_argument("first", metavar="A", type=Path, help="a run folder")
    compare.add_argument("second", metavar="B", type=Path, help="a run folder")
    compare.add_argument("--json", action="store_true", help="print one JSON object")
    compare.set_defaults(evaluate=run_compare)

    for parser in (report, compare):
        add = parser.add_argument
        add(
            "--resamples",
            metavar="N",
            type=int,
            default=10_000,
            help="of the bootstrap (default: %(default)s)",
        )
        add("--seed", metavar="N", type=int, default=0, help="of the bootstrap (default: %(default)s)")


def run_report(args: argparse.Namespace) -> int:
    """Writes the report of ``args.folder`` and prints its short table; returns 0."""
    # numpy and jinja2, which the suites do without.
    from evals.report.markdown import short_table
    from evals.report.run import read_run

    try:
        from evals.report.report import build_report, write_report
    except ModuleNotFoundError as error:
        raise EvaluationError(f"reports need {error.name}: pip install 'laneformer[eval]'") from None

    run = read_run(args.folder)
    report = build_report(run, ks=args.k, resamples=args.resamples, seed=args.seed, partial=args.partial)
    paths = write_report(run, report, args.output or args.folder)
    print(short_table(report))
    print(f"read the samples in {printable(str(paths[-1]))}")
    return 0


def run_compare(args: argparse.Namespace) -> int:
    """Prints the comparison of ``args.first`` and ``args.second``; returns 0."""
    from evals.report.compare import compare_runs, comparison_text
    from evals.report.run import read_run

    first, second = read_run(args.first), read_run(args.second)
    comparison = compare_runs(first, second, resamples=args.resamples, seed=args.seed)
    print(json.dumps(comparison, indent=2) if args.json else comparison_text(comparison))
    return 0
