"""The ``laneformer`` command: finds the command asked for and turns user errors into one line.

This is the one place that knows all packages.  It imports a command's module only when the command is
asked for, so ``generate`` runs where torch is not installed and ``doctor`` runs where nothing is.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Sequence

from laneformer import __version__
from laneformer.errors import LaneformerError

EXIT_USER_ERROR = 2
EXIT_INTERRUPTED = 130

# Commands with options of their own: (module, function that adds arguments, function that runs).
COMMANDS = {
    "evaluate": ("evals.cli", "add_arguments", "run", "score a model on a problem suite"),
    "export": ("infer.cli", "add_export_arguments", "run_export", "turn a checkpoint into an engine file"),
    "import": (
        "laneformer.importing.cli",
        "add_arguments",
        "run",
        "turn a Llama or Qwen3 model (Hugging Face folder, GGUF file) into a checkpoint",
    ),
    "generate": ("infer.cli", "add_generate_arguments", "run_generate", "continue a prompt"),
    "bench": ("infer.cli", "add_bench_arguments", "run_bench", "measure decoding speed"),
    "plan": (
        "infer.plan.cli",
        "add_plan_arguments",
        "run_plan",
        "show how the engine shares out a model's work",
    ),
    "doctor": (
        "laneformer.doctor",
        "add_arguments",
        "run",
        "say what this machine can run and what is missing",
    ),
}
# Commands configured by Hydra: everything after the name is Hydra's.
HYDRA_COMMANDS = {
    "train": ("run_train", "train a model (Hydra overrides, see configs/)"),
    "prepare": ("run_prepare", "turn text into token shards (Hydra overrides)"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; returns the exit code: 0, or 2 with one line on stderr for a user error."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = _run(arguments)
        sys.stdout.flush()  # here, where its failing is handled, and not when the interpreter ends
        return code
    except LaneformerError as error:
        print(f"error: {' '.join(str(error).splitlines())}", file=sys.stderr)
        return EXIT_USER_ERROR
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader of our output went away: not an error of ours
        # What is still in the buffer would fail once more when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _run(arguments: list[str]) -> int:
    if arguments and arguments[0] in HYDRA_COMMANDS:
        run_hydra: Callable[[Sequence[str]], int] = _load("train.cli", HYDRA_COMMANDS[arguments[0]][0])
        return run_hydra(arguments[1:])
    return _run_plain(arguments)


def _run_plain(arguments: list[str]) -> int:
    name = arguments[0] if arguments else None
    parser = argparse.ArgumentParser(
        prog="laneformer", description="Train, evaluate, export and run Laneformers."
    )
    parser.add_argument("--version", action="version", version=f"laneformer {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for command, (_, summary) in HYDRA_COMMANDS.items():
        commands.add_parser(command, help=summary)
    for command, (module, add_arguments, run, summary) in COMMANDS.items():
        command_parser = commands.add_parser(
            command, help=summary, description=f"{summary[0].upper()}{summary[1:]}."
        )
        if command == name:
            _load(module, add_arguments)(command_parser)
            command_parser.set_defaults(run=_load(module, run))
    parsed = parser.parse_args(arguments)
    code: int = parsed.run(parsed)
    return code


def _load(module: str, function: str) -> Callable[..., int]:
    """Import a command; a missing optional package is a user error that says what to install."""
    try:
        found: Callable[..., int] = getattr(importlib.import_module(module), function)
    except ModuleNotFoundError as error:
        package = (error.name or "").split(".")[0]
        extra = {"train": "train", "evals": "eval"}.get(module.split(".")[0])
        if extra is None or package in ("laneformer", "train", "infer", "evals", "configs"):
            raise
        raise LaneformerError(f"this command needs {package}: pip install 'laneformer[{extra}]'") from None
    return found


if __name__ == "__main__":
    raise SystemExit(main())
