"""Programs, and results, that take all there is."""

from __future__ import annotations

from collections.abc import Iterator

from tests.evals.cheats.program import WRONG, Cheat, cheat

# On a busy machine, taking memory costs more processor time than there is.
TAKES_MEMORY = ("memory", "timeout")
BOMBS: dict[str, tuple[str, tuple[str, ...]]] = {
    "forks": ("import os\nwhile True: os.fork()", ("failed", "timeout")),
    "patient_forks": ("import os\nwhile True:\n    try: os.fork()\n    except OSError: pass", ("timeout",)),
    "forks_in_sessions": (
        "import os\nwhile True:\n    try:\n        if os.fork() == 0: os.setsid()\n    except OSError: pass",
        ("timeout",),
    ),
    "threads": (
        "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(60,)).start()",
        ("failed",),
    ),
    "memory": ("hoard = []\nwhile True: hoard.append(bytes(1 << 20))", TAKES_MEMORY),
    "memory_at_once": ("hoard = bytearray(1 << 40)", ("memory",)),
    "memory_of_text": ("text = 'x'\nwhile True: text += text", TAKES_MEMORY),
    "memory_of_integers": ("number = 3\nwhile True: number *= number", TAKES_MEMORY),
    "memory_of_processes": (
        "import os, time\nfor _ in range(6):\n    if os.fork() == 0:\n        hoard = b'x' * (150 << 20)\n"
        "        time.sleep(60)\ntime.sleep(60)",
        TAKES_MEMORY,
    ),
    "shared_memory": (
        "import mmap, time\nhoard = [mmap.mmap(-1, 60 << 20) for _ in range(8)]\n"
        "for part in hoard: part.write(b'x' * (60 << 20))",
        ("failed", "memory"),  # Where system calls are not filtered, they count.
    ),
    "shared_memory_that_no_process_has": (
        "import mmap, time\nhoard = []\nfor _ in range(20):\n    hoard.append(mmap.mmap(-1, 60 << 20))\n"
        "    hoard[-1].write(b'x' * (60 << 20))\n    hoard[-1].resize(4096)",
        ("failed",),
    ),
    "shared_zeros_that_no_process_has": (
        "import mmap, os, time\nhoard = []\nzeros = os.open('/dev/zero', os.O_RDWR)\nfor _ in range(20):\n"
        "    hoard.append(mmap.mmap(zeros, 60 << 20))\n"
        "    hoard[-1].write(b'x' * (60 << 20))\n    hoard[-1].resize(4096)",
        ("failed",),
    ),
    "one_file": ("open('x', 'wb').write(bytes(65 << 20))", ("failed",)),
    "files": (
        "for number in range(99):\n    with open(str(number), 'wb') as file: file.write(bytes(10 << 20))",
        ("failed", "memory"),
    ),
    "many_files": ("for number in range(99999): open(str(number), 'w').close()", ("failed",)),
    "descriptors": ("files = [open('/dev/null') for _ in range(100)]", ("failed",)),
    "recursion": ("def g(): return g()\ng()", ("failed",)),
    "deep_recursion": (
        "import sys\nsys.setrecursionlimit(10**9)\ndef g(n): return [g(n + 1)]\ng(0)",
        ("failed", "crashed", "memory", "timeout"),
    ),
    "loop": ("while True: pass", ("timeout",)),
    "loop_in_c": ("import itertools\nsum(itertools.repeat(0))", ("timeout",)),
    "arithmetic": ("10 ** 10 ** 9", ("timeout", "memory")),
    "regular_expression": ("import re\nre.match('(a*)*b', 'a' * 40)", ("timeout",)),
    "sleep": ("import time\ntime.sleep(60)", ("timeout",)),
    "stopped": ("import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)", ("timeout",)),
    "swallows_signals": (
        "import signal\nfor number in range(1, 65):\n    try: signal.signal(number, signal.SIG_IGN)\n"
        "    except (OSError, ValueError): pass\nwhile True: pass",
        ("timeout",),
    ),
    "swallows_exceptions": (
        "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
        ("timeout",),
    ),
    "busy_processes": ("import os\nfor _ in range(3): os.fork()\nwhile True: pass", ("timeout",)),
    "waits_for_itself": (
        "import threading\nlock = threading.Lock()\nlock.acquire()\nlock.acquire()",
        ("timeout",),
    ),
}
RESULTS = {
    "endless": "while True: yield x",
    "huge": "return 'x' * (40 << 20)",
    "cyclic": "result = []\n    result.append(result)\n    return result",
    "deep": "result = []\n    for _ in range(1000): result = [result]\n    return result",
    "long_integer": "return 1 << 10**7",
    "many_items": "return list(range(2_000_000))",
    "name_of_a_type": "return type('a\\n' * 10**6, (), {})()",
    "surrogates": "return chr(0xd800)",
    "generator_of_itself": "own = (item for item in [1])\n    return own, own",
}


def cheats() -> Iterator[Cheat]:
    for name, (code, statuses) in BOMBS.items():
        yield cheat(f"bomb_{name}", f"{code}\n{WRONG}", *statuses)
    for name, code in RESULTS.items():
        yield cheat(f"result_{name}", f"def f(x):\n    {code}\n", "failed", "memory")
