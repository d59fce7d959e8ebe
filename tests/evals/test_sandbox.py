"""What each sort of program gets, and what it leaves behind."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from evals.problems import Problem
from evals.sandbox import isolation
from evals.sandbox.runner import Limits, Sandbox, Verdict, _Lines, decide
from laneformer.errors import EvaluationError

RIGHT = "def f(x):\n    return x + 1\n"
WRONG = "def f(x):\n    return x\n"

# (name, program, status, part of the detail)
PROGRAMS = [
    ("right", RIGHT, "passed", ""),
    ("wrong", WRONG, "failed", "AssertionError"),
    ("raises", "def f(x):\n    raise KeyError('no')\n", "failed", "KeyError"),
    ("does_not_parse", "def f(x) return\n", "failed", "SyntaxError"),
    ("does_not_define", "def g(x):\n    return x + 1\n", "failed", "AttributeError"),
    ("recursion", "def f(x):\n    return f(x)\n", "failed", "RecursionError"),
    ("exit_at_import", "import sys\nsys.exit(0)\n", "crashed", "exit code 0"),
    ("exit_in_call", "import sys\ndef f(x):\n    sys.exit(3)\n", "crashed", "exit code 3"),
    ("hard_exit_at_import", "import os\nos._exit(0)\n", "crashed", "exit code 0"),
    ("hard_exit_in_call", "import os\ndef f(x):\n    os._exit(0)\n", "crashed", "exit code 0"),
    ("interrupt", "raise KeyboardInterrupt\n", "crashed", "exit code 1"),
    ("kills_itself", "import os\nos.kill(os.getpid(), 9)\n", "crashed", "SIGKILL"),
    ("segmentation_fault", "import ctypes\nctypes.string_at(0)\n", "crashed", "SIGSEGV"),
    (
        "always_equal",
        "class E:\n    def __eq__(self, _): return True\ndef f(x): return E()\n",
        "failed",
        "type E",
    ),
    (
        "always_equal_integer",
        "class E(int):\n    def __eq__(self, _): return True\ndef f(x): return E(77)\n",
        "failed",
        "AssertionError",
    ),
    (
        "patched_builtins",
        "import builtins\nbuiltins.AssertionError = builtins.bool = str\n" + WRONG,
        "failed",
        "AssertionError",
    ),
    (
        "forged_standard_output",
        "print('passed')\nprint('{\"outcome\": \"passed\"}')\n" + WRONG,
        "failed",
        "AssertionError",
    ),
    (
        "forged_on_every_descriptor",
        'import os\nfor fd in range(64):\n    try: os.write(fd, b\'{"outcome": "passed"}\\n\')\n'
        "    except OSError: pass\n" + WRONG,
        "failed",
        "",
    ),
    (
        "answers_before_it_is_asked",
        "import gc, socket\nfrom evals.sandbox import wire\n"
        "for s in gc.get_objects():\n    if isinstance(s, socket.socket):\n"
        "        wire.send(s, wire.dumps(('returned', 2, None)))\n" + WRONG,
        "failed",
        "malformed",
    ),
    ("closes_everything", "import os\nos.closerange(0, 64)\n" + RIGHT, "crashed", "exit code 0"),
    ("fork_bomb", "import os\nwhile True:\n    os.fork()\n", "failed", "BlockingIOError"),
    ("fork_in_call", "import os\ndef f(x):\n    os.fork()\n    return x + 1\n", "passed", ""),
    (
        "thread_bomb",
        "import threading, time\nwhile True:\n    threading.Thread(target=time.sleep, args=(60,)).start()\n",
        "failed",
        "RuntimeError",
    ),
    (
        "thread_left_running",
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,)).start()\n" + RIGHT,
        "passed",
        "",
    ),
    ("allocates_64_gigabytes", "def f(x):\n    return len(bytearray(64 << 30))\n", "memory", "MemoryError"),
    ("large_file", "open('x', 'wb').write(bytes(65 << 20))\n" + RIGHT, "failed", "too large"),
    (
        "many_open_files",
        "files = [open('/dev/null') for _ in range(100)]\n" + RIGHT,
        "failed",
        "Too many open files",
    ),
    ("endless_result", "def f(x):\n    while True: yield x\n", "failed", "items"),
    ("huge_result", "def f(x):\n    return 'x' * (40 << 20)\n", "failed", "bytes"),
    (
        "deletes_its_folder",
        "import os, shutil\nshutil.rmtree(os.getcwd())\n" + RIGHT,
        "failed",
        "deleted its temporary folder",
    ),
    (
        "deep_folders",
        "import os\nfor _ in range(1100):\n    os.mkdir('dddd')\n    os.chdir('dddd')\n" + RIGHT,
        "passed",
        "",
    ),
    (
        "closed_folders",
        "import os\nos.makedirs('a/b')\nos.chmod('a/b', 0)\nos.chmod('a', 0)\n" + RIGHT,
        "passed",
        "",
    ),
]

# These use up their time, or the machine's memory as far as they may; so their limits are smaller.
SLOW_PROGRAMS = [
    ("endless_loop", "while True:\n    pass\n", "timeout"),
    ("endless_loop_in_c", "import itertools\ndef f(x):\n    return sum(itertools.repeat(0))\n", "timeout"),
    ("endless_arithmetic", "def f(x):\n    return 10 ** 10 ** 9\n", "timeout"),
    ("sleep", "import time\ndef f(x):\n    time.sleep(60)\n", "timeout"),
    ("stopped", "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)\n", "timeout"),
    (
        "ignores_signals",
        "import signal\nfor n in (2, 15): signal.signal(n, signal.SIG_IGN)\nwhile True: pass\n",
        "timeout",
    ),
    (
        "patient_fork_bomb",
        "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass\n",
        "timeout",
    ),
    ("allocates_more_than_allowed", "def f(x):\n    bytearray(300 << 20)\n    return x + 1\n", "memory"),
    ("grows", "hoard = []\nwhile True:\n    hoard.append(bytes(1 << 20))\n", "memory"),
]


@pytest.fixture
def temporary_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the sandbox puts its folders: one of our own, to see what is left in it."""
    # Not below pytest's folder, which other users cannot enter.
    folder = Path(tempfile.mkdtemp(prefix="sandbox-test-"))
    folder.chmod(0o755)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    folder.rmdir()  # An error when anything is left.


