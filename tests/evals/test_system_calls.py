"""What the filter refuses, and what programs go on to have."""

from __future__ import annotations

import errno
import importlib.util
from collections.abc import Callable

import pytest

from evals.sandbox import system_calls
from evals.sandbox.runner import Sandbox, Verdict

Run = Callable[..., Verdict]


@pytest.fixture(autouse=True)
def filtered() -> None:
    if not Sandbox().isolation()["system_calls"]:
        pytest.skip("no filter here: not x86-64, or the kernel refuses it")


def _refused(judge: Run, body: str, error: int = errno.EPERM) -> None:
    program = f"import ctypes, os, socket, threading\ndef f(x):\n    {body}\n"
    catch = f"except OSError as error:\n    assert error.errno == {error}\n    return\n"
    tests = f"try:\n    candidate(0)\n{catch}assert False"
    verdict = judge(program, tests)
    assert verdict.status == "passed", verdict


CALL = (
    "libc = ctypes.CDLL(None, use_errno=True); libc.syscall.restype = ctypes.c_long\n"
    "    result = libc.syscall(*(ctypes.c_long(word) for word in ({number}, {arguments})))\n"
    "    if result < 0: raise OSError(ctypes.get_errno(), 'refused')"
)


@pytest.mark.parametrize("name", system_calls._REFUSED)
def test_refused_calls(judge: Run, name: str) -> None:
    _refused(judge, CALL.format(number=system_calls._REFUSED[name], arguments="0, 0, 0, 0, 0"))


@pytest.mark.parametrize("flag", ["0x10000000", "0x20000000", "0x40000000", "0x20000", "0x2000000"])
def test_clone_makes_no_namespaces(judge: Run, flag: str) -> None:
    _refused(judge, CALL.format(number=56, arguments=f"{flag} | 17, 0, 0, 0, 0"))
    _refused(judge, CALL.format(number=435, arguments="0, 0, 0, 0, 0"), errno.ENOSYS)


def test_calls_by_other_numbers_are_refused(judge: Run) -> None:
    _refused(judge, CALL.format(number=0x40000000 + 39, arguments="0, 0, 0, 0, 0"))


@pytest.mark.parametrize("family", [1, 17, 38, 40])
def test_sockets_of_other_families_are_refused(judge: Run, family: int) -> None:
    _refused(judge, f"socket.socket({family}, socket.SOCK_STREAM)")


@pytest.mark.parametrize("kind", ["DGRAM", "RAW", "DGRAM | socket.SOCK_CLOEXEC", "RDM"])
def test_pairs_that_reach_other_sockets_are_refused(judge: Run, kind: str) -> None:
    _refused(judge, f"socket.socketpair(socket.AF_UNIX, socket.SOCK_{kind})")


@pytest.mark.parametrize("family", [2, 30, 40])
def test_pairs_of_other_families_are_refused(judge: Run, family: int) -> None:
    _refused(judge, f"socket.socketpair({family}, socket.SOCK_STREAM)")


@pytest.mark.parametrize("flags", ["mmap.MAP_SHARED", "mmap.MAP_SHARED | mmap.MAP_POPULATE"])
def test_shared_memory_without_a_file_is_refused(judge: Run, flags: str) -> None:
    _refused(judge, f"import mmap; mmap.mmap(-1, 4096, {flags} | mmap.MAP_ANONYMOUS)")
    _refused(judge, "import mmap; mmap.mmap(-1, 4096)")


def test_zeros_cannot_be_mapped_either(judge: Run) -> None:
    if not Sandbox().isolation()["read_only_files"]:
        pytest.skip("there are no private mounts here")
    _refused(judge, "import mmap; mmap.mmap(os.open('/dev/zero', os.O_RDWR), 4096)", errno.ENODEV)


@pytest.mark.parametrize(
    "body",
    [
        "import asyncio\n    async def g(): return x + 1\n    return asyncio.run(g())",
        "import threading\n    found = []\n    t = threading.Thread(target=lambda: found.append(x + 1))\n"
        "    t.start(); t.join()\n    return found[0]",
        "import concurrent.futures as c\n    with c.ThreadPoolExecutor(2) as pool:\n"
        "        return pool.submit(lambda: x + 1).result()",
        "import subprocess\n    return x + int(subprocess.run(['echo', '1'], capture_output=True).stdout)",
        "import ctypes\n    return ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)(lambda y: y + 1)(x)",
        "import os\n    child = os.fork()\n    if child == 0: os._exit(x + 1)\n"
        "    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])",
        "import mmap\n    m = mmap.mmap(-1, 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\n"
        "    m[0] = x + 1\n    return m[0]",
        "import socket\n    a, b = socket.socketpair()\n    a.send(bytes([x + 1]))\n    return b.recv(1)[0]",
        "import socket as s\n    a, b = s.socketpair(s.AF_UNIX, s.SOCK_SEQPACKET | s.SOCK_NONBLOCK)\n"
        "    a.send(bytes([x + 1]))\n    return b.recv(1)[0]",
        "import mmap\n    with open('file', 'wb+') as file:\n        file.truncate(4096)\n"
        "        m = mmap.mmap(file.fileno(), 4096)\n        m[0] = x + 1\n        return m[0]",
        "import multiprocessing\n    a, b = multiprocessing.Pipe()\n"
        "    p = multiprocessing.get_context('fork').Process(target=lambda: b.send(x + 1))\n"
        "    p.start(); p.join()\n    return a.recv()",
        "import socket\n    socket.socket(socket.AF_INET).close()\n    return x + len(socket.if_nameindex())",
        "import tempfile\n    with tempfile.TemporaryFile() as t: return x + t.write(b'x')",
        "import time\n    time.sleep(0.01)\n    return x + 1",
    ],
)
def test_what_programs_may_use_still_works(judge: Run, body: str) -> None:
    verdict = judge(f"def f(x):\n    {body}\n", "assert candidate(1) == 2")
    assert verdict.status == "passed", verdict


@pytest.mark.skipif(importlib.util.find_spec("numpy") is None, reason="numpy is not installed")
def test_numpy_works(judge: Run) -> None:
    body = "import numpy as np\n    return int((np.ones((50, 50)) @ np.ones((50, 50)))[0, 0]) + x"
    verdict = judge(f"def f(x):\n    {body}\n", "assert candidate(1) == 51")
    assert verdict.status == "passed", verdict
