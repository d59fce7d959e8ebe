"""Weights rounded to 16 bits, and numpy with keys and values rounded as the cuda back end keeps them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import numpy as np

from infer.kv_cache import GrowingCache, RingCache
from infer.weights import Weights
from laneformer.tensors import bfloat16_to_float32, float32_to_bfloat16


class Rounded:
    """What the cuda back end gets of float32 weights, and the float32 that it amounts to."""

    def __init__(self, weights: Weights, dtype: str = "bfloat16") -> None:
        self._weights, self._dtype, self.config = weights, dtype, weights.config

    @property
    def names(self) -> list[str]:
        return self._weights.names

    def dtype(self, name: str) -> str:
        return self._dtype

    def raw(self, name: str) -> np.ndarray:
        values = self._weights.float32(name)
        return float32_to_bfloat16(values) if self._dtype == "bfloat16" else values.astype(np.float16)

    def float32(self, name: str) -> np.ndarray:
        return widened(self.raw(name))


def widened(values: np.ndarray) -> np.ndarray:
    return bfloat16_to_float32(values) if values.dtype == np.uint16 else values.astype(np.float32)


def rounded(values: np.ndarray, dtype: str) -> np.ndarray:
    values = np.ascontiguousarray(values, np.float32)
    return widened(float32_to_bfloat16(values) if dtype == "bfloat16" else values.astype(np.float16))


@contextmanager
def rounded_cache(dtype: str = "bfloat16") -> Iterator[None]:
    """Keys and values of the numpy back end are rounded as they are put down."""
    grow, ring = GrowingCache.append, RingCache.append
    with (
        patch.object(GrowingCache, "append", lambda s, k, v: grow(s, rounded(k, dtype), rounded(v, dtype))),
        patch.object(RingCache, "append", lambda s, k, v: ring(s, rounded(k, dtype), rounded(v, dtype))),
    ):
        yield
