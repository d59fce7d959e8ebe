"""A walk over the head of a GGUF file that finds damage before the ``gguf`` package reads it.

The package trusts every count in the file: a damaged one makes it loop over billions of entries that are
not there.  The walk only checks that all entries lie inside of the file.
Source: the GGUF specification, versions 2 and 3.
"""

from __future__ import annotations

import mmap
import os
import struct
from pathlib import Path

from laneformer.errors import CheckpointError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MOST_ENTRIES = 10_000_000  # of a list, of metadata or of tensors: far above any real file
# Bytes of a value by the number of its type; texts (8) and lists (9) say their own length.
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_TEXT, _LIST = 8, 9


def check_structure(path: Path) -> None:
    """Raises :class:`CheckpointError` for a file that is missing, no GGUF file, truncated or big-endian."""
    try:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size < 24:
                raise _DamageError("too short")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                _Walk(data).check()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror or error})") from None
    except (_DamageError, struct.error) as error:
        reason = str(error) if isinstance(error, _DamageError) else "it ends too early"
        raise CheckpointError(f"{path}: truncated or not a GGUF file ({reason})") from None


class _DamageError(Exception):
    """What is wrong, for the message."""


class _Walk:
    """A position in the file that moves over one entry after the other."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._place = 0

    def check(self) -> None:
        if self._data[:4] != MAGIC:
            raise _DamageError("it does not begin with GGUF")
        self._place = 4
        version = self._number("<I")
        if version not in VERSIONS:
            if int.from_bytes(version.to_bytes(4, "little"), "big") in VERSIONS:
                raise _DamageError("big-endian files are not supported")
            raise _DamageError(f"version {version}; known: {', '.join(map(str, VERSIONS))}")
        tensors, values = self._count(), self._count()
        for _ in range(values):
            self._text()
            self._value(self._number("<I"))
        for _ in range(tensors):
            self._text()
            self._skip(8 * self._number("<I") + 4 + 8)  # sizes of axes, type, offset

    def _value(self, kind: int) -> None:
        if kind == _TEXT:
            self._text()
        elif kind == _LIST:
            kind, count = self._number("<I"), self._count()
            if kind == _TEXT:
                for _ in range(count):
                    self._text()
            else:
                self._skip(count * self._size(kind))
        else:
            self._skip(self._size(kind))

    def _size(self, kind: int) -> int:
        if kind not in _SIZES:
            raise _DamageError(f"metadata of type {kind}")
        return _SIZES[kind]

    def _text(self) -> None:
        self._skip(self._number("<Q"))

    def _count(self) -> int:
        count = self._number("<Q")
        if count > MOST_ENTRIES:
            raise _DamageError(f"{count} entries")
        return count

    def _number(self, layout: str) -> int:
        (number,) = struct.unpack_from(layout, self._data, self._place)
        self._place += struct.calcsize(layout)
        return int(number)

    def _skip(self, size: int) -> None:
        self._place += size
        if self._place > len(self._data):
            raise _DamageError("it ends too early")
