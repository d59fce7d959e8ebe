"""Writing a file so that, whatever happens, its name holds the old contents or all of the new."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO


@contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """Write to a file beside ``path`` that takes its name when the block ends, and is removed if it raises.

    Raises OSError where the folder cannot be written or is full.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with open(partial, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())  # the name must not reach the disk before the contents
        os.replace(partial, path)
    except BaseException:
        with suppress(OSError):  # the first error is the one to tell
            partial.unlink()
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
