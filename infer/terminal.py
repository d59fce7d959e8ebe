"""Standard input and output of the commands: strict about what comes in, never a traceback going out."""

from __future__ import annotations

import io
import os
import sys

from laneformer.errors import RequestError


def read_standard_input() -> str:
    """All of standard input, which must be UTF-8 whatever the locale says.  Raises :class:`RequestError`."""
    if sys.stdin is None:
        raise RequestError("standard input: closed; give a prompt")
    try:
        data = sys.stdin.buffer.read()
        return io.TextIOWrapper(io.BytesIO(data), encoding="utf-8").read()  # line ends as in text files
    except OSError as error:
        raise RequestError(f"standard input: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError as error:
        raise RequestError(f"standard input: not UTF-8 text ({error})") from None


def show(text: str, end: str = "\n") -> None:
    """Print now.  Characters that standard output cannot encode are escaped (``\\u4f60``).

    Raises :class:`RequestError` where it cannot be written, as on a full disk.  BrokenPipeError is left to
    the command line.
    """
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        print(text.encode(encoding, "backslashreplace").decode(encoding), end=end, flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        _discard_buffered_output()
        raise RequestError(f"standard output: cannot be written ({error.strerror})") from None


def _discard_buffered_output() -> None:
    """Point standard output at nothing: what is buffered would fail once more when Python exits."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, sys.stdout.fileno())
    os.close(nothing)
