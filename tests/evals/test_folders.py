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
        names = {"evaluate-file", "evaluate-link", "elsewhere", "other", Path(folder).parent.name}
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
        assert Path(folder).parent == Path(made[1])
        assert [str(path) for path in temporary_folder.iterdir()] == [made[1]]


def test_without_a_place_for_folders_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/no/such/folder")
    remove_abandoned()
    with pytest.raises(EvaluationError, match="needs a temporary folder"), program_folder():
        pass


def test_the_folder_around_a_program_s_can_be_passed_and_nothing_else(temporary_folder: Path) -> None:
    with program_folder() as folder:
        outer = Path(folder).parent
        assert outer.parent == temporary_folder
        assert outer.stat().st_mode & 0o777 == 0o711
        assert outer.stat().st_uid == os.getuid()
        assert os.listdir(outer) == [Path(folder).name]
        assert not os.listdir(folder)


def test_a_program_cannot_put_another_folder_in_place_of_its_own(temporary_folder: Path) -> None:
    """Not even where anybody may make folders, and the owner of one may rename it."""
    if os.getuid() != 0:
        pytest.skip("only root runs programs as another user")
    temporary_folder.chmod(0o1777)
    with program_folder() as folder:
        os.chown(folder, 60000, 60000)
        attempt = 'cd "$1" && touch file && ! mv "$1" "$1"x && ! mv "$2" "$2"x'
        command = ["/bin/sh", "-c", attempt, "sh", folder, str(Path(folder).parent)]
        assert subprocess.run(command, user=60000, group=60000, extra_groups=[]).returncode == 0
    assert not list(temporary_folder.iterdir())


def test_a_link_in_place_of_a_folder_goes_and_what_it_points_to_stays(temporary_folder: Path) -> None:
    (temporary_folder / "elsewhere").mkdir()
    (temporary_folder / "elsewhere" / "kept").touch()
    with program_folder() as folder:
        outer = Path(folder).parent
        outer.rename(temporary_folder / "evaluate-renamed")
        outer.symlink_to(temporary_folder / "elsewhere")
    assert not outer.is_symlink()
    remove_abandoned()
    assert [path.name for path in temporary_folder.rglob("*")] == ["elsewhere", "kept"]


def test_a_folder_that_cannot_be_removed_is_named(
    temporary_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(folder: str) -> None:
        raise PermissionError(1, "Operation not permitted")

    with pytest.raises(EvaluationError) as found, program_folder() as folder:
        monkeypatch.setattr("evals.sandbox.folders.remove_tree", refused)
    assert f"cannot remove {Path(folder).parent}, where a program ran" in str(found.value)
    assert "not permitted" in str(found.value)


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
