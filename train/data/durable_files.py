"""Files that are there whole or not at all, whatever moment a process or machine stops.

:func:`write_durably` writes beside the target, waits until the bytes are on the disk, and only then gives
the file its name; the folder is synchronized last, so that the name survives too.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from laneformer.errors import DataError

PARTIAL_SUFFIX = ".partial"


def write_durably(path: Path, content: bytes | memoryview) -> None:
    """Replace ``path`` by ``content`` in one step.

    Raises :class:`DataError` where that fails: ``path`` is then as it was, or whole and new.
    """
    partial = path.with_name(path.name + PARTIAL_SUFFIX)
    try:
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
        _sync_folder(path.parent)
    except OSError as error:
        with suppress(OSError):  # a full disk needs the room
            partial.unlink(missing_ok=True)
        raise DataError(
            f"{path}: cannot be written ({error.strerror or error}); "
            "make it possible and run again, which goes on where this run ended"
        ) from None


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
