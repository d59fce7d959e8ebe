"""The tape as a file: a header of one memory page or more, then the data of :mod:`infer.tape.index`.

    8 bytes    length of the header, little endian
    header     JSON: format, version, key, config, layout, dtypes, header_size, size; spaces to a multiple
               of 4096 bytes
    data       shared run, then one run per worker

The file is written beside its name and takes it when everything is on the disk.
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from infer.atomic_file import atomic_file
from infer.plan import Plan
from infer.tape.index import RUN_ALIGNMENT, STORED, SharedTensor, TapeIndex, TapePage, view
from infer.tape.tiles import TileIndex, TileRun
from infer.weights import Weights
from laneformer.errors import CheckpointError

FORMAT = "laneformer-tape"
VERSION = 2
Index = TapeIndex | TileIndex
LOOK_AHEAD = 4  # pages per core being packed while another is written: what memory has to hold
FINITE_CHECK_ELEMENTS = 1 << 20  # looked at in one go


class Tape:
    """A tape file, mapped read-only.

    Raises :class:`CheckpointError` for a file that is none, of another version, for other weights or cut
    short.
    """

    def __init__(self, path: Path, plan: Plan, key: str, layout: type[Index] = TapeIndex) -> None:
        self.path = path
        header = read_header(path)
        if header.get("version") != VERSION or header.get("key") != key:
            raise CheckpointError(
                f"{path}: tape of version {header.get('version')!r}, key {header.get('key')!r}; expected "
                f"version {VERSION}, key {key!r}; delete the file and it is made again"
            )
        self.index: Any = layout(plan, header["dtypes"])
        expected, found = header["header_size"] + self.index.size, path.stat().st_size
        if header["size"] != self.index.size or found != expected:
            raise CheckpointError(f"{path}: {found} bytes, expected {expected}: the tape was cut short")
        self.bytes: np.memmap[Any, Any] = np.memmap(
            path, dtype=np.uint8, mode="r", offset=header["header_size"]
        )

    def shared(self, name: str) -> np.ndarray:
        """A tensor of the shared run as it is stored; bfloat16 as uint16."""
        entry = next(entry for entry in self.index.shared if entry.name == name)
        return view(self.bytes, entry).reshape(entry.shape)

    def unpack(self) -> dict[str, np.ndarray]:
        """All tensors as the checkpoint had them, bit for bit; for tests and tools."""
        tensors: dict[str, np.ndarray] = self.index.unpack(self.bytes)
        return tensors


def read_header(path: Path) -> dict[str, Any]:
    """The header of a tape file; :class:`CheckpointError` where there is none."""
    try:
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(min(length, 1 << 24)))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: not a tape or damaged ({error})") from None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise CheckpointError(f"{path}: not a tape")
    return header


def write_tape(weights: Weights, index: Index, path: Path, key: str) -> None:
    """Pack ``weights`` as ``index`` says, a few pages in memory at a time.

    Raises :class:`CheckpointError` for values that are NaN or infinite and where ``path`` cannot be
    written, for one because the disk is full; whatever was at ``path`` then stays.
    """
    plan = index.plan
    values = {
        "format": FORMAT,
        "version": VERSION,
        "key": key,
        "config": plan.config.to_dict(),
        "layout": asdict(plan.layout),
        "weights": index.layout,
        "dtypes": dict(index.dtypes),
        "size": index.size,
    }
    room = len(json.dumps(values)) + 64  # for the size of the header itself
    header_size = -(-room // RUN_ALIGNMENT) * RUN_ALIGNMENT
    text = json.dumps(values | {"header_size": header_size}).encode()
    header = (header_size - 8).to_bytes(8, "little") + text.ljust(header_size - 8)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(path) as file, ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
            file.write(header)
            position = 0
            for offset, data in _packed(weights, index, pool):
                file.write(bytes(offset - position))
                file.write(data)
                position = offset + data.nbytes
            file.write(bytes(index.size - position))
    except OSError as error:
        raise CheckpointError(
            f"{path}: the weight tape needs {index.size / 1e6:.0f} MB and cannot be written "
            f"({error.strerror}); LANEFORMER_CACHE names another folder"
        ) from None


def _packed(weights: Weights, index: Index, pool: ThreadPoolExecutor) -> Iterator[tuple[int, memoryview]]:
    """Offset and bytes of everything in order, packed on all cores but never far ahead."""
    entries: list[SharedTensor | TapePage | TileRun] = [*index.shared, *index.pages]
    ahead = LOOK_AHEAD * (os.cpu_count() or 1)
    running = deque(pool.submit(_packed_entry, weights, index, entry) for entry in entries[:ahead])
    for place, entry in enumerate(entries):
        data = running.popleft().result()
        if place + ahead < len(entries):
            running.append(pool.submit(_packed_entry, weights, index, entries[place + ahead]))
        yield entry.offset, data


def _packed_entry(weights: Weights, index: Any, entry: SharedTensor | TapePage | TileRun) -> memoryview:
    if isinstance(entry, SharedTensor):
        packed = np.ascontiguousarray(weights.raw(entry.name)).reshape(-1)
        names: tuple[str, ...] = (entry.name,)
    else:
        packed, names = index.pack(weights, entry), index.tensor_names(entry)
    _check_finite(packed, weights, names)
    return packed.view(np.uint8).data


def _check_finite(values: np.ndarray, weights: Weights, names: tuple[str, ...]) -> None:
    """A weight that is NaN or infinite is refused here: it would make every answer NaN."""
    dtype = weights.dtype(names[0])
    for start in range(0, values.size, FINITE_CHECK_ELEMENTS):
        part = values[start : start + FINITE_CHECK_ELEMENTS]
        if dtype == "bfloat16":
            good = (part & 0x7F80) != 0x7F80
        else:
            good = np.isfinite(part.view(STORED[dtype]))
        if not good.all():
            for name in names:
                weights.float32(name)  # tells file and number, as every reader of these weights does
            raise CheckpointError(f"tensor {' or '.join(names)} holds values that are NaN or infinite")
