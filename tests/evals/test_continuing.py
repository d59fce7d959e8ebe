"""A run that was killed goes on: what was judged is kept, what was only written is judged, and no more."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from evals.evaluate import evaluate_suite
from evals.generate import CanonicalGenerator, EngineGenerator
from evals.problems import Problem
from evals.records import CompletionRecord, RunFolder, read_prompts
from evals.sandbox.folders import hideable
from evals.sandbox.runner import Sandbox
from evals.suites import Suite
from laneformer.errors import EvaluationError

ROOT = Path(__file__).parents[2]
PROMPT = 'def f(x):\n    """One more than x."""\n'
TEST = "def check(candidate):\n    assert candidate(1) == 2\n"

# Four problems.  Judging the first takes a minute, so that others are written and not judged; the fourth
# is never written.
KILLED = f"""
import sys, time
from evals.evaluate import evaluate_suite
from evals.problems import Problem
from evals.suites import Suite

class Writer:
    count = 0
    def generate_text(self, prompt, **options):
        self.count += 1
        if self.count == 4:
            time.sleep(600)
        yield "    import time; time.sleep(60)\\n" if self.count == 2 else "    return x + 1\\n"

problems = tuple(Problem(f"Small/{{n}}", {PROMPT!r}, "f", {TEST!r}, "") for n in range(4))
evaluate_suite(
    Writer(), Suite("small", problems), workers=1, timeout_seconds=90, output_dir=sys.argv[1], progress=False
)
"""


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_a_killed_run_writes_nothing_twice(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], cwd=ROOT)
    try:
        deadline = time.monotonic() + 60
        while len(_lines(tmp_path / "completions.jsonl")) < 3 or not _lines(tmp_path / "samples.jsonl"):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert [line["task_id"] for line in _lines(tmp_path / "samples.jsonl")] == ["Small/0"]

    # As it would have been slow to judge: the folder's own record of what was written decides.
    path = tmp_path / "completions.jsonl"
    path.write_text(path.read_text().replace("import time; time.sleep(60)", "return x"))
    asked = []

    class Writer:
        def generate_text(self, prompt: str, *, seed: int, **_: Any) -> Any:
            asked.append(seed)
            yield "    return x + 1\n"

    problems = tuple(Problem(f"Small/{number}", PROMPT, "f", TEST, "") for number in range(4))
    result = evaluate_suite(
        Writer(), Suite("small", problems), workers=1, timeout_seconds=90, output_dir=tmp_path, progress=False
    )
    assert [sample.status for sample in result.samples] == ["passed", "failed", "passed", "passed"]
    assert asked == [result.samples[3].seed]
    assert len(_lines(path)) == len(_lines(tmp_path / "samples.jsonl")) == 4


class CountingEngine:
    """Yields three tokens, and takes a known time for it; raises after ``most`` prompts."""

    tokenizer = SimpleNamespace(encode=lambda text, add_bos: [1])

    def __init__(self, most: int) -> None:
        self._left = most

    def generate(self, token_ids: list[int], **_: Any) -> Any:
        if not self._left:
            raise KeyboardInterrupt
        self._left -= 1
        for piece in ("    return", " x + 1", "\n"):
            time.sleep(0.005)
            yield SimpleNamespace(text=piece)


def test_speed_is_that_of_all_calls_together(tmp_path: Path) -> None:
    problems = tuple(Problem(f"Small/{number}", PROMPT, "f", TEST, "") for number in range(4))
    options: dict[str, Any] = {"output_dir": tmp_path, "progress": False}
    with pytest.raises(KeyboardInterrupt):
        evaluate_suite(EngineGenerator(CountingEngine(3)), Suite("small", problems), **options)
    result = evaluate_suite(EngineGenerator(CountingEngine(1)), Suite("small", problems), **options)
    completions = _lines(tmp_path / "completions.jsonl")
    assert [line["tokens"] for line in completions] == [3, 3, 3, 3]
    assert all(line["generation_seconds"] >= 0.015 for line in completions)
    assert result.generated_tokens == 12
    seconds = sum(line["generation_seconds"] for line in completions)
    assert result.generation_seconds == pytest.approx(seconds)
    assert result.tokens_per_second == pytest.approx(12 / seconds)
    assert {line["tokens"] for line in _lines(tmp_path / "samples.jsonl")} == {3}
    # Once more, with nothing to do: still the speed of the run.
    again = evaluate_suite(EngineGenerator(CountingEngine(0)), Suite("small", problems), **options)
    assert again.tokens_per_second == result.tokens_per_second
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["generated_tokens"] == 12
    assert summary["tokens_per_second"] == pytest.approx(result.tokens_per_second)


def test_the_folder_says_what_the_model_got_and_how_it_is_judged(tmp_path: Path) -> None:
    adapter = "\n\ndef run_test_case(number):\n    return f(number)\n"
    test = "def check(run_test_case):\n    assert run_test_case(1) == 2\n"
    problem = Problem(
        "Small/0", "", "f", test, "def f(x):\n    return x + 1\n", "Add one.", ("assert f(1)",), adapter
    )
    result = evaluate_suite(
        CanonicalGenerator(), Suite("small", (problem,)), output_dir=tmp_path, progress=False
    )
    (prompt,) = read_prompts(tmp_path)
    assert prompt.prompt.startswith("You are an expert Python programmer, and here is your task: Add one.")
    assert (prompt.entry_point, prompt.test) == ("f", test)
    assert prompt.prompt_sha256 == result.samples[0].prompt_sha256
    # Enough to judge a program again.
    assert Sandbox().run(result.samples[0].program, prompt.problem()).status == "passed"
    assert Sandbox().run("def f(x):\n    return x\n" + adapter, prompt.problem()).status == "failed"


def test_folders_without_prompts_are_told(tmp_path: Path) -> None:
    with pytest.raises(EvaluationError, match=r"holds no prompts.jsonl"):
        read_prompts(tmp_path)
    (tmp_path / "prompts.jsonl").write_text("{}\n")
    with pytest.raises(EvaluationError, match="line 1 is damaged"):
        read_prompts(tmp_path)


@pytest.mark.parametrize(
    "change", [{"tokens": "3"}, {"sample": "0"}, {"completion": None}, {"seed": 1.5}, {"refusal": 0}]
)
def test_damaged_completions_are_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    RunFolder(tmp_path, {}).add_completion(CompletionRecord("Small/0", 0, "", "", "", 1, 3, 0.5))
    assert len(RunFolder(tmp_path, {}).completions) == 1
    (record,) = _lines(tmp_path / "completions.jsonl")
    (tmp_path / "completions.jsonl").write_text(json.dumps(record | change) + "\n")
    with pytest.raises(EvaluationError, match=r"completions.jsonl, line 1 is damaged"):
        RunFolder(tmp_path, {})


def test_programs_cannot_read_the_tests_in_the_output_folder() -> None:
    # Not pytest's folder, which other users cannot enter anyway.
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        Path(name, "report.html").write_text("the tests of an earlier report")
        program = f"    import os\n    return 2 if os.listdir({name!r}) == [] else 0\n"

        class Writer:
            def generate_text(self, prompt: str, **_: Any) -> Any:
                assert Path(name, "prompts.jsonl").exists()
                yield program

        problem = Problem("Small/0", PROMPT, "f", TEST, "")
        result = evaluate_suite(Writer(), Suite("small", (problem,)), output_dir=name, progress=False)
    if not result.isolation["read_only_files"]:
        pytest.skip("no private mounts here")
    assert result.samples[0].status == "passed"


# Finds the folder of the run by its mount, and in it what another sample of the problem did.
COPY = """    import json
    for line in open('/proc/self/mountinfo'):
        folder = line.split()[4].removesuffix('/prompts.jsonl')
        for name in ('samples.jsonl', 'completions.jsonl'):
            try:
                for text in open(f'{folder}/{name}'):
                    return eval(json.loads(text)['completion'].strip().removeprefix('return '))
            except OSError:
                pass
    return None
