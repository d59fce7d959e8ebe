"""Keeps the untrusted program: isolates it, starts it, and afterwards leaves nothing of it behind.

Started by ``runner`` as a fresh interpreter.  Three processes, from the outside in:

    keeper       leaves the namespaces of the evaluation, then only waits
    init         first process of the new process namespace; parent of all that the program starts
    candidate    without privileges, under limits: runs the program (``candidate.serve``)

Reads one JSON request on standard input.  Init writes JSON lines on standard output:

    {"event": "error", "detail": ...}                 the program cannot be run here
    {"event": "ready", "isolation": {...}}            the candidate process exists and waits
    {"event": "ended", "code": ..., "signal": ..., "why": ..., "folder_kept": ...}

The end comes when the candidate's process ends ("why" is "ended"), when standard input is closed ("stopped"),
or when all processes of the program together have used more processor time ("time") or memory ("memory")
than they may.  Then every process that the program started is killed.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import resource
import select
import signal
import socket
import sys
import time
from dataclasses import asdict
from typing import Any

from evals.sandbox import candidate, isolation, linux, system_calls
from evals.sandbox.usage import ProcessTree

_FOLDER = "work"
# How often init looks at what the program uses, at most: looking takes no more than a twentieth of its time.
_LOOK_SECONDS = 0.05
_LOOK_SHARE = 0.05


def _report(**event: Any) -> None:
    os.write(1, json.dumps(event).encode() + b"\n")


def _at_most(value: int, most: int) -> int:
    """``value``, or the hard limit ``most`` where an ordinary user has a stricter one."""
    return value if most == resource.RLIM_INFINITY else min(value, most)


def _count_tasks(user: int) -> int:
    """Threads of all processes of ``user``, which is what RLIMIT_NPROC counts."""
    count = 0
    for entry in os.scandir("/proc"):
        # Processes may end while they are counted.
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and entry.stat().st_uid == user:
                count += len(os.listdir(f"/proc/{entry.name}/task"))
    return count


def _limit_processes(extra: int, tasks: int, active: isolation.Isolation) -> None:
    """Allows ``extra`` processes and threads, to a user who had ``tasks`` outside of the sandbox."""
    _, most = resource.getrlimit(resource.RLIMIT_NPROC)
    # As a user of our own, or in a fresh user namespace, the kernel counts from zero ...
    counted_from_zero = active.unprivileged_user or active.processes
    limit = _at_most(extra if counted_from_zero else extra + tasks, most)
    resource.setrlimit(resource.RLIMIT_NPROC, (limit, most))
    try:
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
    except BlockingIOError:
        # ... but for namespaces only since Linux 5.14.
        limit = _at_most(extra + tasks, most)
    resource.setrlimit(resource.RLIMIT_NPROC, (limit, limit))


def _limit_resources(limits: dict[str, Any]) -> None:
    for kind, value in (
        (resource.RLIMIT_CORE, 0),
        # For the case that init, which counts all processes, does not get to look.
        (resource.RLIMIT_CPU, math.ceil(limits["cpu_seconds"]) + 1),
        (resource.RLIMIT_FSIZE, limits["file_bytes"]),
        (resource.RLIMIT_NOFILE, limits["open_files"]),
        (resource.RLIMIT_AS, limits["memory_bytes"]),
    ):
        value = _at_most(value, resource.getrlimit(kind)[1])
        resource.setrlimit(kind, (value, value))


def _prepare_candidate(request: dict[str, Any], active: isolation.Isolation) -> socket.socket:
    """Turns this fresh child of init into the candidate's process, ready for untrusted code."""
    folder = request["folder"]
    channel = socket.socket(fileno=request["channel"])
    os.setsid()
    isolation.become_unprivileged(active, folder, request["number"])
    if active.processes:
        linux.forbid_tracing(False)  # Init divides shared memory; nobody else of this user sees the process.
    else:
        linux.die_with_parent(signal.SIGKILL)
    os.mkdir(os.path.join(folder, _FOLDER))
    os.chdir(os.path.join(folder, _FOLDER))
    os.environ["HOME"] = os.environ["TMPDIR"] = os.getcwd()
    _limit_processes(request["limits"]["processes"], request["tasks"], active)
    _limit_resources(request["limits"])
    active.system_calls = system_calls.refuse()
    isolation.require(active, request["required"])
    _report(event="ready", isolation=asdict(active))

    keep = channel.fileno()
    os.closerange(3, keep)
    os.closerange(keep + 1, request["limits"]["open_files"])
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    os.close(null)
    sys.path.remove(request["source_root"])
    return channel


