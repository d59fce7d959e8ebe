"""Judges one program against one problem, from outside the processes that do it.

    sandbox = Sandbox(Limits(timeout_seconds=10.0))
    verdict = sandbox.run(program, problem)      # Verdict(status="passed", detail="", seconds=0.02)

Two fresh interpreters meet over a socket: the keeper's side runs the program, the judge's side the
tests (see ``docs/evaluation.md``).  Nothing here keeps state between programs; call from as many
threads as there are processors.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import math
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

from evals.problems import Problem
from evals.sandbox.folders import program_folder
from laneformer.errors import EvaluationError

Status = Literal["passed", "failed", "timeout", "memory", "crashed", "no-code"]
STATUSES: tuple[Status, ...] = ("passed", "failed", "timeout", "memory", "crashed", "no-code")

NO_CODE = "the completion holds no definition of the function"

# A machine so busy that a program gets a sixth of a processor must not make a timeout of a right answer.
WALL_FACTOR = 6.0

_SOURCE_ROOT = str(Path(__file__).resolve().parents[2])
# Of our own processes, on a busy machine: reaching one of these is an error, or a fault of the program.
_START_SECONDS = 300.0
_END_SECONDS = 5.0
_STOP_SECONDS = 60.0
# Of what our processes report: a detail of the judge's is its longest part.
_MAX_LINE_BYTES = 1 << 20
# What a fair judge needs beyond the largest value that the candidate may send it.
_JUDGE_EXTRA_BYTES = 1 << 30


@dataclass(frozen=True)
class Limits:
    """What one program may use."""

    timeout_seconds: float = 10.0
    """Processor time of the program with all its processes; as much again of the tests."""
    wall_seconds: float | None = None
    """Time on the clock for program and tests, from when the program's process is ready; None:
    :data:`WALL_FACTOR` times ``timeout_seconds``."""
    memory_bytes: int = 2 << 30
    """Memory of all processes together, files in the program's folder included, and address space of each."""
    file_bytes: int = 64 << 20
    """Size of each file."""
    processes: int = 16
    """Processes and threads."""
    open_files: int = 64

    @property
    def clock_seconds(self) -> float:
        """``wall_seconds``, or what stands in for it."""
        return WALL_FACTOR * self.timeout_seconds if self.wall_seconds is None else self.wall_seconds


@dataclass(frozen=True)
class Verdict:
    """How one program fared: a status, one line saying why, and wall-clock seconds."""

    status: Status
    detail: str
    seconds: float


