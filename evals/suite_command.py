"""``evaluate SUITE``: the sub-commands that let a model solve a suite."""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path
from typing import Any

from evals.evaluate import SuiteResult, check_sampling, evaluate_suite
from evals.generate import CanonicalGenerator, EngineGenerator, Generator
from evals.model_hash import model_sha256
from evals.models import open_engine
from evals.prompts import BaseFormat, ChatFormat, PromptFormat
from evals.sandbox.runner import WALL_FACTOR
from evals.suites import SUITES, Suite, load_suite
from evals.suites.mbpp import SPLITS
from laneformer.errors import EvaluationError


def add_commands(commands: Any) -> None:
    """Adds one sub-command per suite to ``commands``, what ``add_subparsers`` returned."""
    for name, kind in SUITES.items():
        parser = commands.add_parser(
            name,
            help=kind.summary,
            description="Completes each problem's prompt, runs its tests in a sandbox and prints pass@k.",
        )
        add_options(parser, name)
        parser.set_defaults(evaluate=run_suite, suite=name)


def add_options(parser: argparse.ArgumentParser, name: str) -> None:
    """The options of the suite ``name``."""
    add = parser.add_argument
    kind = SUITES[name]
    add("--model", metavar="PATH", help="checkpoint folder or engine file")
    add("--backend", default="auto", help="auto, cpu, numpy or torch (default: %(default)s)")
    add_protocol_options(parser, has_splits=kind.has_splits)
    add(
        "--timeout",
        metavar="S",
        type=float,
        default=kind.timeout_seconds,
        help="seconds of processor time per program (default: %(default)s)",
    )
    add(
        "--verify-canonical",
        action="store_true",
        help="judge the problems' own solutions instead of a model: all must pass",
    )


def add_protocol_options(parser: argparse.ArgumentParser, *, has_splits: bool) -> None:
    """The options that do not depend on where the text comes from."""
    add = parser.add_argument
    add("--output", metavar="DIR", type=Path, help="write prompts, samples and summary; continues a run")
    add("--problems", metavar="FILE|NAME", help="a file of the published layout, or a Hugging Face data set")
    if has_splits:
        add("--split", choices=SPLITS, help="MBPP: which problems, by their numbers (default: test)")
    add("--limit", metavar="N", type=int, help="only the first N problems")
    add("--prompt-format", choices=("base", "chat"), default="base", help="(default: %(default)s)")
    if has_splits:
        add("--shots", metavar="N", type=int, help="MBPP: solved examples in a base prompt (default: 3)")
    add("--samples", metavar="N", type=int, default=1, help="per problem (default: %(default)s)")
    add("--temperature", metavar="T", type=float, default=0.0, help="0 is greedy (default: %(default)s)")
    add("--top-p", metavar="P", type=float, default=1.0, help="nucleus sampling (default: %(default)s)")
    add("--max-new-tokens", metavar="N", type=int, default=512, help="per sample (default: %(default)s)")
    add("--k", metavar="K", type=int, nargs="+", default=[1], help="the k of pass@k (default: 1)")
    add("--seed", metavar="N", type=int, default=0, help="(default: %(default)s)")
    add(
        "--wall-timeout",
        metavar="S",
        type=float,
        help=f"seconds on the clock per program (default: {WALL_FACTOR:g} times --timeout)",
    )
    add("--memory-gb", metavar="G", type=float, default=2.0, help="GiB per program (default: %(default)s)")
    add(
        "--workers",
        metavar="N",
        type=int,
        help="programs that run at once (default: one per processor, and no more than there is memory for)",
    )


