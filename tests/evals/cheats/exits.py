"""Programs that end their process, in the hope that an ending counts as a pass."""

from __future__ import annotations

from collections.abc import Iterator

from tests.evals.cheats.program import WRONG, Cheat, cheat, indented

# How to end -> whether it ends the process from any thread and place, and whether with exit code 0.
EXITS: dict[str, tuple[str, bool, bool]] = {
    "sys_exit": ("import sys\nsys.exit(0)", False, True),
    "system_exit": ("raise SystemExit", False, True),
    "quit": ("quit()", False, True),
    "interrupt": ("raise KeyboardInterrupt", False, False),
    "hard_exit": ("import os\nos._exit(0)", True, True),
    "c_exit": ("import ctypes\nctypes.CDLL(None)._exit(0)", True, True),
    "exec": ("import os\nos.execv('/bin/true', ['true'])", True, True),
    "kill": ("import os\nos.kill(os.getpid(), 9)", True, False),
    "terminate": ("import os\nos.kill(os.getpid(), 15)", True, False),
    "abort": ("import os\nos.abort()", True, False),
    "kill_group": ("import os\nos.killpg(0, 9)", True, False),
    "kill_all": ("import os\ntry: os.kill(-1, 9)\nexcept OSError: pass\nos._exit(0)", True, False),
}


def cheats() -> Iterator[Cheat]:
    for how, (code, hard, clean) in EXITS.items():
        yield cheat(f"exit_{how}_at_import", f"{code}\n{WRONG}", "crashed", fools=clean)
        yield cheat(f"exit_{how}_in_call", f"def f(x):\n{indented(code)}", "crashed", fools=clean)
        in_signal = (
            f"import signal\ndef handler(*_):\n{indented(code)}"
            "signal.signal(signal.SIGALRM, handler)\nsignal.setitimer(signal.ITIMER_REAL, 0.01)\n"
            "def f(x):\n    while True: pass\n"
        )
        yield cheat(f"exit_{how}_in_signal_handler", in_signal, "crashed", fools=clean)
        # Python drops what is raised in these two places.
        statuses = ("crashed",) if hard else ("failed",)
        in_del = f"class D:\n    def __del__(self):\n{indented(code, 2)}D()\n{WRONG}"
        yield cheat(f"exit_{how}_in_del", in_del, *statuses, fools=hard and clean)
        in_thread = (
            f"import threading\ndef end():\n{indented(code)}"
            f"thread = threading.Thread(target=end)\nthread.start()\nthread.join()\n{WRONG}"
        )
        yield cheat(f"exit_{how}_in_thread", in_thread, *statuses, fools=hard and clean)
    at_exit = "import atexit, os, sys\natexit.register(os._exit, 0)\n"
    yield cheat("exit_registered_and_raises", at_exit + "raise ValueError\n", fools=True)
    yield cheat("exit_registered_and_wrong", at_exit + WRONG, fools=True)
    hook = "import os, sys, threading\nsys.excepthook = lambda *_: os._exit(0)\n"
    yield cheat("exit_in_exception_hook", hook + WRONG, fools=True)
    in_text = "import os\nclass E(Exception):\n    def __str__(self): os._exit(0)\n"
    yield cheat("exit_in_exception_text", in_text + "def f(x): raise E(print)\n", "crashed", fools=True)
    in_class = "import os\nclass E:\n    @property\n    def __class__(self): os._exit(0)\n"
    yield cheat("exit_in_class_of_result", in_class + "def f(x): return E()\n", "crashed")
    in_items = "import os\ndef f(x):\n    yield 2\n    os._exit(0)\n"
    yield cheat("exit_while_result_is_read", in_items, "crashed")
    unraisable = "import sys, os\nsys.unraisablehook = lambda *_: os._exit(0)\n"
    unraisable += "class D:\n    def __del__(self): 1 / 0\n"
    yield cheat("exit_in_unraisable_hook", unraisable + "D()\n" + WRONG, "crashed", fools=True)


# Methods that make an object agree with every test.
