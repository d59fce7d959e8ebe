"""``evaluate retry-timeouts``.

evaluate retry-timeouts results/mine --timeout 60
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from typing import Any

from evals.sandbox.runner import WALL_FACTOR
from evals.suites import SUITES, load_suite
from laneformer.errors import EvaluationError


def add_retry_command(commands: Any) -> None:
    """Adds the command to the sub-parsers ``commands``, with its function as ``evaluate``."""
    parser = commands.add_parser(
        "retry-timeouts",
        help="judge the timeouts of a run again, alone",
        description="Judges the programs that ran out of time again, one at a time and with other limits if "
        "asked, keeps both verdicts and writes summary and report anew.  Nothing is generated.",
    )
    add = parser.add_argument
    add("folder", metavar="RUN", type=Path, help="the --output folder of a run, finished or not")
    add("--problems", metavar="FILE|NAME", help="what the run was given as --problems")
    add("--timeout", metavar="S", type=float, help="processor seconds per program (default: the run's)")
    add(
        "--wall-timeout",
        metavar="S",
        type=float,
        help=f"seconds on the clock per program (default: the run's, or {WALL_FACTOR:g} times --timeout)",
    )
    add("--workers", metavar="N", type=int, default=1, help="programs at once (default: %(default)s)")
    parser.set_defaults(evaluate=run_retry)


def run_retry(args: argparse.Namespace) -> int:
    """Judges again and prints what became of the timeouts; returns 0."""
    try:
        from evals.retry import retry_timeouts, run_settings  # with numpy and jinja2, for the report
    except ModuleNotFoundError as error:
        raise EvaluationError(f"reports need {error.name}: pip install 'laneformer[eval]'") from None

    settings = run_settings(args.folder)
    if not isinstance(settings.get("suite"), str) or settings["suite"] not in SUITES:
        raise EvaluationError(f"{args.folder} holds a run of an unknown suite, {settings.get('suite')}")
    suite = load_suite(settings["suite"], args.problems, split=settings.get("split"))
    result = retry_timeouts(
        args.folder,
        suite.first(settings["problems"]),
        timeout_seconds=args.timeout,
        wall_seconds=args.wall_timeout,
        workers=args.workers,
    )
    print(f"{len(result.retried)} timeouts judged again")
    for status, count in Counter(sample.status for sample in result.retried).most_common():
        print(f"  {status:<10}{count:>7}")
    for k, value in result.pass_at_k.items():
        print(f"  {f'pass@{k}':<10}{100 * value:>7.2f} %")
    if not result.complete:
        print("  the run is not finished: the command that began it continues it")
    return 0
