"""Limits are on all processes of a program together, and a busy machine does not change a verdict."""

from __future__ import annotations

import contextlib
import gc
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from evals.judging import Judges
from evals.problems import Problem
from evals.records import CompletionRecord
from evals.sandbox.runner import Limits, Sandbox, Verdict
from evals.sandbox.usage import ProcessTree
from laneformer.machine import processors

MIB = 1 << 20
BURN = """
import os, time
def burn(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end: pass
"""
# Three children, each of which takes less than the limit; they are waited for, or not.
CHILDREN = (
    BURN
    + """
def f(x):
    children = []
    for _ in range(3):
        child = os.fork()
        if child == 0:
            burn({each})
            {ending}
        children.append(child)
    {wait}
    return x + 1
"""
)
# Four children that each write to ``own`` MiB, having ``shared`` MiB together with their parent.
HOARD = """
import os, time
shared = bytearray(os.urandom(1 << 20)) * {shared}
def f(x):
    children = []
    for _ in range(4):
        ready, done = os.pipe()
        if os.fork() == 0:
            own = bytearray(b'x') * ({own} << 20)
            os.write(done, b'x')
            time.sleep(600)
        os.read(ready, 1)
    time.sleep(0.5)
    return x + 1
"""


@contextlib.contextmanager
def busy_machine(each: int) -> Iterator[None]:
    """``each`` other processes per processor that want all of it."""
    # Each in a session of its own: the kernel may share processors out by session, as it does not by process.
    others = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"], start_new_session=True)
        for _ in range(each * processors())
    ]
    try:
        yield
    finally:
        for process in others:
            process.kill()
        for process in others:
            process.wait()


@pytest.mark.slow
def test_a_busy_machine_makes_no_timeouts(increment: Problem) -> None:
    program = BURN + "def f(x):\n    burn(1.0)\n    return x + 1\n"  # the tests call it twice
    with busy_machine(3):
        verdict = Sandbox(Limits(timeout_seconds=3.0)).run(program, increment)
    assert verdict.status == "passed", verdict
    assert verdict.seconds > 3.0, "the machine was not busy enough to show anything"


@pytest.mark.parametrize(
    ("each", "ending", "wait", "status"),
    [
        (0.6, "os._exit(0)", "for child in children: os.waitpid(child, 0)", "timeout"),
        (0.6, "time.sleep(600)", "time.sleep(600)", "timeout"),
        (0.05, "os._exit(0)", "for child in children: os.waitpid(child, 0)", "passed"),
    ],
    ids=["waited_for", "not_waited_for", "little"],
)
def test_processor_time_is_that_of_all_processes(
    increment: Problem, each: float, ending: str, wait: str, status: str
) -> None:
    program = CHILDREN.format(each=each, ending=ending, wait=wait)
    verdict = Sandbox(Limits(timeout_seconds=1.0, wall_seconds=60.0)).run(program, increment)
    assert verdict.status == status, verdict
    assert verdict.detail == ("more processor time than allowed" if status == "timeout" else "")


def test_time_asleep_counts_on_the_clock_alone(judge: Callable[..., Verdict]) -> None:
    sandbox = Sandbox(Limits(timeout_seconds=0.2, wall_seconds=1.5))
    judge.sandbox = sandbox  # type: ignore[attr-defined]
    program = "import time\ndef f(x):\n    time.sleep(x)\n"
    assert judge(program, "candidate(0.6)").status == "passed"
    verdict = judge(program, "candidate(60)")
    assert (verdict.status, verdict.detail) == ("timeout", "longer than 1.5 s on the clock")


def test_the_wall_limit_follows_the_processor_limit() -> None:
    assert Limits(timeout_seconds=7.0).clock_seconds == 42.0
    assert Limits(timeout_seconds=7.0, wall_seconds=9.0).clock_seconds == 9.0


