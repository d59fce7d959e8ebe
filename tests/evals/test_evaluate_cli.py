from __future__ import annotations

import argparse
import errno
import hashlib
import json
import os
import subprocess
import sys
import time
import types
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from evals import cli
from evals.generate import Completion
from evals.problems import Problem
from infer.export import export_engine_file
from laneformer.errors import CheckpointError
from tests.tiny_models import RandomWeights, byte_level_tokenizer, tiny_config, write_checkpoint


@pytest.fixture
def problem_file(increment: Problem, tmp_path: Path) -> Path:
    path = tmp_path / "problems.jsonl"
    records = [asdict(increment) | {"task_id": f"Small/{number}"} for number in range(3)]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


class StubEngine:
    """Stands in for ``infer.Engine``."""

    tokenizer = types.SimpleNamespace(encode=lambda text, add_bos: [1])
    backend_name = "numpy"

    def __init__(self, path: str, *, backend: str) -> None:
        if path == "missing":
            raise CheckpointError("missing: no\nsuch folder")
        assert backend == "numpy"

    def generate(self, token_ids: list[int], **_: Any) -> Iterator[types.SimpleNamespace]:
        yield types.SimpleNamespace(text="    return x + 1\n")


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("infer")
    module.Engine = StubEngine  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "infer", module)