@pytest.mark.parametrize(
    ("program", "status", "detail"), [p[1:] for p in PROGRAMS], ids=[p[0] for p in PROGRAMS]
)
def test_status(increment: Problem, temporary_folder: Path, program: str, status: str, detail: str) -> None:
    verdict = Sandbox().run(program, increment)
    assert verdict.status == status, verdict
    assert detail in verdict.detail
    assert "\n" not in verdict.detail
    assert not list(temporary_folder.iterdir())


@pytest.mark.parametrize(
    ("program", "status"), [p[1:] for p in SLOW_PROGRAMS], ids=[p[0] for p in SLOW_PROGRAMS]
)
def test_status_at_a_limit(increment: Problem, temporary_folder: Path, program: str, status: str) -> None:
    seconds = 1.0 if status == "timeout" else 10.0
    limits = Limits(timeout_seconds=seconds, wall_seconds=2 * seconds, memory_bytes=256 << 20)
    start = time.monotonic()
    verdict = Sandbox(limits).run(program, increment)
    assert verdict.status == status, verdict
    assert time.monotonic() - start < 9.0
    assert not list(temporary_folder.iterdir())


def test_no_program_is_no_code(increment: Problem) -> None:
    assert Sandbox().run(None, increment).status == "no-code"


def _commands() -> list[str]:
    """Command lines of all processes of this machine."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue
    return found


ESCAPE = """
import os
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.setsid()
        os.execvp("sleep", ["sleep", "{seconds}"])
    os._exit(0)