def test_tests_that_take_too_long_are_a_timeout(judge: Callable[..., Verdict]) -> None:
    judge.sandbox = Sandbox(Limits(timeout_seconds=1.0, wall_seconds=60.0))  # type: ignore[attr-defined]
    verdict = judge("def f(x):\n    return x\n", "while candidate: pass")
    assert (verdict.status, verdict.detail) == ("timeout", "the tests took more than 1 s of processor time")


@pytest.mark.parametrize(
    ("shared", "own", "status"),
    [(1, 150, "memory"), (1, 20, "passed"), (200, 1, "passed"), (200, 100, "memory")],
)
def test_memory_is_that_of_all_processes(increment: Problem, shared: int, own: int, status: str) -> None:
    limits = Limits(timeout_seconds=20.0, memory_bytes=480 * MIB)
    if not Sandbox(limits).isolation()["processes"] and shared > 100 and status == "passed":
        pytest.skip("without a process namespace, shared memory counts for every process")
    verdict = Sandbox(limits).run(HOARD.format(shared=shared, own=own), increment)
    assert verdict.status == status, verdict
    if status == "memory":
        assert verdict.detail == "more memory than allowed in all its processes together"


def test_files_in_the_folder_count_as_memory(increment: Problem) -> None:
    limits = Limits(memory_bytes=256 * MIB)
    if not Sandbox(limits).isolation()["read_only_files"]:
        pytest.skip("the folder is on a disk here")
    hoard = "import time\nhoard = bytes(1) * (120 << 20)\n"
    files = "for n in range({}):\n    with open(str(n), 'wb') as file: file.write(bytes(50 << 20))\n"
    rest = "time.sleep(0.5)\ndef f(x):\n    return x + 1\n"
    assert Sandbox(limits).run(hoard + files.format(1) + rest, increment).status == "passed"
    assert Sandbox(limits).run(hoard + files.format(3) + rest, increment).status == "memory"


@pytest.mark.slow
def test_many_samples_leave_nothing(increment: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as ten for each problem of HumanEval: at most 1 GB, and nothing behind them."""
    programs = [
        "def f(x):\n    return x + 1\n",
        "def f(x):\n    return x\n",
        "import os\nopen('x', 'w').write('x')\nos.fork()\nos._exit(0)\n",
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,)).start()\n"
        "def f(x):\n    return x\n",
    ]
    expected = ["passed", "failed", "crashed", "failed"]
    proc = os.open("/proc", os.O_RDONLY)
    tree = ProcessTree(proc)
    peaks: list[int] = []
    finished = threading.Event()

    def watch() -> None:
        while not finished.wait(0.25):
            peaks.append(tree.memory_bytes(tree.processes()))

    # Not below pytest's folder, which other users cannot enter.
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        monkeypatch.setattr(tempfile, "tempdir", name)
        sandbox = Sandbox()
        sandbox.run(programs[0], increment)
        gc.collect()  # what earlier tests left open is not closed meanwhile
        descriptors, threads = set(os.listdir("/proc/self/fd")), threading.active_count()
        before, own = set(tree.processes()), tree.resident_bytes([os.getpid()])
        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            with Judges(sandbox, processors(), lambda sample: None) as judges:
                for number in range(1640):
                    record = CompletionRecord("Small/0", number, "", "", "", 0, None, 0.0)
                    judges.submit(increment, record, programs[number % 4])
                judged = judges.results()
        finally:
            finished.set()
            watcher.join()
        left = list(Path(name).iterdir())
    assert [sample.status for sample in judged] == [expected[sample.sample % 4] for sample in judged]
    assert len(judged) == 1640
    assert not left
    assert set(tree.processes()) <= before
    gc.collect()
    assert set(os.listdir("/proc/self/fd")) <= descriptors
    assert threading.active_count() <= threads
    assert tree.resident_bytes([os.getpid()]) - own < 50 * MIB
    assert 1 * MIB < max(peaks) < 1_000_000_000
    os.close(proc)
