"""The ``evaluate`` command; ``laneformer evaluate`` offers the same.

evaluate humaneval --model checkpoints/mine --output results/mine
evaluate humaneval --model checkpoints/mine --samples 20 --temperature 0.8 --k 1 10
evaluate humaneval --verify-canonical
evaluate report results/mine
evaluate compare results/mine results/theirs
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from evals.generate import CanonicalGenerator, EngineGenerator, Generator
from evals.humaneval import HumanEvalResult, check_sampling, evaluate_humaneval
from evals.model_hash import model_sha256
from evals.problems import load_problems
from evals.report.cli import add_report_commands
from laneformer.errors import EvaluationError, LaneformerError

EXIT_USER_ERROR = 2
EXIT_INTERRUPTED = 130


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the suites, each a sub-command with its options, to ``parser``."""
    suites = parser.add_subparsers(dest="suite", metavar="SUITE", required=True)
    humaneval = suites.add_parser(
        "humaneval",
        help="164 Python functions from their docstrings (Chen et al. 2021)",
        description="Completes each problem's prompt, runs its tests in a sandbox and prints pass@k.",
    )
    add = humaneval.add_argument
    add("--model", metavar="PATH", help="checkpoint folder or engine file")
    add("--backend", default="auto", help="the engine's backend (default: %(default)s)")
    add("--output", metavar="DIR", type=Path, help="write samples.jsonl and summary.json; continues a run")
    add("--problems", metavar="FILE|NAME", help="a .jsonl or .jsonl.gz file, or a Hugging Face data set")
    add("--limit", metavar="N", type=int, help="only the first N problems")
    add("--samples", metavar="N", type=int, default=1, help="per problem (default: %(default)s)")
    add("--temperature", metavar="T", type=float, default=0.0, help="0 is greedy (default: %(default)s)")
    add("--top-p", metavar="P", type=float, default=1.0, help="nucleus sampling (default: %(default)s)")
    add("--max-new-tokens", metavar="N", type=int, default=512, help="per sample (default: %(default)s)")
    add("--k", metavar="K", type=int, nargs="+", default=[1], help="the k of pass@k (default: 1)")
    add("--seed", metavar="N", type=int, default=0, help="(default: %(default)s)")
    add("--timeout", metavar="S", type=float, default=10.0, help="seconds per program (default: %(default)s)")
    add("--memory-gb", metavar="G", type=float, default=2.0, help="GiB per process (default: %(default)s)")
    add("--workers", metavar="N", type=int, help="programs that run at once (default: one per processor)")
    add(
        "--verify-canonical",
        action="store_true",
        help="judge the problems' own solutions instead of a model: all must pass",
    )
    add_report_commands(suites)


def run(args: argparse.Namespace) -> int:
    """Runs what :func:`add_arguments` has parsed; returns the exit code."""
    if hasattr(args, "evaluate"):  # no suite
        command: Callable[[argparse.Namespace], int] = args.evaluate
        return command(args)
    if args.limit is not None and args.limit < 1:
        raise EvaluationError(f"--limit must be at least 1, found {args.limit}")
    if args.verify_canonical == (args.model is not None):
        raise EvaluationError("give either --model PATH or --verify-canonical")
    check_sampling(args.temperature, args.top_p, args.max_new_tokens, args.seed)  # before a model is loaded
    problems = load_problems(args.problems)[: args.limit]
    result = evaluate_humaneval(
        _generator(args),
        problems,
        samples_per_problem=args.samples,
        temperature=args.temperature,
        top_p=args.top_p,
        max_new_tokens=args.max_new_tokens,
        ks=args.k,
        seed=args.seed,
        timeout_seconds=args.timeout,
        memory_bytes=_bytes(args.memory_gb),
        workers=args.workers,
        output_dir=args.output,
        model="canonical solutions" if args.verify_canonical else str(Path(args.model).resolve()),
        # Only an output folder remembers it, and reading all weights takes a while.
        model_sha256=model_sha256(Path(args.model)) if args.model and args.output else None,
        hidden_paths=[Path(args.problems)] if args.problems is not None else [],
    )
    _print_result(result, len(problems))
    wrong = [sample for sample in result.samples if sample.status != "passed"]
    if args.verify_canonical:
        for sample in wrong:
            print(f"{sample.task_id}: {sample.status}, {sample.detail}")
    sys.stdout.flush()  # so that a closed pipe is met here and not when the interpreter ends
    return 1 if args.verify_canonical and wrong else 0


def _bytes(gibibytes: float) -> int:
    size = gibibytes * (1 << 30)
    if not math.isfinite(size):  # of the product, which overflows before the number does
        raise EvaluationError(f"--memory-gb must be a number of GiB up to 1024, found {gibibytes:g}")
    return int(size)


def _generator(args: argparse.Namespace) -> Generator | CanonicalGenerator:
    if args.verify_canonical:
        return CanonicalGenerator()
    from infer import Engine

    try:
        return EngineGenerator(Engine(args.model, backend=args.backend))
    except OSError as error:  # no permission, a name that is too long, a disk that fails
        raise EvaluationError(f"the model {args.model} cannot be read: {error}") from None


def _print_result(result: HumanEvalResult, problems: int) -> None:
    print(f"{problems} problems, {len(result.samples)} samples")
    for k, value in result.pass_at_k.items():
        print(f"  {f'pass@{k}':<10}{100 * value:>7.2f} %")
    for status, count in result.status_counts.items():
        print(f"  {status:<10}{count:>7}")
    missing = [name for name, active in result.isolation.items() if not active]
    if missing:
        print(f"  not isolated here: {', '.join(missing)}")
    if result.tokens_per_second is not None:
        print(f"  {result.tokens_per_second:.1f} tokens/s")


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
    except KeyboardInterrupt:  # finished samples are in the output folder
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader of our output went away: not an error of ours
        # What is still in the buffer would fail once more when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


if __name__ == "__main__":
    sys.exit(main())
