"""The untrusted side: defines the program, then answers calls to its entry point.

Everything here shares an interpreter with the program, which may patch or break any of it; that
only hurts the program.  The judge never takes more from this side than plain values.

Messages, one frame each (see ``wire``):

    candidate -> judge   ["defined"]                          the program ran to its end
                         ["raised", type names, args]         it, or a call, raised
    judge -> candidate   [args, kwargs]                       call the entry point
    candidate -> judge   ["returned", result, None]           arguments as they were
                         ["returned", result, [args, kwargs]] arguments changed in place
                         ["opaque", what]                     the result cannot cross

Before each call stands a token that the judge made up for it, and the same one before its answer.  So what
was sent without the call having been read, by another process of the program say, is no answer to it.
"""

from __future__ import annotations

import os
import socket
import sys
import types
from typing import Any

from evals.sandbox import wire

MODULE_NAME = "solution"

# Encoded beforehand: there may be no memory left to encode it when it is needed.
_OUT_OF_MEMORY = wire.dumps(("raised", ["MemoryError"], ("out of memory",)))
# An exception's arguments are told when they are plain and not longer than this, else its text is.
_MAX_ARGUMENT_BYTES = 10_000


def _raised(error: Exception) -> bytes:
    if isinstance(error, MemoryError):
        return _OUT_OF_MEMORY
    names = [base.__name__ for base in type(error).__mro__ if base.__module__ == "builtins"]
    try:
        encoded = wire.dumps(("raised", names, error.args))
        if len(encoded) <= _MAX_ARGUMENT_BYTES:
            return encoded
    except Exception:
        pass  # Arguments that are no plain values.
    try:
        text = str(error)
    except Exception:
        text = ""
    return wire.dumps(("raised", names, (text[:1000],)))


def _call(function: Any, request: bytes) -> bytes:
    args, kwargs = wire.loads(request)
    before = wire.dumps(wire.loads(request))
    result = function(*args, **kwargs)
    try:
        changed = (args, kwargs) if wire.dumps((args, kwargs)) != before else None
    except wire.WireError:
        changed = None  # The program put something into its arguments that cannot cross.
    try:
        return wire.dumps(("returned", result, changed))
    except wire.WireError as error:
        return wire.dumps(("opaque", str(error)))


def serve(channel: socket.socket, program: str, entry_point: str) -> None:
    """Runs ``program`` and then serves ``entry_point`` until the judge hangs up.

    Returns at the end of the conversation.  SystemExit and KeyboardInterrupt pass through: the
    program asked to end its process, and its process ends.
    """
    process = os.getpid()
    token = b""
    module = types.ModuleType(MODULE_NAME)
    sys.modules[MODULE_NAME] = module
    try:
        exec(compile(program, "<solution>", "exec", dont_inherit=True), module.__dict__)
        function = getattr(module, entry_point)
        reply = wire.dumps(("defined",))
    except Exception as error:
        reply = _raised(error)
    while os.getpid() == process:  # A fork of the program must not answer as well.
        try:
            wire.send(channel, token + reply)
            request = wire.receive(channel)
        except (EOFError, OSError):
            return
        token = request[: wire.TOKEN_BYTES]
        try:
            reply = _call(function, request[wire.TOKEN_BYTES :])
        except Exception as error:
            reply = _raised(error)
