"""The ``evaluate`` command; ``laneformer evaluate`` offers the same.

evaluate humaneval --model checkpoints/mine --output results/mine
evaluate mbpp --model checkpoints/mine --problems mbpp.jsonl --prompt-format chat
evaluate basics --model checkpoints/mine --samples 20 --temperature 0.8 --k 1 10
evaluate humaneval --verify-canonical
evaluate report results/mine
evaluate retry-timeouts results/mine --timeout 60
evaluate serve-check --url http://localhost:8000/v1 --model NAME --suite humaneval
evaluate compare results/mine results/theirs
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence

from evals import suite_command
from evals.endpoint.cli import add_serve_check_command
from evals.report.cli import add_report_commands
from evals.retry_command import add_retry_command
from laneformer.errors import LaneformerError

EXIT_USER_ERROR = 2
EXIT_INTERRUPTED = 130


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the sub-commands, each with its options, to ``parser``."""
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    suite_command.add_commands(commands)
    add_report_commands(commands)
    add_retry_command(commands)
    add_serve_check_command(commands)


def run(args: argparse.Namespace) -> int:
    """Runs what :func:`add_arguments` has parsed; returns the exit code."""
    command: Callable[[argparse.Namespace], int] = args.evaluate
    return command(args)


def main(argv: Sequence[str] | None = None) -> int:
    """The console script; returns its exit code: 2 for an error that the user can fix, 130 for Ctrl-C."""
    parser = argparse.ArgumentParser(prog="evaluate", description="Evaluates a model.")
    add_arguments(parser)
    args = parser.parse_args(argv)
    try:
        return run(args)
    except LaneformerError as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return EXIT_USER_ERROR
    except KeyboardInterrupt:  # what is finished is in the output folder
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader of our output went away: not an error of ours
        # What is still in the buffer would fail once more when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


if __name__ == "__main__":
    sys.exit(main())