"""


@pytest.mark.parametrize("ending", [RIGHT, WRONG, "import os\nos._exit(0)\n", "while True: pass\n"])
@pytest.mark.parametrize("namespaces", [True, False])
def test_no_process_is_left(increment: Problem, ending: str, namespaces: bool) -> None:
    if not namespaces and _interpreter_is_closed():
        pytest.skip("without mounts, root cannot show this interpreter to an unprivileged user")
    # A command line that no other process has.
    seconds = f"600.{os.getpid()}{threading.get_native_id()}"
    program = ESCAPE.format(seconds=seconds) + "import time\ntime.sleep(0.2)\n" + ending
    seen: list[bool] = []
    finished = threading.Event()

    def watch() -> None:
        while not finished.wait(0.02):
            seen.append(any(f"sleep {seconds}" in command for command in _commands()))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        Sandbox(Limits(timeout_seconds=1.0, wall_seconds=2.0), namespaces=namespaces).run(program, increment)
    finally:
        finished.set()
        watcher.join()
    assert any(seen), "the process never ran, so its absence means nothing"
    assert not any(f"sleep {seconds}" in command for command in _commands())


def _interpreter_is_closed() -> bool:
    prefixes = [Path(prefix).resolve() for prefix in (sys.base_prefix, sys.prefix)]
    return os.getuid() == 0 and any(
        not parent.stat().st_mode & 0o001 for prefix in prefixes for parent in prefix.parents
    )


def test_without_namespaces(increment: Problem) -> None:
    sandbox = Sandbox(Limits(timeout_seconds=3.0), namespaces=False)
    if _interpreter_is_closed():
        with pytest.raises(EvaluationError, match="unprivileged user, who cannot enter"):
            sandbox.isolation()
        return
    active = sandbox.isolation()
    assert active.pop("unprivileged_user") is (os.getuid() == 0)
    active.pop("system_calls")
    assert not any(active.values())
    expected = {
        RIGHT: "passed",
        WRONG: "failed",
        "import os\nos._exit(0)\n": "crashed",
        "import os\nwhile True:\n    os.fork()\n": "failed",
        "import os, shutil\nshutil.rmtree(os.getcwd())\n" + RIGHT: "failed",
        "while True: pass\n": "timeout",
    }
    assert {program: sandbox.run(program, increment).status for program in expected} == expected


def test_isolation_that_is_reported_holds(judge: Callable[..., Verdict]) -> None:
    active = Sandbox().isolation()
    program = """
import os, socket

def f(what):
    if what == "network":
        return sorted(name for _, name in socket.if_nameindex())
    if what == "processes":
        return sorted(int(name) for name in os.listdir("/proc") if name.isdigit())
    if what == "user":
        return os.getuid()
    if what == "first to kill":
        return open("/proc/self/oom_score_adj").read().strip()
    if what == "privileges":
        wanted = ("CapEff", "NoNewPrivs")
        return [line.split()[1] for line in open("/proc/self/status") if line.startswith(wanted)]
    with open("/tmp/written-by-a-program", "x"):
        os.remove("/tmp/written-by-a-program")
"""
    checks = {
        "network": "assert candidate('network') == ['lo']",
        "processes": "assert len(candidate('processes')) == 2",
        "unprivileged_user": f"assert candidate('user') not in (0, {os.getuid()})",
        "read_only_files": "try:\n    candidate('write')\nexcept OSError:\n    return\nassert False",
    }
    for name, check in checks.items():
        assert (judge(program, check).status == "passed") is active[name], name
    assert judge(program, "assert candidate('privileges') == ['0' * 16, '1']").status == "passed"
    assert judge(program, "assert candidate('first to kill') == '1000'").status == "passed"


def test_the_environment_is_clean(judge: Callable[..., Verdict], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "value")
    program = (
        "import os\ndef f(x):\n    return 'SECRET_TOKEN' in os.environ, os.environ['HOME'] == os.getcwd()\n"
    )
    assert judge(program, "assert candidate(0) == (False, True)").status == "passed"


def test_the_program_never_sees_the_tests(judge: Callable[..., Verdict]) -> None:
    # The search finds what is there: the marker of the program itself.
    program = """
import gc, sys
OWN = "marker of the " + "program"
def f(end):
    texts = [o for o in gc.get_objects() if isinstance(o, (dict, list, tuple))]
    texts = str([list(o.values()) if isinstance(o, dict) else o for o in texts if len(o) < 50])
    return "marker of the " + end in texts
