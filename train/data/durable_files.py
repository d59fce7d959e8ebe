"""Files that are there whole or not at all, whatever moment a process or machine stops.

:func:`write_durably` writes beside the target, waits until the bytes are on the disk, and only then gives
the file its name; the folder is synchronized last, so that the name survives too.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PARTIAL_SUFFIX = ".partial"


def write_durably(path: Path, content: bytes | memoryview) -> None:
    """Replace ``path`` by ``content`` in one step."""
    partial = path.with_name(path.name + PARTIAL_SUFFIX)
    with partial.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)
    _sync_folder(path.parent)


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Hold ``folder`` against other processes that also ask for it; waits for them.

    The lock is on the folder itself and the system drops it with the process, so nothing is left to clean up.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
