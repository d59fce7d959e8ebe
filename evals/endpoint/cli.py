"""``evaluate serve-check``: a suite against a model behind an OpenAI-compatible endpoint.

evaluate serve-check --url http://localhost:8000/v1 --model NAME --suite humaneval --output results/served
evaluate serve-check --url https://host/v1 --model NAME --suite mbpp --prompt-format chat --api-key-env KEY
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from evals.prompts import PromptFormat, QuestionFormat
from evals.suite_command import add_protocol_options, asked_suite, score
from evals.suites import SUITES
from laneformer.errors import EvaluationError


def add_serve_check_command(commands: Any) -> None:
    """Adds the command to the sub-parsers ``commands``, with its function as ``evaluate``."""
    parser = commands.add_parser(
        "serve-check",
        help="a suite against a model behind an OpenAI-compatible endpoint",
        description="Asks /completions (with --prompt-format chat: /chat/completions) for every sample, runs "
        "the tests in a sandbox and prints pass@k.",
    )
    add = parser.add_argument
    add("--url", required=True, help="the endpoint's address up to and with /v1")
    add("--model", required=True, metavar="NAME", help="what the endpoint calls the model")
    add("--suite", required=True, choices=SUITES)
    add("--api-key-env", metavar="VAR", help="the environment variable that holds the key")
    add("--concurrency", metavar="N", type=int, default=1, help="requests at once (default: %(default)s)")
    add(
        "--stream",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="end a request where the stop rule does (the default); else wait for whole answers, whose "
        "tokens are counted",
    )
    add(
        "--request-timeout",
        metavar="S",
        type=float,
        default=600.0,
        help="how long the server may be silent (default: %(default)s)",
    )
    add_protocol_options(parser, has_splits=True)
    add("--timeout", metavar="S", type=float, help="processor seconds per program (default: the suite's)")
    parser.set_defaults(evaluate=run_serve_check)


def run_serve_check(args: argparse.Namespace) -> int:
    """Scores the endpoint; returns 0."""
    try:
        from evals.endpoint.client import EndpointClient
        from evals.endpoint.generator import EndpointGenerator
    except ModuleNotFoundError as error:
        raise EvaluationError(f"serve-check needs {error.name}: pip install 'laneformer[eval]'") from None
    chat = args.prompt_format == "chat"
    if args.shots is not None and not SUITES[args.suite].has_splits:
        raise EvaluationError(f"{args.suite} has no solved examples: leave --shots out")
    suite, prompt_format = asked_suite(args)
    asked: PromptFormat = QuestionFormat() if chat else prompt_format
    client = EndpointClient(args.url, args.model, api_key=_key(args), timeout_seconds=args.request_timeout)
    generator = EndpointGenerator(
        client, api="chat" if chat else "completions", stream=args.stream, concurrency=args.concurrency
    )
    generator.check(temperature=args.temperature, top_p=args.top_p)
    score(
        args,
        generator,
        suite,
        asked,
        model=f"{client.model} at {client.url}",
        backend="chat endpoint" if chat else "completions endpoint",
    )
    sys.stdout.flush()  # so that a closed pipe is met here and not when the interpreter ends
    return 0


def _key(args: argparse.Namespace) -> str | None:
    if args.api_key_env is None:
        return None
    try:
        return os.environ[args.api_key_env]
    except KeyError:
        raise EvaluationError(f"the environment variable {args.api_key_env} is not set") from None