def run_suite(args: argparse.Namespace) -> int:
    """Runs the suite; returns the exit code."""
    if args.verify_canonical == (args.model is not None):
        raise EvaluationError("give either --model PATH or --verify-canonical")
    if args.verify_canonical and args.prompt_format == "chat":
        raise EvaluationError("--verify-canonical has no model, and so no chat template: use base")
    # All this before a model is loaded, which may take a while.
    suite, prompt_format = asked_suite(args)
    generator: Generator | CanonicalGenerator = CanonicalGenerator()
    backend = None
    if not args.verify_canonical:
        engine = open_engine(args.model, args.backend)
        backend = engine.backend_name
        if engine.tokenizer is not None and args.prompt_format == "chat":
            prompt_format = ChatFormat(engine.tokenizer)
        generator = EngineGenerator(engine, add_bos=prompt_format.adds_bos)
    result = score(
        args,
        generator,
        suite,
        prompt_format,
        model="canonical solutions" if args.verify_canonical else str(Path(args.model).resolve()),
        # Only an output folder remembers it, and reading all weights takes a while.
        model_sha256=model_sha256(Path(args.model)) if args.model and args.output else None,
        backend=backend,
    )
    wrong = [sample for sample in result.samples if sample.status != "passed"]
    if args.verify_canonical:
        for sample in wrong:
            print(f"{sample.task_id}: {sample.status}, {sample.detail}")
    sys.stdout.flush()  # so that a closed pipe is met here and not when the interpreter ends
    return 1 if args.verify_canonical and wrong else 0


def asked_suite(args: argparse.Namespace) -> tuple[Suite, PromptFormat]:
    """The suite that the options ask for, and its base format; EvaluationError where they make no sense."""
    if args.limit is not None and args.limit < 1:
        raise EvaluationError(f"--limit must be at least 1, found {args.limit}")
    shots = getattr(args, "shots", None)
    if shots is not None and args.prompt_format == "chat":
        raise EvaluationError("--shots is for the prompt format base: chat prompts show no examples")
    check_sampling(args.temperature, args.top_p, args.max_new_tokens, args.seed)
    _bytes(args.memory_gb)
    suite = load_suite(args.suite, args.problems, split=getattr(args, "split", None)).first(args.limit)
    return suite, BaseFormat(suite.shots(shots))


def score(
    args: argparse.Namespace,
    generator: Generator | CanonicalGenerator,
    suite: Suite,
    prompt_format: PromptFormat,
    *,
    model: str,
    model_sha256: str | None = None,
    backend: str | None = None,
) -> SuiteResult:
    """Evaluates with the options of :func:`add_protocol_options`, and prints the result."""
    result = evaluate_suite(
        generator,
        suite,
        prompt_format=prompt_format,
        samples_per_problem=args.samples,
        temperature=args.temperature,
        top_p=args.top_p,
        max_new_tokens=args.max_new_tokens,
        ks=args.k,
        seed=args.seed,
        timeout_seconds=args.timeout,
        wall_seconds=args.wall_timeout,
        memory_bytes=_bytes(args.memory_gb),
        workers=args.workers,
        output_dir=args.output,
        model=model,
        model_sha256=model_sha256,
        backend=backend,
    )
    print_result(result, suite)
    if args.output is not None and result.status_counts["timeout"]:
        print(f"  to judge the timeouts again, alone: evaluate retry-timeouts {args.output}")
    return result


def _bytes(gibibytes: float) -> int:
    size = gibibytes * (1 << 30)
    if not math.isfinite(size):  # of the product, which overflows before the number does
        raise EvaluationError(f"--memory-gb must be a number of GiB up to 1024, found {gibibytes:g}")
    return int(size)


def print_result(result: SuiteResult, suite: Suite) -> None:
    """Prints pass@k, the counts and what was not isolated."""
    print(f"{suite.name}: {len(suite.problems)} problems, {len(result.samples)} samples")
    for k, value in result.pass_at_k.items():
        print(f"  {f'pass@{k}':<10}{100 * value:>7.2f} %")
    for status, count in result.status_counts.items():
        print(f"  {status:<10}{count:>7}")
    missing = [name for name, active in result.isolation.items() if not active]
    if missing:
        print(f"  not isolated here: {', '.join(missing)}")
    if result.tokens_per_second is not None:
        print(f"  {result.tokens_per_second:.1f} tokens/s")
