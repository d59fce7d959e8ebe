"""No folder of a program stays, and a killed evaluation leaves no program running."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from evals.sandbox.folders import program_folder, remove_abandoned
from evals.sandbox.usage import ProcessTree
from laneformer.errors import EvaluationError

ROOT = Path(__file__).parents[2]
KILLED = """
import sys
from evals.evaluate import evaluate_suite
from evals.problems import Problem
from evals.suites import Suite

class Writer:
    def generate_text(self, prompt, **options):
        yield sys.argv[1]

test = sys.argv[2] + "def check(candidate):\\n    assert candidate(1) == 2\\n"
problems = tuple(Problem(f"Small/{n}", "def f(x):\\n", "f", test, "") for n in range(2))
evaluate_suite(Writer(), Suite("small", problems), workers=2, progress=False, timeout_seconds=600)
"""


@pytest.fixture
def temporary_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    # Not below pytest's folder, which other users cannot enter.
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        monkeypatch.setattr(tempfile, "tempdir", name)
        yield Path(name)


def test_a_folder_in_use_is_left_alone_and_others_go(temporary_folder: Path) -> None:
    (temporary_folder / "evaluate-old" / "work").mkdir(parents=True)
    (temporary_folder / "evaluate-old" / "work" / "file").write_text("x")
    (temporary_folder / "evaluate-file").write_text("a file of somebody's")
    (temporary_folder / "elsewhere").mkdir()
    (temporary_folder / "evaluate-link").symlink_to(temporary_folder / "elsewhere")
    (temporary_folder / "other").mkdir()
    with program_folder() as folder:
        remove_abandoned()
        names = {"evaluate-file", "evaluate-link", "elsewhere", "other", Path(folder).name}
        assert {path.name for path in temporary_folder.iterdir()} == names
    assert not Path(folder).exists()


def test_a_folder_that_another_evaluation_took_for_abandoned_is_made_anew(
    temporary_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = tempfile.mkdtemp
    made: list[str] = []

    def interrupted(prefix: str) -> str:
        made.append(make(prefix=prefix))
        if len(made) == 1:
            remove_abandoned()
        return made[-1]

    monkeypatch.setattr(tempfile, "mkdtemp", interrupted)
    with program_folder() as folder:
        assert len(made) == 2
        assert folder == made[1]
        assert [str(path) for path in temporary_folder.iterdir()] == [folder]


def test_without_a_place_for_folders_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/no/such/folder")
    remove_abandoned()
    with pytest.raises(EvaluationError, match="needs a temporary folder"), program_folder():
        pass


@pytest.mark.parametrize(
    ("program", "test"),
    [
        ("    while True: pass\n", ""),
        ("    import time\n    time.sleep(600)\n", ""),
        ("    import os\n    if os.fork() == 0: os.setsid()\n    while True: pass\n", ""),
        ("    return 2\n", "while True: pass\n"),
    ],
    ids=["busy", "asleep", "in_sessions", "tests_busy"],
)
def test_a_killed_evaluation_leaves_nothing(temporary_folder: Path, program: str, test: str) -> None:
    environment = {**os.environ, "TMPDIR": str(temporary_folder), "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen([sys.executable, "-c", KILLED, program, test], cwd=ROOT, env=environment)
    proc = os.open("/proc", os.O_RDONLY)
    tree = ProcessTree(proc, process.pid)
    try:
        # Until both programs run: a keeper, an init and a candidate each, and two judges.
        deadline = time.monotonic() + 60
        while len(tree.processes()) < 8 or "evaluate-" not in str(list(temporary_folder.iterdir())):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        time.sleep(0.2)  # for what the programs start
        started = {number: _start(number) for number in tree.processes()}
        assert len(started) >= 8
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        os.close(proc)
    deadline = time.monotonic() + 30
    while left := [number for number, start in started.items() if start and _start(number) == start]:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)
    assert len(list(temporary_folder.iterdir())) == 2
    remove_abandoned()
    assert not list(temporary_folder.iterdir())


def _start(process: int) -> str | None:
    """When ``process`` started; None where it has ended."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else fields[19]
