"""``evaluate serve-check`` gives the score that the engine behind the endpoint has."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evals import cli
from evals.endpoint import client
from evals.evaluate import evaluate_suite
from evals.generate import EngineGenerator
from evals.problems import Problem
from evals.prompts import COMPLETE
from evals.suites import load_suite
from infer import Engine
from tests.evals.endpoint.server import KEY, MODEL, Server, replies, serving

PROBLEMS = 3


@pytest.fixture
def problem_file(increment: Problem, tmp_path: Path) -> Path:
    path = tmp_path / "problems.jsonl"
    problems = [
        replace(increment, task_id=f"Small/{n}", prompt=f"# {n}\n{increment.prompt}") for n in range(PROBLEMS)
    ]
    fields = ("task_id", "prompt", "entry_point", "test", "canonical_solution")
    records = [{name: getattr(problem, name) for name in fields} for problem in problems]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_sleep", lambda seconds: None)


def command(server: Server, problem_file: Path, *options: str) -> list[str]:
    arguments = ["serve-check", "--url", server.url, "--model", MODEL, "--suite", "humaneval"]
    return [*arguments, "--problems", str(problem_file), "--max-new-tokens", "48", *options]


def samples_in(folder: Path) -> dict[tuple[str, int], dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    return {(line["task_id"], line["sample"]): line for line in lines}


@pytest.mark.parametrize(
    "options",
    [[], ["--no-stream"], ["--concurrency", "4"], ["--no-stream", "--concurrency", "4"]],
    ids=" ".join,
)
def test_samples_equal_those_straight_through_the_engine(
    tiny_engine: Engine, problem_file: Path, tmp_path: Path, options: list[str]
) -> None:
    direct = evaluate_suite(
        EngineGenerator(tiny_engine),
        load_suite("humaneval", problem_file),
        samples_per_problem=3,
        temperature=0.9,
        max_new_tokens=48,
        ks=[1, 3],
        seed=5,
        progress=False,
    )
    sampling = ["--samples", "3", "--temperature", "0.9", "--seed", "5", "--k", "1", "3"]
    with serving(tiny_engine) as server:
        arguments = command(server, problem_file, *sampling, *options, "--output", str(tmp_path / "out"))
        assert cli.main(arguments) == 0
        assert len(server.requests) == 1 + PROBLEMS * 3  # the check, and every sample once
    served = samples_in(tmp_path / "out")
    assert len(served) == PROBLEMS * 3
    for sample in direct.samples:
        found = served[sample.task_id, sample.sample]
        assert (found["completion"], found["program"], found["status"], found["seed"]) == (
            sample.completion,
            sample.program,
            sample.status,
            sample.seed,
        )
        assert found["tokens"] == (sample.tokens if "--no-stream" in options else None)
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["pass_at_k"] == {str(k): value for k, value in direct.pass_at_k.items()}
    assert (summary["tokens_per_second"] is not None) == ("--no-stream" in options)


SOLUTION = "    return x + 1\n\n\nprint(f(1))\n"
FILLER = "# more\n" * 10  # what a stop rule cuts off


@pytest.mark.parametrize("stream", ["--stream", "--no-stream"])
def test_a_model_that_solves_the_problems_passes(
    scripted_engine: Callable[[str], Engine],
    problem_file: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    stream: str,
) -> None:
    with serving(scripted_engine(SOLUTION + FILLER)) as server:
        assert cli.main(command(server, problem_file, stream, "--output", str(tmp_path / "out"))) == 0
    assert ["pass@1", "100.00", "%"] in [line.split() for line in capsys.readouterr().out.splitlines()]
    assert {sample["completion"] for sample in samples_in(tmp_path / "out").values()} == {SOLUTION}
    settings = json.loads((tmp_path / "out" / "summary.json").read_text())["settings"]
    assert settings["model"] == f"{MODEL} at {server.url}"
    assert (settings["suite"], settings["prompt_format"]) == ("humaneval", "base")
    assert cli.main(["report", str(tmp_path / "out")]) == 0


def test_requests_overlap(tiny_engine: Engine, problem_file: Path) -> None:
    with serving(tiny_engine) as server:
        arguments = command(server, problem_file, "--concurrency", str(PROBLEMS))

        def check_done(handler: Any, body: dict[str, Any]) -> bool:
            # From now on nobody gets an answer until all have asked.
            server.together = threading.Barrier(PROBLEMS)
            handler.answer(body, chat=False)
            return True

        server.faults = [check_done]
        assert cli.main(arguments) == 0


def test_the_chat_endpoint_gets_the_question_and_its_last_block_counts(
    scripted_engine: Callable[[str], Engine], problem_file: Path, tmp_path: Path, increment: Problem
) -> None:
    wrong = f"{increment.prompt}    return x\n"
    answer = (
        f"First:\n```python\n{wrong}```\nBetter:\n```python\n{wrong.replace('return x', 'return x + 1')}```\n"
    )
    with serving(scripted_engine(answer)) as server:
        options = ["--prompt-format", "chat", "--max-new-tokens", str(len(answer))]
        assert cli.main(command(server, problem_file, *options, "--output", str(tmp_path / "out"))) == 0
        asked = server.requests[-1]
    assert asked["path"] == "/v1/chat/completions"
    prompt = f"# {PROBLEMS - 1}\n{increment.prompt}"
    assert asked["messages"] == [{"role": "user", "content": COMPLETE.format(prompt=prompt.strip())}]
    assert {sample["status"] for sample in samples_in(tmp_path / "out").values()} == {"passed"}
    prompts = [json.loads(line) for line in (tmp_path / "out" / "prompts.jsonl").read_text().splitlines()]
    assert prompts[-1]["prompt"] == asked["messages"][0]["content"]
    settings = json.loads((tmp_path / "out" / "summary.json").read_text())["settings"]
    assert settings["prompt_format"] == "question"


@pytest.mark.parametrize("concurrency", ["1", "3"])
def test_a_server_that_dies_loses_nothing(
    scripted_engine: Callable[[str], Engine],
    problem_file: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    concurrency: str,
) -> None:
    kept = tmp_path / "out" / "completions.jsonl"

    def works(handler: Any, body: dict[str, Any]) -> bool:
        return False

    def dead(handler: Any, body: dict[str, Any]) -> bool:
        deadline = time.monotonic() + 30
        while not kept.exists() and time.monotonic() < deadline:
            time.sleep(0.01)  # until the one answer has arrived
        return replies(500, {"error": "dead"})(handler, body)

    with serving(scripted_engine(SOLUTION + FILLER)) as server:
        options = ["--concurrency", concurrency, "--output", str(tmp_path / "out")]
        server.faults = [works, works, *[dead] * 100]  # the check, one sample, nothing more
        assert cli.main(command(server, problem_file, *options)) == 2
        error = capsys.readouterr().err
        assert "HTTP 500 (dead), 6 times in a row; what is finished is kept" in error
        assert len(kept.read_text().splitlines()) == 1
        assert cli.main(["report", str(tmp_path / "out")]) == 2
        assert "unfinished run" in capsys.readouterr().err
        server.faults, server.requests = [], []
        assert cli.main(command(server, problem_file, *options)) == 0
        assert len(server.requests) == 1 + PROBLEMS - 1
    assert len(samples_in(tmp_path / "out")) == PROBLEMS


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model", "other"], "HTTP 404 (no model other): is the model called 'other'"),
        (["--url", "http://127.0.0.1:1/v1"], "http://127.0.0.1:1/v1: not reachable"),
        (["--url", "nonsense"], "no address like http://localhost:8000/v1"),
        (["--api-key-env", "NO_SUCH_VARIABLE"], "the environment variable NO_SUCH_VARIABLE is not set"),
        (["--concurrency", "0"], "concurrency must be at least 1, found 0"),
        (["--request-timeout", "-1"], "request timeout must be 0 to 86400 seconds, found -1"),
        (["--limit", "0"], "--limit must be at least 1"),
        (["--temperature", "-1"], "temperature must be 0 (greedy) or more"),
        (["--shots", "3"], "humaneval has no solved examples: leave --shots out"),
        (["--split", "test"], "humaneval has no splits"),
        (["--samples", "2"], "temperature 0 would give 2 identical samples"),
    ],
)
def test_errors_are_one_line_and_begin_no_run(
    tiny_engine: Engine,
    problem_file: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    message: str,
) -> None:
    with serving(tiny_engine) as server:
        arguments = command(server, problem_file, "--output", str(tmp_path / "out"), *options)
        assert cli.main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and message in captured.err
    assert captured.err.startswith("error: ") and captured.err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_the_key_comes_from_the_environment_and_stays_out_of_the_folder(
    tiny_engine: Engine, problem_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENDPOINT_KEY", KEY)
    with serving(tiny_engine) as server:
        server.needs_key = True
        options = ["--api-key-env", "ENDPOINT_KEY", "--limit", "1", "--output", str(tmp_path / "out")]
        assert cli.main(command(server, problem_file, *options)) == 0
    for path in (tmp_path / "out").iterdir():
        assert KEY not in path.read_text()