def test_evaluates_a_model(
    engine: None, problem_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "m"
    model.write_bytes(b"weights")
    arguments = ["humaneval", "--model", str(model), "--backend", "numpy", "--problems", str(problem_file)]
    arguments += ["--limit", "2", "--samples", "2", "--temperature", "0.5", "--k", "1", "2"]
    arguments += ["--output", str(tmp_path / "out"), "--workers", "2", "--memory-gb", "0.5", "--timeout", "7"]
    assert cli.main(arguments) == 0
    output = capsys.readouterr().out
    assert "2 problems, 4 samples" in output
    table = [line.split() for line in output.splitlines()]
    assert ["pass@1", "100.00", "%"] in table
    assert ["pass@2", "100.00", "%"] in table
    assert ["passed", "4"] in table
    assert ["no-code", "0"] in table
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["settings"]["model"] == str(model.resolve())
    assert summary["settings"]["model_sha256"] == hashlib.sha256(b"weights").hexdigest()
    assert summary["settings"]["memory_bytes"] == 1 << 29
    assert summary["settings"]["timeout_seconds"] == 7.0
    assert summary["tokens_per_second"] > 0


@pytest.mark.parametrize("kind", ["folder", "engine file"])
def test_other_weights_at_the_same_path_do_not_continue_a_run(
    problem_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    config = tiny_config(max_position_embeddings=128)
    model = tmp_path / "model"

    def save(seed: int) -> None:
        source = tmp_path / str(seed) if kind == "engine file" else model
        write_checkpoint(source, config, byte_level_tokenizer(), tensors=RandomWeights(config, seed).tensors)
        if kind == "engine file":
            export_engine_file(source, model, overwrite=True)

    arguments = ["humaneval", "--model", str(model), "--backend", "numpy", "--problems", str(problem_file)]
    arguments += ["--limit", "1", "--max-new-tokens", "3", "--output", str(tmp_path / "out")]
    save(seed=0)
    assert cli.main(arguments) == 0
    assert cli.main(arguments) == 0  # the same model continues, or rather has finished
    save(seed=1)
    capsys.readouterr()
    assert cli.main(arguments) == 2
    error = capsys.readouterr().err
    assert "other settings (model_sha256" in error
    assert "the model has changed since, under the same name" in error


def test_verifies_canonical_solutions(
    problem_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["humaneval", "--verify-canonical", "--problems", str(problem_file)]
    assert cli.main(arguments) == 0
    assert "100.00 %" in capsys.readouterr().out

    records = [json.loads(line) for line in problem_file.read_text().splitlines()]
    records[1] |= {"prompt": records[1]["prompt"] + "\n", "canonical_solution": "    return x\n"}
    problem_file.write_text("".join(json.dumps(record) + "\n" for record in records))
    assert cli.main(arguments) == 1
    assert "Small/1: failed, AssertionError" in capsys.readouterr().out


def test_problems_that_share_a_prompt_are_judged_by_their_own_solutions(
    increment: Problem, tmp_path: Path
) -> None:
    record = asdict(increment)
    opposite = record | {
        "task_id": "Small/1",
        "test": "def check(candidate):\n    assert candidate(1) == 0\n",
        "canonical_solution": "    return x - 1\n",
    }
    path = tmp_path / "problems.jsonl"
    path.write_text(f"{json.dumps(record)}\n{json.dumps(opposite)}\n")
    assert cli.main(["humaneval", "--verify-canonical", "--problems", str(path)]) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "missing", "--backend", "numpy"], "missing: no such folder"),
        ([], "either --model PATH or --verify-canonical"),
        (["--model", "m", "--verify-canonical"], "either --model PATH or --verify-canonical"),
        (["--verify-canonical", "--problems", "absent.jsonl"], "absent.jsonl does not exist"),
        (["--verify-canonical", "--k", "10"], "pass@10 needs at least 10 samples"),
        (["--verify-canonical", "--limit", "0"], "--limit must be at least 1"),
        (["--verify-canonical", "--memory-gb", "0.001"], "memory must be 0.125 GiB"),
        (["--verify-canonical", "--memory-gb", "nan"], "--memory-gb must be a number"),
        (["--verify-canonical", "--memory-gb", "1e300"], "--memory-gb must be a number"),
        (["--verify-canonical", "--memory-gb=-1e300"], "--memory-gb must be a number"),
        (["--verify-canonical", "--memory-gb", "1e290"], "memory must be 0.125 GiB"),
        (["--verify-canonical", "--temperature", "nan"], "temperature must be 0 (greedy) or more, found nan"),
        (["--verify-canonical", "--temperature", "-1"], "temperature must be 0 (greedy) or more, found -1"),
        (["--model", "missing", "--temperature", "nan"], "temperature must be"),  # before the model
        (["--verify-canonical", "--top-p", "0"], "top-p must be above 0 and at most 1, found 0"),
        (["--verify-canonical", "--seed", "-1"], "seed must be 0 or more, found -1"),
        (["--verify-canonical", "--max-new-tokens", "-1"], "max new tokens must be at least 1, found -1"),
    ],
)
def test_errors_are_one_line_and_exit_code_two(
    engine: None,
    problem_file: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    assert cli.main(["humaneval", "--problems", str(problem_file), *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    assert message in captured.err


def test_output_that_cannot_be_written_is_one_line(
    problem_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["humaneval", "--verify-canonical", "--problems", str(problem_file), "--output"]
    for output in (problem_file, problem_file / "below", tmp_path / ("n" * 300)):
        assert cli.main([*arguments, str(output)]) == 2
        error = capsys.readouterr().err
        assert error.startswith("error: the output folder") and error.count("\n") == 1

    replace = os.replace

    def full_disk(source: Path, destination: Path) -> None:
        if '"complete": true' in Path(source).read_text():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        replace(source, destination)

    with monkeypatch.context() as patch:
        patch.setattr("evals.json_lines.os.replace", full_disk)
        assert cli.main([*arguments, str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert "No space left" in error and error.count("\n") == 1
    found = sorted(os.listdir(tmp_path / "out"))
    assert found == ["completions.jsonl", "prompts.jsonl", "samples.jsonl", "summary.json"]
    assert cli.main([*arguments, str(tmp_path / "out")]) == 0


def test_an_interruption_is_quiet_and_keeps_what_is_finished(
    problem_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = tmp_path / "out" / "samples.jsonl"
    prompts = []

    def interrupted(generator: object, problem: Problem, prompt_format: object, **_: Any) -> Completion:
        prompts.append(problem.prompt)
        if len(prompts) < 3:
            return Completion(problem.canonical_solution)
        while not samples.exists():
            time.sleep(0.01)
        raise KeyboardInterrupt

    arguments = ["humaneval", "--verify-canonical", "--problems", str(problem_file), "--workers", "2"]
    with monkeypatch.context() as patch:
        patch.setattr("evals.evaluate.complete", interrupted)
        assert cli.main([*arguments, "--output", str(samples.parent)]) == 130
    assert capsys.readouterr() == ("", "")
    assert 1 <= len(samples.read_text().splitlines()) <= 2
    assert cli.main([*arguments, "--output", str(samples.parent)]) == 0


def test_a_closed_pipe_is_no_error(problem_file: Path) -> None:
    code = "import sys; from evals.cli import main; sys.exit(main(sys.argv[1:]))"
    arguments = ["humaneval", "--verify-canonical", "--problems", str(problem_file)]
    root = Path(cli.__file__).parents[1]
    command = [sys.executable, "-c", code, *arguments]
    # Buffered, as for a user, so that the pipe is only met when the buffer is written.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            command, cwd=root, env=environment, stdout=writer, stderr=subprocess.PIPE, text=True
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


def test_works_below_another_command(problem_file: Path) -> None:
    parser = argparse.ArgumentParser(prog="laneformer")
    commands = parser.add_subparsers()
    evaluate = commands.add_parser("evaluate")
    cli.add_arguments(evaluate)
    evaluate.set_defaults(run=cli.run)
    args = parser.parse_args(["evaluate", "humaneval", "--verify-canonical", "--problems", str(problem_file)])
    assert args.run(args) == 0


def test_needs_neither_torch_nor_the_engine_to_start() -> None:
    heavy = ("torch", "infer", "datasets", "numpy")
    code = f"import sys, evals.cli; print([name for name in {heavy} if name in sys.modules])"
    root = Path(cli.__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
