"""Command line of the engine: ``laneformer export``, ``generate`` and ``bench``.

Each command is a function that adds its arguments to an argparse parser and one that runs it and returns
the exit code.  Errors that a user can fix are :class:`LaneformerError`, left to the caller to print.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from dataclasses import asdict
from pathlib import Path

from infer import bench
from infer.backends import AUTO, backend_names
from infer.engine import Engine
from infer.export import EXPORT_DTYPES, KEEP, export_engine_file
from infer.request import check_unicode
from infer.terminal import read_standard_input, show
from laneformer.errors import RequestError
from laneformer.tokenizer import Tokenizer


def add_export_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``laneformer export``."""
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="checkpoint folder")
    parser.add_argument("out", metavar="OUT", help="engine file to write")
    parser.add_argument(
        "--dtype", choices=EXPORT_DTYPES, default=KEEP, help="type of the weights (default: keep)"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace OUT where it exists")


def run_export(args: argparse.Namespace) -> int:
    """Write an engine file and say what it holds."""
    summary = export_engine_file(args.checkpoint, args.out, dtype=args.dtype, overwrite=args.overwrite)
    show(
        f"{summary.path}: {summary.tensors} tensors, {summary.size / 1e6:.1f} MB, {summary.dtype}, "
        f"source {summary.source_sha256[:16]}"
    )
    return 0


def add_generate_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``laneformer generate``."""
    parser.add_argument("model", metavar="MODEL", help="engine file or checkpoint folder")
    prompt = parser.add_mutually_exclusive_group()
    prompt.add_argument("--prompt", metavar="TEXT", help="prompt (default: standard input)")
    prompt.add_argument("--prompt-file", metavar="FILE", help="file that holds the prompt, UTF-8")
    prompt.add_argument("--token-ids", metavar="1,2,3", help="prompt in token ids")
    parser.add_argument("--chat", action="store_true", help="put the prompt into the model's chat template")
    parser.add_argument("--max-new-tokens", type=int, default=256, metavar="N", help="default: 256")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 (default): greedy")
    parser.add_argument("--top-k", type=int, default=0, metavar="K", help="0 (default): off")
    parser.add_argument("--top-p", type=float, default=1.0, metavar="P", help="1 (default): off")
    parser.add_argument("--min-p", type=float, default=0.0, metavar="P", help="0 (default): off")
    parser.add_argument("--repetition-penalty", type=float, default=1.0, metavar="R", help="1 (default): off")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--stop", action="append", default=[], metavar="TEXT", help="end here; may be repeated"
    )
    _add_backend_argument(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object per token instead of text")


def run_generate(args: argparse.Namespace) -> int:
    """Print the answer as it is generated, and a summary on standard error."""
    engine = Engine(args.model, backend=args.backend)
    token_ids = _prompt_ids(args, engine.tokenizer)
    tokens = engine.generate(
        token_ids,
        max_new_tokens=args.max_new_tokens,
        temperature=args.temperature,
        top_k=args.top_k,
        top_p=args.top_p,
        min_p=args.min_p,
        repetition_penalty=args.repetition_penalty,
        seed=args.seed,
        stop=args.stop,
    )
    count, reason = 0, "length"  # a request for no tokens has reached its length
    start = time.perf_counter()
    for token in tokens:
        show(json.dumps(asdict(token)) if args.json else token.text, end="\n" if args.json else "")
        count, reason = count + 1, token.finish_reason or reason
    seconds = time.perf_counter() - start
    if not args.json:
        show("")
    rate = f"{count / seconds:.1f}" if count else "n/a"
    print(f"{count} tokens, {rate} tokens/s with a prompt of {len(token_ids)}, {reason}", file=sys.stderr)
    return 0


def add_bench_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``laneformer bench``."""
    parser.add_argument("what", choices=["decode"], help="what to measure")
    parser.add_argument("model", metavar="MODEL", help="engine file or checkpoint folder")
    _add_backend_argument(parser)
    parser.add_argument(
        "--prompt-tokens",
        type=int,
        nargs="+",
        default=[],
        metavar="N",
        help=f"lengths of prompts (default: {bench.DEFAULT_PROMPT}, where no --context is given)",
    )
    parser.add_argument(
        "--context",
        type=int,
        nargs="+",
        default=[],
        metavar="N",
        help="tokens of prompt and answer together: the answer ends there",
    )
    parser.add_argument("--new-tokens", type=int, default=64, metavar="N", help="default: 64")
    parser.add_argument("--runs", type=int, default=5, metavar="N", help="runs of each size (default: 5)")
    parser.add_argument("--json", metavar="FILE", help="write all numbers here")


def run_bench(args: argparse.Namespace) -> int:
    """Print a table of decoding speeds; with ``--json`` write the numbers and what they were measured on."""
    wanted = bench.settings(args.prompt_tokens, args.context, args.new_tokens)
    engine = Engine(args.model, backend=args.backend)
    benchmark = bench.bench_decode(engine, wanted, runs=args.runs)
    model = Path(args.model).name  # where it lies is nobody's business in a result that is shared
    device = getattr(engine.backend, "device_name", None)
    hardware = ", ".join([*([device] if device else []), bench.host_cpu()])
    print(f"{model}, backend {engine.backend_name}, {args.new_tokens} new tokens, {hardware}")
    print(bench.table(benchmark))
    if args.json:
        text = json.dumps(bench.report(engine, model, benchmark, _bench_command(args, model)), indent=1)
        try:
            Path(args.json).write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            raise RequestError(f"{args.json}: cannot be written ({error.strerror})") from None
    return 0


def _bench_command(args: argparse.Namespace, model: str) -> str:
    """The command that measures the same again."""
    words = ["laneformer", "bench", args.what, model, "--backend", args.backend]
    for option, sizes in (("--prompt-tokens", args.prompt_tokens), ("--context", args.context)):
        words += [option, *map(str, sizes)] if sizes else []
    return shlex.join([*words, "--new-tokens", str(args.new_tokens), "--runs", str(args.runs)])


def _add_backend_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--backend",
        default=AUTO,
        metavar="NAME",
        help=f"one of {', '.join(backend_names())} (default: {AUTO})",
    )


def _prompt_ids(args: argparse.Namespace, tokenizer: Tokenizer | None) -> list[int]:
    """The prompt in token ids, from whichever argument gives it."""
    if args.token_ids is not None:
        if args.chat:
            raise RequestError("--chat needs a text: --token-ids are taken as they are")
        try:
            return [int(part) for part in args.token_ids.split(",")]
        except ValueError:
            raise RequestError(
                f"--token-ids: expected whole numbers like 1,2,3, found {args.token_ids!r}"
            ) from None
    if tokenizer is None:
        raise RequestError(f"{args.model} has no tokenizer: give the prompt as --token-ids 1,2,3")
    text = _prompt_text(args)
    if args.chat:
        rendered = tokenizer.apply_chat_template([{"role": "user", "content": text}])
        return tokenizer.encode(rendered, add_bos=False)
    return tokenizer.encode(text)


def _prompt_text(args: argparse.Namespace) -> str:
    if args.prompt is not None:
        check_unicode("--prompt", args.prompt)  # Python keeps bytes that are not UTF-8 as surrogates
        return str(args.prompt)
    if args.prompt_file is None:
        return read_standard_input()
    try:
        return Path(args.prompt_file).read_text(encoding="utf-8")
    except OSError as error:
        raise RequestError(f"{args.prompt_file}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError as error:
        raise RequestError(f"{args.prompt_file}: not UTF-8 text ({error})") from None
