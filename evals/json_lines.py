"""A file of JSON lines that grows, and that an interruption at any point leaves readable."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from laneformer.errors import EvaluationError


def read_lines(path: Path, build: Callable[[Any], Any]) -> list[Any]:
    """``build(value)`` of every line; none where there is no file.

    A last line without its end was cut by an interruption: it is taken off the file.  Raises
    EvaluationError, naming the line, where ``build`` raises LookupError, TypeError or ValueError.
    """
    if not path.exists():
        return []
    data = path.read_bytes()
    whole = data.rpartition(b"\n")[0] + b"\n" if b"\n" in data else b""
    if len(whole) < len(data):
        os.truncate(path, len(whole))
    found = []
    for number, line in enumerate(whole.splitlines(), start=1):
        try:
            found.append(build(json.loads(line)))
        except (ValueError, LookupError, TypeError, RecursionError):
            raise EvaluationError(f"{path}, line {number} is damaged; use another output folder") from None
    return found


def append_line(path: Path, value: Mapping[str, Any]) -> None:
    """All of the line or, where the disk is full, nothing and an OSError: another may append after it."""
    line = (json.dumps(value) + "\n").encode()
    with path.open("ab", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        try:
            written = 0
            while written < len(line):
                written += file.write(line[written:])
        except OSError:
            with contextlib.suppress(OSError):
                file.truncate(size)
            raise


def replace_file(path: Path, text: str) -> None:
    """Writes ``text`` to ``path`` at once or, with an OSError, not at all."""
    partial = path.with_name(path.name + ".partial")
    try:
        partial.write_text(text, encoding="utf-8")
        os.replace(partial, path)
    except OSError:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise
