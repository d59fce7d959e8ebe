"""Turning stored values into another floating-point type, without losing any silently.

Everything works in pieces, so that a large tensor needs no temporary copies of itself.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from laneformer.errors import CheckpointError
from laneformer.tensors import bfloat16_to_float32, float32_to_bfloat16

# Bits of the exponent: all set in infinity and NaN.
_EXPONENTS = {"float32": 0x7F800000, "float16": 0x7C00, "bfloat16": 0x7F80}
_STORED = {"float32": "<f4", "float16": "<f2", "bfloat16": "<u2"}
_PIECE = 1 << 22  # elements
_UNSIGNED = {"float32": np.uint32, "float16": np.uint16, "bfloat16": np.uint16}


def count_not_finite(raw: np.ndarray, dtype: str) -> int:
    """How many stored values are NaN or infinite; bfloat16 as uint16."""
    bits, exponent = raw.reshape(-1).view(_UNSIGNED[dtype]), _EXPONENTS[dtype]
    return sum(int(np.count_nonzero((bits[piece] & exponent) == exponent)) for piece in _pieces(bits.size))


def check_finite(name: str, raw: np.ndarray, dtype: str) -> None:
    """:class:`CheckpointError` for NaN or infinity."""
    bad = count_not_finite(raw, dtype)
    if bad:
        raise CheckpointError(f"tensor {name} holds {bad} values that are NaN or infinite")


def converted(name: str, raw: np.ndarray, dtype: str, target: str) -> np.ndarray:
    """Stored values of type ``dtype`` in type ``target``; nearest, ties to even.

    Raises :class:`CheckpointError` where a finite value becomes infinite.
    """
    if dtype == target:
        return raw
    stored = raw.reshape(-1)
    bits = np.empty(stored.size, _STORED[target])
    largest = 0.0
    for piece in _pieces(stored.size):
        part = stored[piece]
        values = bfloat16_to_float32(part) if dtype == "bfloat16" else part.astype(np.float32)
        bits[piece] = _rounded(values, target)
        largest = max(largest, float(np.abs(values).max()))
    too_large = count_not_finite(bits, target)
    if too_large:
        raise CheckpointError(
            f"tensor {name} holds {too_large} values too large for {target} "
            f"(up to {largest:g}); import as float32 or, for float16, as bfloat16"
        )
    return bits.reshape(raw.shape)


def fits_exactly(values: np.ndarray, target: str) -> bool:
    """Whether every float32 value has the same value in ``target``."""
    bits = _rounded(values, target)
    back = bfloat16_to_float32(bits) if target == "bfloat16" else bits.astype(np.float32)
    return bool(np.array_equal(back, values))


def _pieces(size: int) -> Iterator[slice]:
    for start in range(0, size, _PIECE):
        yield slice(start, start + _PIECE)


def _rounded(values: np.ndarray, target: str) -> np.ndarray:
    if target == "bfloat16":
        return float32_to_bfloat16(values).astype("<u2", copy=False)
    with np.errstate(over="ignore"):  # reported with the tensor's name instead
        return values.astype("<f2" if target == "float16" else "<f4", copy=False)
