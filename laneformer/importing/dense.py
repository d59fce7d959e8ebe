"""What an import reads, a dense model under Laneformer's tensor names, and how it is cut into lanes.

A dense model is a Laneformer of one lane whose row and column linears lack the lane axis.  With
``broadcast_delay`` 0 every module's outputs are summed over lanes at once, so any number of lanes that
divides heads, key heads and feed-forward units computes the same function.
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np

from laneformer.config import LaneformerConfig
from laneformer.errors import CheckpointError, ConfigError
from laneformer.parameters import parameter_shapes

COLUMN_LINEARS = ("wo.weight", "w2.weight")


class DenseSource(Protocol):
    """A dense model: configuration of one lane, and tensors as they are stored.

    ``kind`` names what was found.  ``tokenizer_files`` are the contents of the files that make up the
    tokenizer, by name; empty where there is none.
    """

    config: LaneformerConfig
    kind: str
    tokenizer_files: dict[str, bytes]

    def dtype(self, name: str) -> str:
        """Stored type of a tensor of :func:`dense_shapes`; float32 where it is stored in quantized blocks."""

    def raw(self, name: str) -> np.ndarray:
        """Its values, rotary pairs interleaved; bfloat16 as uint16."""


def dense_shapes(config: LaneformerConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor of a dense model under Laneformer's name: matrices ``[out, in]``, norms ``[size]``."""
    return {name: shape[-2:] for name, shape in parameter_shapes(config).items()}


def check_dense_shape(config: LaneformerConfig, name: str, found: tuple[int, ...], source_name: str) -> None:
    """:class:`CheckpointError` where the source's tensor has another shape than its configuration says."""
    expected = dense_shapes(config)[name]
    if found != expected:
        raise CheckpointError(
            f"tensor {source_name} has shape {list(found)}, the configuration asks for {list(expected)}"
        )


def is_turned(name: str) -> bool:
    """Whether rotary embedding turns the rows of this tensor."""
    return name.endswith(("wq.weight", "wk.weight", "q_norm.weight", "k_norm.weight"))


def interleave_pairs(values: np.ndarray, head_size: int) -> np.ndarray:
    """Rows ``[heads * head_size, ...]`` reordered from halves to interleaved pairs, head by head.

    Rotate-half turns elements i and i + head_size / 2 of a head together, interleaved rotation elements 2i
    and 2i + 1.  Scores are sums over the elements of a head: reordering queries and keys alike keeps them.
    """
    halves = values.reshape(-1, 2, head_size // 2, *values.shape[1:])
    return halves.swapaxes(1, 2).reshape(values.shape)


def cut_into_lanes(name: str, values: np.ndarray, lanes: int) -> np.ndarray:
    """A dense tensor in the shape of :func:`laneformer.parameters.parameter_shapes` for ``lanes`` lanes.

    Row linears ``[out, in]`` become ``[lane, out / lanes, in]``, column linears ``[lane, out, in / lanes]``;
    embedding, norms and head are shared by all lanes and stay as they are.
    """
    if ".layers." not in name or values.ndim == 1:
        return values
    if name.endswith(COLUMN_LINEARS):
        return values.reshape(values.shape[0], lanes, -1).swapaxes(0, 1)
    return values.reshape(lanes, -1, values.shape[1])


def check_lanes(config: LaneformerConfig, lanes: int) -> None:
    """:class:`ConfigError` where a model cannot be cut into ``lanes``; it lists the numbers that can be."""
    if lanes < 1:
        raise ConfigError(f"--lanes must be at least 1, found {lanes}")
    parts = {name: getattr(config, name) for name in ("num_key_value_heads", "intermediate_size")}
    common = math.gcd(*parts.values())  # query heads are a multiple of key heads
    if common % lanes == 0:
        return
    blocking = " and ".join(f"{name} ({size})" for name, size in parts.items() if size % lanes)
    possible = ", ".join(str(count) for count in range(1, common + 1) if common % count == 0)
    raise ConfigError(f"{lanes} lanes do not divide {blocking}; this model can have {possible}")
