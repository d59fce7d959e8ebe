"""Weights in huge pages, where Linux gives them.

Decoding reads every weight once a token.  In pages of 4 KB a processor looks a page up for every 4 KB of
that, in a virtual machine twice over; in pages of 2 MB hardly ever (what that is worth: docs/engine.md).
Whether a mapped file comes in huge pages depends on the system and on how the file got into its page cache,
so that is looked at first.
"""

from __future__ import annotations

import logging
import mmap
import os
from pathlib import Path
from typing import Any

import numpy as np

from laneformer.errors import CheckpointError
from laneformer.machine import free_memory_bytes

HUGE_PAGE = 2 << 20
ENOUGH = 0.9  # of the bytes in huge pages
LEAST_SPARE = 1 << 30  # bytes of memory that are left to others, for keys and values among them; or, if more,
SPARE_SHARE = 0.25  # this part of the weights' size

_SYSTEM = Path("/sys/kernel/mm/transparent_hugepage/enabled")
log = logging.getLogger(__name__)


def in_huge_pages(data: np.memmap[Any, Any]) -> np.ndarray:
    """The bytes of a mapped file in memory of huge pages, or ``data`` itself.

    ``data`` is a whole mapping, one-dimensional, of type uint8.  It is returned as it is where it lies in
    huge pages already or the system has none; and, with a warning that says why, where a copy cannot be had,
    would not leave enough memory to others, or is not in huge pages either.
    Raises :class:`CheckpointError` for a file that has been cut short since it was mapped.
    """
    if data.nbytes < HUGE_PAGE or not available():
        return data
    try:
        missing = data.offset + data.nbytes - os.stat(str(data.filename)).st_size
        if missing > 0:  # looking at the mapping would end the process
            raise CheckpointError(f"{data.filename}: {missing} bytes fewer than when it was opened")
        if huge_share(data) >= ENOUGH:
            return data
        _forget(data)  # what was looked at; it would count as this process's memory beside the copy
        if free_memory_bytes() < data.nbytes + max(LEAST_SPARE, int(SPARE_SHARE * data.nbytes)):
            return _stays(data, "memory is short for a copy")
        copy = _copied(data)
        if huge_share(copy) < ENOUGH:
            return _stays(data, "the system had no huge pages left for a copy")
    except OSError as error:
        return _stays(data, f"no copy ({error.strerror or error})")
    return copy


def _stays(data: np.memmap[Any, Any], why: str) -> np.memmap[Any, Any]:
    size = data.nbytes / 1e9
    log.warning("%.1f GB of weights are not in huge pages, which are read faster: %s", size, why)
    return data


def available(system: Path = _SYSTEM) -> bool:
    """Whether memory can be asked for in huge pages."""
    try:
        return "[never]" not in system.read_text(encoding="ascii")
    except OSError:
        return False


def huge_share(data: np.ndarray) -> float:
    """Which part of an array's bytes lies in huge pages, once one byte of each has been read."""
    data[::HUGE_PAGE].max()
    first, last = data.ctypes.data, data.ctypes.data + data.nbytes
    huge, inside = 0, False
    with open("/proc/self/smaps", encoding="utf-8", errors="replace") as file:
        for line in file:
            word, *rest = line.split()
            if not word.endswith(":"):  # the head of a mapping: its addresses
                start, stop = (int(part, 16) for part in word.split("-"))
                inside = start < last and first < stop
            elif inside and word in ("AnonHugePages:", "FilePmdMapped:", "ShmemPmdMapped:"):
                huge += int(rest[0]) << 10
    return min(1.0, huge / data.nbytes)


def _forget(data: np.memmap[Any, Any]) -> None:
    mapping: Any = data.base  # pages of a file that is only read: they come again when they are asked for
    mapping.madvise(mmap.MADV_DONTNEED)


def _copied(data: np.memmap[Any, Any]) -> np.ndarray:
    # Private: what is shared between processes follows another setting.
    memory = mmap.mmap(-1, data.nbytes + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    whole = np.frombuffer(memory, np.uint8)
    start = -whole.ctypes.data % HUGE_PAGE
    left = memoryview(memory)[start : start + data.nbytes]
    with Path(str(data.filename)).open("rb") as file:
        file.seek(data.offset)
        while left:
            read = file.readinto(left[: 1 << 30])
            if not read:
                raise CheckpointError(f"{data.filename}: {left.nbytes} bytes fewer than when it was opened")
            left = left[read:]
    return whole[start : start + data.nbytes]
