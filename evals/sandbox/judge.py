"""The trusted side: runs a problem's tests against a proxy of the candidate's function.

Started by ``runner`` as a fresh interpreter.  Reads one JSON request on standard input (prompt,
tests, entry point, nonce, file descriptor of the channel, limits) and writes one JSON line:

    {"outcome": "passed", "nonce": ...}     check() returned; the nonce is written in no other case
    {"outcome": "failed", "detail": ...}    a wrong or unreadable answer, or an exception
    {"outcome": "memory", "detail": ...}    a MemoryError ended the check
    {"outcome": "gone"}                     the candidate's process ended
    {"outcome": "broken", "detail": ...}    the problem itself cannot be judged
"""

from __future__ import annotations

import builtins
import contextlib
import json
import os
import resource
import select
import signal
import socket
import sys
from typing import Any

from evals.sandbox import linux, wire


class CandidateFault(BaseException):
    """The candidate cannot go on.  Not an Exception, so that tests do not swallow it."""

    def __init__(self, outcome: str, detail: str) -> None:
        super().__init__(detail)
        self.outcome = outcome
        self.detail = detail


def rebuild_exception(names: list[str], args: tuple[Any, ...]) -> Exception:
    """The nearest builtin exception to the one raised, given its builtin base classes by name."""
    for name in names:
        kind = getattr(builtins, name, None)
        if isinstance(kind, type) and issubclass(kind, Exception):
            try:
                return kind(*args)
            except (TypeError, ValueError):  # Some, like UnicodeDecodeError, take only certain ones.
                continue
    return Exception(*args)


def restore(original: Any, changed: Any) -> None:
    """Makes the mutable containers inside ``original`` equal to ``changed``, in place."""
    if isinstance(original, (list, tuple)) and isinstance(changed, type(original)):
        shared = min(len(original), len(changed))
        kept = [_restored(old, new) for old, new in zip(original, changed, strict=False)]
        if isinstance(original, list):
            original[:] = kept + list(changed[shared:])
    elif isinstance(original, dict) and isinstance(changed, dict):
        kept_items = {
            key: _restored(original[key], value) if key in original else value
            for key, value in changed.items()
        }
        original.clear()
        original.update(kept_items)
    elif isinstance(original, set) and isinstance(changed, set):
        original.clear()
        original.update(changed)


def _restored(old: Any, new: Any) -> Any:
    if type(old) is type(new) and isinstance(old, (list, tuple, dict, set)):
        restore(old, new)
        # A tuple cannot be changed, only what it holds; when that was not enough, take the new one.
        return old if old == new else new
    return new


