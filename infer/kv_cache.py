"""Keys and values of the tokens so far, for one request.

A layer that sees everything keeps a buffer that grows; a sliding layer keeps a ring of ``window``
slots, in which position p lies in slot ``p % window`` and overwrites position ``p - window``.  So a
sliding layer's memory stops growing with the text; short texts do not use all slots of a wide window.
Arrays are float32 ``[lane, key head of the lane, slot, head]``.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from laneformer.config import LaneformerConfig

# Keys, values, and which of their slots each new position sees: bool [new position, slot], or None
# where it sees all of them.
Visible = tuple[np.ndarray, np.ndarray, np.ndarray | None]

FIRST_CAPACITY = 64  # slots; below this, doubling copies more often than it saves memory


class LayerCache(Protocol):
    """Keys and values of one layer."""

    def append(self, keys: np.ndarray, values: np.ndarray) -> Visible:
        """Add the next positions and return what they see.  Valid until the next call."""


class GrowingCache:
    """Every position, in order, in a buffer that doubles when it is full."""

    def __init__(self, config: LaneformerConfig) -> None:
        self._limit = config.max_position_embeddings
        self._keys = self._values = _empty(config, slots=0)
        self._length = 0

    def append(self, keys: np.ndarray, values: np.ndarray) -> Visible:
        """Add the next positions and return everything so far."""
        start, stop = self._length, self._length + keys.shape[2]
        if stop > self._keys.shape[2]:
            slots = min(self._limit, max(2 * self._keys.shape[2], stop, FIRST_CAPACITY))
            self._keys = _grown(self._keys, slots)
            self._values = _grown(self._values, slots)
        self._keys[:, :, start:stop] = keys
        self._values[:, :, start:stop] = values
        self._length = stop
        mask = np.tri(stop - start, stop, start, dtype=bool) if stop - start > 1 else None
        return self._keys[:, :, :stop], self._values[:, :, :stop], mask


class RingCache:
    """The last ``window`` positions, in a buffer that doubles up to that size."""

    def __init__(self, config: LaneformerConfig, window: int) -> None:
        self._window = min(window, config.max_position_embeddings)
        self._keys = self._values = _empty(config, slots=0)
        self._length = 0  # positions seen so far

    def append(self, keys: np.ndarray, values: np.ndarray) -> Visible:
        """Add the next positions and return what they see."""
        self._make_room(self._length + keys.shape[2])
        if keys.shape[2] == 1:
            return self._append_one(keys, values)
        start, stop = self._length, self._length + keys.shape[2]
        # Some of the new positions still see what the new ones overwrite: join both before writing.
        old = np.arange(max(0, start - self._window + 1), start)
        seen_keys = np.concatenate([self._keys[:, :, old % self._window], keys], axis=2)
        seen_values = np.concatenate([self._values[:, :, old % self._window], values], axis=2)
        kept = np.arange(max(start, stop - self._window), stop)
        self._keys[:, :, kept % self._window] = keys[:, :, kept - start]
        self._values[:, :, kept % self._window] = values[:, :, kept - start]
        self._length = stop
        query = np.arange(start, stop)[:, None]
        position = np.arange(stop - seen_keys.shape[2], stop)
        return seen_keys, seen_values, (position <= query) & (position > query - self._window)

    def _make_room(self, stop: int) -> None:
        """Grow to hold ``stop`` positions.  Short of the whole window no slot has been used twice."""
        needed, slots = min(stop, self._window), self._keys.shape[2]
        if needed > slots:
            slots = min(self._window, max(2 * slots, needed, FIRST_CAPACITY))
            self._keys, self._values = _grown(self._keys, slots), _grown(self._values, slots)

    def _append_one(self, keys: np.ndarray, values: np.ndarray) -> Visible:
        """The new position takes the slot of the one that it no longer sees, so it sees the whole ring.

        Slots are then out of order, which attention does not mind.
        """
        slot = self._length % self._window
        self._keys[:, :, slot] = keys[:, :, 0]
        self._values[:, :, slot] = values[:, :, 0]
        self._length += 1
        filled = min(self._length, self._window)
        return self._keys[:, :, :filled], self._values[:, :, :filled], None


def new_cache(config: LaneformerConfig) -> list[LayerCache]:
    """Empty caches, one per layer."""
    windows = [config.window(layer) for layer in range(config.num_hidden_layers)]
    return [GrowingCache(config) if window is None else RingCache(config, window) for window in windows]


def _empty(config: LaneformerConfig, slots: int) -> np.ndarray:
    lanes = config.num_lanes
    return np.zeros((lanes, config.num_key_value_heads // lanes, slots, config.head_size), dtype=np.float32)


def _grown(buffer: np.ndarray, slots: int) -> np.ndarray:
    larger = np.zeros((*buffer.shape[:2], slots, buffer.shape[3]), dtype=np.float32)
    larger[:, :, : buffer.shape[2]] = buffer
    return larger
