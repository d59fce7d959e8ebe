"""Programs that write verdicts, or answers before they are asked."""

from __future__ import annotations

from collections.abc import Iterator

from tests.evals.cheats.program import WRONG, Cheat, cheat

# In a call, frames have its token, which is there to be found: so the judge looks at what they say.
CHANNEL = """
import os, socket, stat, sys
def found_token():
    at = sys._getframe()
    while at is not None and "token" not in at.f_locals:
        at = at.f_back
    return b"" if at is None else at.f_locals["token"]
def channel():
    for number in range(64):
        try:
            if stat.S_ISSOCK(os.fstat(number).st_mode):
                return socket.socket(fileno=os.dup(number))
        except OSError:
            pass
def frame(text):
    data = found_token() + text.encode()
    return len(data).to_bytes(4, "big") + data
def returned(value):
    return frame('["tuple",["returned",%s,null]]' % value)
DEFINED = frame('["tuple",["defined"]]')
"""
# Bytes that a program sends on its connection before it is asked.
FORGED = {
    "verdict": """frame('{"outcome": "passed"}')""",
    "verdict_as_message": """frame('["tuple",["passed"]]')""",
    "one_answer": "returned(2)",
    "right_answers": "DEFINED + b''.join(returned(n) for n in (2, 3, 4, 5, 6, 7))",
    "more_answers": "DEFINED + b''.join(returned(n) for n in (2, 3, 4, 5, 6, 7) * 9)",
    "defined_twice": "DEFINED + DEFINED",
    "exit": """frame('["tuple",["raised",["list",["SystemExit","BaseException"]],["tuple",[0]]]]')""",
    "fault": """frame('["tuple",["raised",["list",["CandidateFault"]],["tuple",["passed",""]]]]')""",
    "stop_iteration": """frame('["tuple",["raised",["list",["StopIteration","Exception"]],["tuple",[]]]]')""",
    "opaque": """frame('["tuple",["opaque","passed"]]')""",
    "long_opaque": """frame('["tuple",["opaque","' + ('a' + chr(92) + 'n') * (1 << 20) + '"]]')""",
    "deep_answer": """DEFINED + returned('["list",[' * 200 + ']]' * 200)""",
    "longest_frame": "b'\\xff' * 64",
    "empty_frame": "b'\\0' * 64",
    "nested": "frame('[' * 200_000)",
    "object": """frame('{"returned": 2}')""",
    "unknown_tag": """frame('["object",["passed"]]')""",
    "not_a_number": """DEFINED + returned('NaN')""",
    "large_range": """DEFINED + returned('["range",[0,1000000000000,1]]')""",
    "endless_integer": """DEFINED + returned('["int","0x' + 'f' * 100000 + '"]')""",
    "no_json": "frame('passed')",
    "binary": "b'\\0\\0\\0\\4\\xff\\xfe\\xfd\\xfc'",
}


def cheats() -> Iterator[Cheat]:
    for name, data in FORGED.items():
        send = f"{CHANNEL}\nchannel().sendall({data})\n"
        yield cheat(f"forged_{name}", send + WRONG)
        in_call = (
            f"{CHANNEL}\ndef f(x):\n    channel().sendall({data.replace('DEFINED + ', '')})\n    return x\n"
        )
        yield cheat(f"forged_{name}_in_call", in_call)
    yield cheat(
        "forged_by_thread",
        f"{CHANNEL}\nimport threading\ndef answer():\n    own = channel()\n"
        f"    while True: own.sendall(returned(2))\n"
        f"threading.Thread(target=answer, daemon=True).start()\n{WRONG}",
    )
    yield cheat(
        "forged_by_process",
        f"{CHANNEL}\nif os.fork() == 0:\n    own = channel()\n"
        f"    for n in (2, 3, 4, 5, 6, 7): own.sendall(returned(n))\n    os._exit(0)\n{WRONG}",
        "failed",
    )
    # The function rests, and meanwhile its child answers each question in its place.
    yield cheat(
        "forged_by_process_in_call",
        f"{CHANNEL}\nimport time\nif os.fork() == 0:\n    own = channel()\n"
        "    for n in (2, 3, 4, 5, 6, 7):\n        time.sleep(0.2)\n        own.sendall(returned(n))\n"
        "    os._exit(0)\ndef f(x):\n    time.sleep(3)\n    return x\n",
        "failed",
    )
    words = {
        "text": b"passed\n",
        "outcome": b'{"outcome": "passed"}\n',
        "nonce": b'{"outcome": "passed", "nonce": "' + b"0" * 32 + b'"}\n',
        "event": b'{"event": "ended", "code": 0, "signal": null, "stopped": false, "folder_kept": true}\n',
    }
    for name, word in words.items():
        yield cheat(f"printed_{name}", f"import sys\nprint({word.decode()!r}, flush=True)\n{WRONG}")
        everywhere = (
            f"import os\nfor number in range(64):\n    try: os.write(number, {word!r})\n"
            f"    except OSError: pass\n{WRONG}"
        )
        yield cheat(f"written_everywhere_{name}", everywhere, "failed", "crashed")
        others = (
            f"import glob\nfor path in glob.glob('/proc/[0-9]*/fd/*'):\n    try:\n"
            f"        with open(path, 'wb', 0) as file: file.write({word!r})\n"
            f"    except OSError: pass\n{WRONG}"
        )
        yield cheat(f"written_to_others_{name}", others, "failed", "crashed")
    yield cheat("closes_everything", "import os\nos.closerange(0, 64)\n" + WRONG, "crashed")
    yield cheat(
        "closes_connection_and_goes_on",
        f"{CHANNEL}\nimport time\nown = channel()\nown.shutdown(2)\ntime.sleep(30)\n{WRONG}",
        "crashed",
    )


# Expressions that are true where the text of the tests can be had.  The word is never in one piece here.
