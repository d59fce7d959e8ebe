"""Programs that change what tests may use: builtins, modules, the interpreter's hooks."""

from __future__ import annotations

from collections.abc import Iterator

from tests.evals.cheats.program import WRONG, Cheat, cheat

PATCHES = {
    "assertion_error": ("import builtins\nbuiltins.AssertionError = builtins.ValueError = Exception", False),
    "abs_bool_len": ("import builtins\nbuiltins.abs = builtins.bool = builtins.len = lambda _: 0", False),
    "import": ("import builtins\nbuiltins.__import__ = lambda *_: None", False),
    "all_builtins": (
        "import builtins\nfor name in list(vars(builtins)):\n    if name[0].islower():"
        " setattr(builtins, name, lambda *_: True)",
        False,
    ),
    "builtins_dict": ("__builtins__['AssertionError'] = __builtins__['abs'] = lambda *_: 0", False),
    "math_copy_random": (
        "import math, copy, random\nmath.isclose = copy.deepcopy = random.random = lambda *_: True",
        False,
    ),
    "json": ('import json\njson.dumps = lambda *_, **__: \'["tuple",["returned",2,null]]\'', False),
    "json_loads": ("import json\njson.loads = lambda *_: ['tuple', [['list', [1]], ['dict', []]]]", False),
    "modules": (
        "import sys, types\nfor name in ('math', 'copy', 'unittest', 'random'):\n"
        "    sys.modules[name] = types.ModuleType(name)",
        False,
    ),
    "mock_patch": ("from unittest import mock\nmock.patch('builtins.abs', lambda _: 0).start()", False),
    "operator": ("import operator\noperator.eq = lambda *_: True", False),
    "exit_hooks": ("import sys, os\nsys.exit = os._exit = lambda *_: None", False),
    "exceptions": ("import builtins\nbuiltins.Exception = builtins.BaseException = KeyError", False),
    "importer": ("import sys\nsys.meta_path.clear()\nsys.path.clear()\nsys.modules.clear()", False),
    "trace": (
        "import sys\ndef trace(frame, event, argument):\n    if frame.f_code.co_name == 'check':"
        " frame.f_trace_lines = False\n    return trace\nsys.settrace(trace)",
        False,
    ),
    "jump_to_last_test": (
        "import sys\ndef trace(frame, event, argument):\n    last = frame.f_code.co_firstlineno + 5\n"
        "    if frame.f_code.co_name == 'check' and event == 'line' and frame.f_lineno < last:\n"
        "        frame.f_lineno = last\n    return trace\nsys.settrace(trace)\ndef f(x): return 6.5",
        True,
    ),
    "wire": (
        "import sys\nfor module in list(sys.modules.values()):\n    if hasattr(module, 'WireError'):\n"
        '        module.dumps = lambda _: b\'["tuple",["returned",2,null]]\'',
        False,
    ),
    "wire_send": (
        "import sys\nfor module in list(sys.modules.values()):\n    if hasattr(module, 'WireError'):\n"
        "        module.send = lambda channel, _: channel.sendall(b'\\0\\0\\0\\2{}')",
        False,
    ),
    "serve": (
        "import sys\nfor module in list(sys.modules.values()):\n    if hasattr(module, 'serve'):\n"
        '        module._call = lambda *_: b\'["tuple",["passed"]]\'',
        False,
    ),
}


def cheats() -> Iterator[Cheat]:
    for name, (code, fools) in PATCHES.items():
        yield cheat(
            f"patched_{name}",
            f"{code}\n{'' if 'def f(' in code else WRONG}",
            "failed",
            "crashed",
            fools=fools,
        )
    # A small integer of the interpreter overwritten in memory: 2 becomes 1.
    small = "import ctypes\nctypes.memmove(id(2) + 24, id(1) + 24, 4)\n"
    yield cheat("patched_small_integer", small + WRONG, "failed", "crashed")