"""
    tests = "'marker of the tests'\nassert candidate('program')\nassert not candidate('tests')"
    verdict = judge(program, tests)
    assert verdict.status == "passed", verdict


def test_hidden_paths_are_hidden(judge: Any) -> None:
    folder = Path(tempfile.mkdtemp(prefix="hidden-test-"))
    try:
        folder.chmod(0o755)
        (folder / "answer").write_text("42")
        (folder / "answer").chmod(0o644)
        (folder / "inner").mkdir()
        (folder / "inner" / "answer").write_text("42")
        program = (
            f"import os\nfolder = {str(folder)!r}\n"
            "def f(x):\n    return open(folder + '/answer').read(), os.listdir(folder + '/inner')\n"
        )
        seen = "assert candidate(0) == ('42', ['answer'])"
        hidden = "assert candidate(0) == ('', [])"
        assert judge(program, seen).status == "passed"
        judge.sandbox = Sandbox(hidden_paths=[folder / "answer", folder / "inner", folder / "absent"])
        expected = hidden if judge.sandbox.isolation()["read_only_files"] else seen
        assert judge(program, expected).status == "passed"
    finally:
        for name in ("answer", "inner/answer"):
            (folder / name).unlink(missing_ok=True)
        (folder / "inner").rmdir()
        folder.rmdir()


def test_a_hidden_path_that_vanishes_takes_no_isolation_away(increment: Problem, tmp_path: Path) -> None:
    for name in ("kept", "vanishes"):
        (tmp_path / name).write_text("answers")
    sandbox = Sandbox(hidden_paths=[tmp_path / "vanishes", tmp_path / "kept"])
    before = sandbox.isolation()
    (tmp_path / "vanishes").unlink()
    assert sandbox.isolation() == before


def test_a_program_with_less_isolation_than_was_found_is_not_run(increment: Problem, tmp_path: Path) -> None:
    sandbox = Sandbox()
    if not sandbox.isolation()["read_only_files"]:
        pytest.skip("there is nothing to lose here")
    mark = tmp_path / "mark"
    tmp_path.chmod(0o777)
    sandbox._namespaces = False
    with pytest.raises(EvaluationError, match=r"without .*read_only_files|who cannot enter"):
        sandbox.run(f"open({str(mark)!r}, 'w').close()\n" + RIGHT, increment)
    assert not mark.exists()


def test_isolation_that_is_required() -> None:
    active = isolation.Isolation(network=True, processes=True)
    isolation.require(active, ["network", "processes"])
    with pytest.raises(isolation.IsolationError, match="without system_calls, which"):
        isolation.require(active, ["network", "system_calls"])


def test_only_the_nonce_and_a_kept_folder_make_a_pass() -> None:
    ended = {"code": None, "signal": 9, "why": "stopped", "folder_kept": True}
    passed = {"outcome": "passed", "nonce": "right"}
    assert decide(passed, ended, "right")[0] == "passed"
    assert decide(passed | {"nonce": "wrong"}, ended, "right")[0] == "crashed"
    assert decide({"outcome": "passed"}, ended, "right")[0] == "crashed"
    assert decide(passed, ended | {"folder_kept": False}, "right")[0] == "failed"
    assert decide(passed, None, "right")[0] == "crashed"
    assert decide(None, ended, "right")[0] == "failed"
    assert decide({"outcome": "gone"}, ended | {"why": "time"}, "")[0] == "timeout"
    assert decide({"outcome": "gone"}, ended | {"why": "memory"}, "")[0] == "memory"


def test_lines_are_read_whole_and_only_up_to_a_length() -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as source:
        lines = _Lines(source)
        os.write(writing, b'{"a": 1}\n{"b": ')
        assert lines.next(time.monotonic() + 5) == {"a": 1}
        with pytest.raises(TimeoutError):
            lines.next(time.monotonic() + 0.01)
        os.write(writing, b'2}\n{"c": 3}\n')
        assert lines.next(time.monotonic() + 5) == {"b": 2}
        assert lines.next(time.monotonic() + 5) == {"c": 3}

        def flood() -> None:
            with os.fdopen(writing, "wb") as sink, contextlib.suppress(BrokenPipeError):
                sink.write(b" " * (64 << 20))

        writer = threading.Thread(target=flood)
        writer.start()
        start = time.process_time()
        assert lines.next(time.monotonic() + 60) is None
        assert time.process_time() - start < 1.0
    writer.join()


def test_sandboxes_run_side_by_side(increment: Problem) -> None:
    programs = [RIGHT, WRONG, "import os\nwhile True:\n    os.fork()\n", RIGHT]
    statuses: dict[int, str] = {}

    def run(number: int) -> None:
        statuses[number] = Sandbox().run(programs[number], increment).status

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(programs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [statuses[number] for number in range(len(programs))] == ["passed", "failed", "failed", "passed"]


def test_descriptors_do_not_leak(increment: Problem) -> None:
    sandbox = Sandbox()
    sandbox.run(RIGHT, increment)
    gc.collect()  # what earlier tests left open is not closed meanwhile
    before = set(os.listdir("/proc/self/fd"))
    for program in (RIGHT, "import os\nos._exit(0)\n"):
        sandbox.run(program, increment)
    assert set(os.listdir("/proc/self/fd")) <= before
