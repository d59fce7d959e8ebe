"""Reading safetensors files into numpy, bfloat16 included, without loading more than is asked for.

The safetensors library checks the file (header, offsets, length); the values are then views of a
memory map, widened to float32 where asked.  numpy has no bfloat16: a bfloat16 is the upper half of a
float32, so widening is a shift by 16 bits.

    weights = TensorFile("model.safetensors")
    weights.float32("model.norm.weight")
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from laneformer.errors import CheckpointError

# safetensors' own names -> (numpy type that holds the bits, our name)
FLOAT_TYPES: dict[str, tuple[np.dtype[Any], str]] = {
    "F32": (np.dtype("<f4"), "float32"),
    "F16": (np.dtype("<f2"), "float16"),
    "BF16": (np.dtype("<u2"), "bfloat16"),
}


def bfloat16_to_float32(bits: np.ndarray) -> np.ndarray:
    """Widen bfloat16, held as uint16, to float32 of the same shape; exact."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def float32_to_bfloat16(values: np.ndarray) -> np.ndarray:
    """Round finite float32 to bfloat16, held as uint16; nearest, ties to even."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


class TensorFile:
    """One safetensors file, mapped.  Raises :class:`CheckpointError` where it is missing or damaged."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            with safe_open(self.path, "np") as checked:  # the library's own checks of header and length
                self.metadata: dict[str, str] = dict(checked.metadata() or {})
            self._bytes = np.memmap(self.path, dtype=np.uint8, mode="r")
        except FileNotFoundError:
            raise CheckpointError(f"{self.path}: no such file") from None
        except (SafetensorError, OSError, ValueError) as error:
            raise CheckpointError(f"{self.path}: truncated or not a safetensors file ({error})") from None
        header_size = int.from_bytes(self._bytes[:8].tobytes(), "little")
        self._data_start = 8 + header_size
        header: dict[str, Any] = json.loads(self._bytes[8 : self._data_start].tobytes())
        header.pop("__metadata__", None)
        self._entries = header

    @property
    def names(self) -> list[str]:
        """Names of all tensors in the file."""
        return list(self._entries)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of one tensor."""
        return tuple(self._entries[name]["shape"])

    def dtype(self, name: str) -> str:
        """``float32``, ``float16`` or ``bfloat16``; any other type is a :class:`CheckpointError`."""
        kind = self._entries[name]["dtype"]
        if kind not in FLOAT_TYPES:
            raise CheckpointError(f"{self.path}: tensor {name} has type {kind}; expected F32, F16 or BF16")
        return FLOAT_TYPES[kind][1]

    def raw(self, name: str) -> np.ndarray:
        """The stored values as a read-only view; bfloat16 as uint16."""
        self.dtype(name)
        entry = self._entries[name]
        start, stop = (self._data_start + offset for offset in entry["data_offsets"])
        return self._bytes[start:stop].view(FLOAT_TYPES[entry["dtype"]][0]).reshape(entry["shape"])

    def float32(self, name: str) -> np.ndarray:
        """The values as a float32 array of their own; :class:`CheckpointError` for NaN or infinity."""
        raw = self.raw(name)
        values = bfloat16_to_float32(raw) if self.dtype(name) == "bfloat16" else raw.astype(np.float32)
        if not np.isfinite(values).all():
            bad = int(values.size - np.count_nonzero(np.isfinite(values)))
            raise CheckpointError(f"{self.path}: tensor {name} holds {bad} values that are NaN or infinite")
        return values