class Proxy:
    """Calls the candidate's function as if it were here."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._answered = False
        self.fault: CandidateFault | None = None

    def _fail(self, outcome: str, detail: str) -> CandidateFault:
        # Remembered: a test with a bare ``except`` must not turn a fault into a pass.
        self.fault = CandidateFault(outcome, one_line(detail))
        return self.fault

    def _receive(self, token: bytes = b"") -> list[Any]:
        try:
            message = wire.receive(self._channel)
            if not message.startswith(token):
                raise self._fail("failed", "the program sent more than it was asked for")
            reply = wire.loads(message[len(token) :])
        except (EOFError, OSError):
            raise self._fail("gone", "") from None
        except wire.WireError as error:
            raise self._fail("failed", f"the program sent {error}") from None
        match reply:
            case ("defined",):
                return list(reply)
            case ("returned", _, None | (list() | tuple(), dict())):
                self._answered = True
                return list(reply)
            case ("raised", list(names), tuple(args)) if all(isinstance(name, str) for name in names):
                self._answered = True
                raise rebuild_exception(names, args)
            case ("opaque", str(what)):
                raise self._fail("failed", f"the result is not a plain value: {what}")
        raise self._fail("failed", "the program sent a malformed message")

    def wait_for_definition(self) -> None:
        """Returns when the program has run to its end; raises what it raised."""
        if self._receive() != ["defined"]:
            raise self._fail("failed", "the program sent a malformed message")

    def require_silence(self) -> None:
        """Raises where the program sent something that nobody asked for: answers in advance, say."""
        poller = select.poll()
        poller.register(self._channel, select.POLLIN)
        # Readable without a byte is the end, which the next answer that is waited for will tell.
        with contextlib.suppress(OSError):
            if poller.poll(0) and self._channel.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT):
                raise self._fail("failed", "the program sent more than it was asked for")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.fault is not None:
            raise self.fault
        try:
            request = wire.dumps((args, kwargs))
        except wire.WireError as error:
            # Once the program has answered, what the tests pass may be its own: values that crossed once, in
            # more brackets.  No program may so make a problem one that cannot be judged.
            outcome = "failed" if self._answered else "broken"
            raise self._fail(outcome, f"the tests pass {error} to the function") from None
        self.require_silence()
        token = os.urandom(wire.TOKEN_BYTES)
        # When the candidate is gone, what it sent before that is still to be read.
        with contextlib.suppress(OSError):
            wire.send(self._channel, token + request)
        reply = self._receive(token)
        if reply[0] != "returned":
            raise self._fail("failed", "the program sent a malformed message")
        changed = reply[2]
        if changed is not None:
            restore(args, tuple(changed[0]))
            restore(kwargs, changed[1])
        return reply[1]


def one_line(text: str) -> str:
    """The beginning of ``text`` on one line of at most 300 characters."""
    # Cut before it is split: a program may have written megabytes of line ends.
    return " ".join(text[:1000].split())[:300]


def describe(error: BaseException) -> str:
    """One short line: the type and the text of ``error``."""
    try:
        text = str(error)
    except Exception:
        text = ""
    return one_line(f"{type(error).__name__}: {text}").rstrip(": ")


def preamble(prompt: str) -> str:
    """The prompt as code that can run before the tests, for the helpers that it defines.

    Ends in a stub of the entry point.  Empty when the prompt alone cannot be made to parse.
    """
    for text in (prompt, prompt.rstrip() + "\n    pass\n"):
        try:
            compile(text, "<prompt>", "exec", dont_inherit=True)
        except (SyntaxError, ValueError):
            continue
        return text
    return ""


def judge(proxy: Proxy, prompt: str, tests: str, entry_point: str) -> dict[str, str]:
    """Runs ``check(proxy)``; returns what to report, without the nonce."""
    namespace: dict[str, Any] = {"__name__": "tests"}
    try:
        exec(compile(preamble(prompt), "<prompt>", "exec", dont_inherit=True), namespace)
        namespace[entry_point] = proxy
        exec(compile(tests, "<tests>", "exec", dont_inherit=True), namespace)
        check = namespace["check"]
    except CandidateFault as fault:
        return {"outcome": fault.outcome, "detail": fault.detail}
    except BaseException as error:
        return {"outcome": "broken", "detail": f"the tests cannot be loaded: {describe(error)}"}
    try:
        proxy.wait_for_definition()
        check(proxy)
        proxy.require_silence()
    except CandidateFault:
        pass
    except MemoryError as error:
        return {"outcome": "memory", "detail": describe(error)}
    except BaseException as error:
        if proxy.fault is None:
            return {"outcome": "failed", "detail": describe(error)}
    if proxy.fault is not None:
        return {"outcome": proxy.fault.outcome, "detail": proxy.fault.detail}
    return {"outcome": "passed"}


def main() -> None:
    request = json.loads(sys.stdin.readline())
    linux.die_with_parent(signal.SIGKILL)
    if os.getppid() != request["parent"]:
        return  # It died before that.
    result_descriptor = os.dup(sys.stdout.fileno())
    # What the tests print must not mix with the verdict.
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Above the limit that ends it with a signal of its own is one that cannot be caught.
    resource.setrlimit(resource.RLIMIT_CPU, (request["cpu_seconds"], request["cpu_seconds"] + 1))
    resource.setrlimit(resource.RLIMIT_AS, (request["memory_bytes"], request["memory_bytes"]))
    with socket.socket(fileno=request["channel"]) as channel:
        proxy = Proxy(channel)
        report = judge(proxy, request["prompt"], request["tests"], request["entry_point"])
    if report["outcome"] == "passed":
        report["nonce"] = request["nonce"]
    os.write(result_descriptor, json.dumps(report).encode() + b"\n")
    # Not a normal exit: an interpreter shutting down could wait for what the tests left running.
    os._exit(0)