def _candidate_process(request: dict[str, Any], active: isolation.Isolation) -> int:
    """Runs the program; returns the exit code of the process."""
    try:
        channel = _prepare_candidate(request, active)
    except Exception as error:
        _report(event="error", detail=isolation.describe(error))
        return 1
    try:
        candidate.serve(channel, request["program"], request["entry_point"])
    except SystemExit as error:
        if error.code is None:
            return 0
        return error.code & 0xFF if isinstance(error.code, int) else 1
    return 0


def _folder_bytes(request: dict[str, Any], active: isolation.Isolation) -> int:
    """What the program's folder takes of the memory: nothing where it is on a disk."""
    if not active.read_only_files:
        return 0
    files = os.statvfs(request["folder"])
    return (files.f_blocks - files.f_bfree) * files.f_frsize


def _watch(
    request: dict[str, Any], active: isolation.Isolation, tree: ProcessTree, child_descriptor: int
) -> str:
    """Waits for the end of the candidate, the runner's word or a limit; returns which ("why")."""
    limits = request["limits"]
    pause = _LOOK_SECONDS
    while True:
        readable, _, _ = select.select([0, child_descriptor], [], [], pause)
        if readable:
            return "ended" if child_descriptor in readable else "stopped"
        began = time.monotonic()
        processes = tree.processes()
        if tree.processor_seconds(processes) > limits["cpu_seconds"]:
            return "time"
        left = limits["memory_bytes"] - _folder_bytes(request, active)
        # Shared pages take a while to count once, so first the sum that counts them for every process.
        if tree.resident_bytes(processes) > left and tree.memory_bytes(processes) > left:
            return "memory"
        pause = max(_LOOK_SECONDS, (time.monotonic() - began) / _LOOK_SHARE)


def _kill_all(active: isolation.Isolation, tree: ProcessTree) -> None:
    """Kills and reaps every descendant, also those in sessions of their own."""
    while True:
        if active.processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)
        else:
            # Orphans come to this process (adopt_orphans), so none escapes; forks are few
            # (RLIMIT_NPROC), so the killing overtakes them.
            for process in tree.processes():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG if not active.processes else 0) != (0, 0):
                pass
        except ChildProcessError:
            return


def _init_process(request: dict[str, Any], active: isolation.Isolation, private_mounts: bool) -> None:
    """Starts the candidate, waits for its end or the runner's word, and cleans up."""
    # The first process of a namespace gets only signals that it has handlers for; have none.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    linux.die_with_parent(signal.SIGKILL)
    linux.forbid_tracing()
    if not active.processes:
        linux.adopt_orphans()
    proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
    if private_mounts:
        isolation.set_up_mounts(active, request["folder"], request["hidden"])
        if os.path.lexists("/proc/self"):  # one of its own, and not the old one covered by nothing
            os.close(proc)
            proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
    tree = ProcessTree(proc)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = _candidate_process(request, active)
        finally:
            # Whatever happened, no untrusted code may return into the code of init.
            os._exit(code)
    os.close(request["channel"])
    child_descriptor = os.pidfd_open(child)
    why = _watch(request, active, tree, child_descriptor)
    if why != "ended":
        os.kill(child, signal.SIGKILL)
    _, status, used = os.wait4(child, 0)
    _kill_all(active, tree)
    if why == "ended" and os.WIFSIGNALED(status):
        # Without having been looked at in time: the kernel's own limit.
        seconds = used.ru_utime + used.ru_stime
        why = "time" if seconds > request["limits"]["cpu_seconds"] else why
    _report(
        event="ended",
        code=os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else None,
        signal=os.WTERMSIG(status) if os.WIFSIGNALED(status) else None,
        why=why,
        folder_kept=os.path.isdir(os.path.join(request["folder"], _FOLDER)),
    )


def main() -> None:
    request = json.loads(sys.stdin.buffer.readline())
    request["number"] = os.getpid()
    request["tasks"] = _count_tasks(os.getuid()) if os.getuid() != 0 else 0
    # Should the machine run out of memory, kill from here down: the largest will be the program.
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
        score.write("1000")
    active = isolation.Isolation()
    private_mounts = request["namespaces"] and isolation.enter_namespaces(active)
    init = os.fork()
    if init == 0:
        try:
            _init_process(request, active, private_mounts)
        except BaseException as error:
            _report(event="error", detail=isolation.describe(error))
        os._exit(0)
    os.close(request["channel"])
    os.waitpid(init, 0)
    os._exit(0)  # The runner waits for it.