class _Lines:
    """Reads JSON lines of at most ``_MAX_LINE_BYTES`` from a pipe with a deadline."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._descriptor = pipe.fileno()
        self._buffer = bytearray()

    def next(self, deadline: float) -> dict[str, Any] | None:
        """The next line; TimeoutError after ``deadline`` (monotonic).

        None at the end of the pipe, and instead of a line that is too long: whoever writes one does not do
        what our processes do, and nothing that it says counts.
        """
        searched = 0
        while (end := self._buffer.find(b"\n", searched)) < 0:
            searched = len(self._buffer)
            if searched > _MAX_LINE_BYTES:
                return None
            remaining = deadline - time.monotonic()
            poller = select.poll()  # Not select(): descriptors of a training run may exceed 1023.
            poller.register(self._descriptor, select.POLLIN)
            if remaining <= 0 or not poller.poll(math.ceil(remaining * 1000)):
                raise TimeoutError
            data = os.read(self._descriptor, 65536)
            if not data:
                return None
            self._buffer += data
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        return dict(json.loads(line))


@contextlib.contextmanager
def _interpreter(
    module: str, channel: socket.socket, request: dict[str, Any]
) -> Iterator[subprocess.Popen[bytes]]:
    """A fresh interpreter in its own session that runs ``module``'s main() on ``request``."""
    environment = {
        "PATH": os.defpath,
        "LANG": "C.UTF-8",
        # The order of sets of strings must not decide whether a program passes.
        "PYTHONHASHSEED": "0",
        # numpy would start a thread per processor, against the limit on processes.
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }
    if "LD_LIBRARY_PATH" in os.environ:  # Some builds of Python do not start without it.
        environment["LD_LIBRARY_PATH"] = os.environ["LD_LIBRARY_PATH"]
    start = f"from evals.sandbox import {module}; {module}.main()"
    code = f"import sys; sys.path.insert(0, {_SOURCE_ROOT!r}); {start}"
    process = subprocess.Popen(
        # As -I, which would ignore PYTHONHASHSEED too; the environment holds no other PYTHON variable.
        [sys.executable, "-s", "-P", "-B", "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd="/",
        env=environment,
        pass_fds=(channel.fileno(),),
        start_new_session=True,
    )
    channel.close()
    assert process.stdin is not None and process.stdout is not None
    try:
        with contextlib.suppress(BrokenPipeError):  # It ended early; its silence tells.
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
        process.wait()


class Sandbox:
    """Runs programs under ``limits``.

    ``hidden_paths`` are files and folders that programs must not see, such as the problems' own
    solutions; they are hidden where the kernel permits private mounts.  ``namespaces=False`` does
    without namespaces, as on kernels that do not permit them.
    """

    def __init__(
        self, limits: Limits | None = None, *, hidden_paths: Sequence[Path] = (), namespaces: bool = True
    ) -> None:
        if sys.platform != "linux":
            raise EvaluationError(f"the sandbox needs Linux, and this is {sys.platform}")
        self.limits = limits or Limits()
        # Those that do not exist yet are hidden from the programs that run when they do.
        self._hidden = [str(path.resolve()) for path in hidden_paths]
        self._namespaces = namespaces
        self._required: list[str] = []

    def run(self, program: str | None, problem: Problem) -> Verdict:
        """Judges ``program``; None stands for a completion without code.

        Raises EvaluationError when no program can be judged here, or the problem's tests are broken.
        """
        if program is None:
            return Verdict("no-code", NO_CODE, 0.0)
        return self._run(program, problem)[0]

    def isolation(self) -> dict[str, bool]:
        """Which kinds of isolation are active on this machine, by the names of ``Isolation``'s fields.

        From here on, a program that would have less is not started: :meth:`run` raises EvaluationError.
        """
        problem = Problem("probe", "def probe():\n", "probe", "def check(candidate):\n    candidate()\n", "")
        verdict, active = self._run("def probe():\n    pass\n", problem)
        if verdict.status != "passed":
            raise EvaluationError(f"the sandbox does not work here: {verdict.status}, {verdict.detail}")
        self._required = [kind for kind, is_active in active.items() if is_active]
        return active

    def _run(self, program: str, problem: Problem) -> tuple[Verdict, dict[str, bool]]:
        with program_folder() as folder:
            return self._run_in(folder, program, problem)

    def _run_in(self, folder: str, program: str, problem: Problem) -> tuple[Verdict, dict[str, bool]]:
        limits = self.limits
        nonce = secrets.token_hex(16)
        candidate_channel, judge_channel = socket.socketpair()
        keeper_request = {
            "source_root": _SOURCE_ROOT,
            "folder": folder,
            "hidden": self._hidden,
            "namespaces": self._namespaces,
            "required": self._required,
            "channel": candidate_channel.fileno(),
            "program": program,
            "entry_point": problem.called,
            "limits": {
                "cpu_seconds": limits.timeout_seconds,
                "memory_bytes": limits.memory_bytes,
                "file_bytes": limits.file_bytes,
                "processes": limits.processes,
                "open_files": limits.open_files,
            },
        }
        judge_request = {
            "channel": judge_channel.fileno(),
            "prompt": problem.prompt,
            "tests": problem.test,
            "entry_point": problem.called,
            "nonce": nonce,
            "parent": os.getpid(),
            "cpu_seconds": math.ceil(limits.timeout_seconds),
            "memory_bytes": limits.memory_bytes + _JUDGE_EXTRA_BYTES,
        }
        with (
            candidate_channel,
            judge_channel,
            _interpreter("keeper", candidate_channel, keeper_request) as keeper,
            _interpreter("judge", judge_channel, judge_request) as judge,
        ):
            assert keeper.stdin is not None and keeper.stdout is not None and judge.stdout is not None
            events = _Lines(keeper.stdout)
            ready = _next_event(events, _START_SECONDS)
            if ready is None:
                raise EvaluationError(f"the sandbox did not start a program within {_START_SECONDS:g} s")
            start = time.monotonic()
            try:
                report = _Lines(judge.stdout).next(start + limits.clock_seconds)
            except TimeoutError:
                detail = f"longer than {limits.clock_seconds:g} s on the clock"
                report = {"outcome": "timeout", "detail": detail}
            seconds = time.monotonic() - start
            ended = None
            if report is not None and report["outcome"] == "gone":
                # A process that is ending closes its connection first; its own end says more.
                ended = _next_event(events, _END_SECONDS)
            keeper.stdin.close()
            ended = ended or _next_event(events, _STOP_SECONDS)
            if ended is not None:
                # It waits for init.  Killed before that, it would leave init to whoever adopts orphans, and
                # where the evaluation is the first process of a container, nobody would wait for them.
                with contextlib.suppress(subprocess.TimeoutExpired):
                    keeper.wait(_STOP_SECONDS)
        if report is None and judge.returncode == -signal.SIGXCPU:
            detail = f"the tests took more than {limits.timeout_seconds:g} s of processor time"
            report = {"outcome": "timeout", "detail": detail}
        if report is not None and report["outcome"] == "broken":
            raise EvaluationError(f"{problem.task_id} cannot be judged: {report['detail']}")
        status, detail = decide(report, ended, nonce)
        return Verdict(status, detail, seconds), dict(ready["isolation"])


def _next_event(events: _Lines, seconds: float) -> dict[str, Any] | None:
    """Init's next event; None when it says nothing for ``seconds`` or has ended."""
    try:
        event = events.next(time.monotonic() + seconds)
    except TimeoutError:
        return None
    if event is not None and event["event"] == "error":
        raise EvaluationError(f"the sandbox cannot run programs here: {event['detail']}")
    return event


def decide(report: dict[str, Any] | None, ended: dict[str, Any] | None, nonce: str) -> tuple[Status, str]:
    """The status and its reason, from the judge's report and init's (see those modules); None: silence."""
    if report is None:
        return "failed", "the tests ended without a verdict on this program's answers"
    outcome, detail = report["outcome"], report.get("detail", "")
    if outcome == "gone":
        return _how_it_ended(ended)
    folder_kept = ended is not None and ended["folder_kept"]
    if outcome in ("passed", "failed") and ended is not None and not folder_kept:
        return "failed", "the program deleted its temporary folder"
    if outcome == "passed":
        if not folder_kept or not hmac.compare_digest(str(report.get("nonce")), nonce):
            return "crashed", "the program interfered with the processes that watch it"
        return "passed", ""
    return outcome, detail


def _how_it_ended(ended: dict[str, Any] | None) -> tuple[Status, str]:
    if ended is None:
        return "crashed", "the program ended its process and those that watch it"
    if ended["why"] == "time":
        return "timeout", "more processor time than allowed"
    if ended["why"] == "memory":
        return "memory", "more memory than allowed in all its processes together"
    if ended["why"] == "stopped":
        return "crashed", "the program closed its connection"
    if ended["signal"] is None:
        return "crashed", f"the program ended its process with exit code {ended['code']}"
    return "crashed", f"the program's process was killed by {signal.Signals(ended['signal']).name}"
