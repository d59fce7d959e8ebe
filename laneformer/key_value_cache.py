"""The cache with which PyTorch samples during training."""

from __future__ import annotations

import torch
from torch import Tensor


class KeyValueCache:
    """Keys and values of one running request, so that sampling computes each position once.

    Every layer keeps the whole context, ``[batch, kv_head, length, head_size]``: simple, and enough for
    samples during training.  The engine's cache (``infer``) has rings for sliding layers.
    """

    def __init__(self, num_layers: int) -> None:
        self._layers: list[tuple[Tensor, Tensor] | None] = [None] * num_layers

    @property
    def length(self) -> int:
        """Positions held so far."""
        first = self._layers[0]
        return 0 if first is None else first[0].shape[2]

    def append(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Add new positions to ``layer`` and return all of its keys and values."""
        held = self._layers[layer]
        if held is not None:
            keys, values = torch.cat((held[0], keys), dim=2), torch.cat((held[1], values), dim=2)
        self._layers[layer] = (keys, values)
        return keys, values