"""


def test_programs_cannot_copy_other_samples() -> None:
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        texts = ["    return x + 1\n", COPY]

        class Writer:
            def generate_text(self, prompt: str, **_: Any) -> Any:
                judged = Path(name, "samples.jsonl")
                while len(texts) == 1 and not (judged.exists() and "passed" in judged.read_text()):
                    time.sleep(0.05)
                yield texts.pop(0)

        result = evaluate_suite(
            Writer(),
            Suite("small", (Problem("Small/0", PROMPT, "f", TEST, ""),)),
            samples_per_problem=2,
            temperature=0.5,
            output_dir=name,
            progress=False,
        )
    if not result.isolation["read_only_files"]:
        pytest.skip("no private mounts here")
    assert [sample.status for sample in result.samples] == ["passed", "failed"]


def test_an_output_folder_around_the_interpreter_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as name:
        monkeypatch.setattr("sys.prefix", f"{name}/venv")
        with pytest.raises(EvaluationError, match="which they need"):
            hideable(Path(name))


def test_limits_that_cannot_be_leave_no_settings_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    suite = Suite("small", (Problem("Small/0", PROMPT, "f", TEST, ""),))
    monkeypatch.setattr("evals.evaluate.pool_size", _no_memory)
    with tempfile.TemporaryDirectory() as name:
        with pytest.raises(EvaluationError, match="no memory"):
            evaluate_suite(CanonicalGenerator(), suite, output_dir=name, progress=False)
        assert not os.listdir(name)


def _no_memory(*_: Any, **__: Any) -> int:
    raise EvaluationError("no memory")
