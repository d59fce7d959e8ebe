"""How weights lie in a tape for tensor cores; ``kernels/cuda/shape.cuh`` reads by the same rules.

A tile is 16 rows by 16 columns, 512 bytes.  Thread ``4 r + c`` of a warp takes 16 bytes of it in one load:
columns ``4 c`` to ``4 c + 3`` of rows ``r`` and ``r + 8``, in the order of a left operand of m16n8k16.  A
worker has whole tiles of rows.  Its rows of one matrix come in blocks of at most 12 tiles; a block is stored
column by column of tiles, so that a kernel reads inputs once and keeps the sums of all rows of the block in
registers.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

TILE = 16
BLOCK_TILES = 12
COLUMN_MULTIPLE = 64  # four tiles, as many as the smallest page has: STEP_MULTIPLE in shape.cuh
GATE_ROWS = 8  # a tile of w1 and w3: eight rows of the one and the same eight of the other


def tile_share(tiles: int, workers: int, worker: int) -> range:
    """Tiles of ``worker`` where ``workers`` share ``tiles``."""
    return range(tiles * worker // workers, tiles * (worker + 1) // workers)


def block_count(tiles: int, workers: int) -> int:
    """Blocks in which every worker has its rows, set by the worker that has most."""
    return ceil_div(ceil_div(tiles, workers), BLOCK_TILES)


def pack_tiles(rows: np.ndarray, blocks: int) -> np.ndarray:
    """Lay 16-bit ``[rows, columns]``, both padded, out as a worker's run of one matrix; flat uint16."""
    tiles, steps = rows.shape[0] // TILE, rows.shape[1] // TILE
    # Pairs of numbers stay together: half as many to move.  [tile, half, row, step, column, pair] ->
    # [step, tile, row, column, pair, half]
    pairs = np.ascontiguousarray(rows).view(np.uint32)
    split = pairs.reshape(tiles, 2, TILE // 2, steps, 4, 2).transpose(3, 0, 2, 4, 5, 1)
    parts = [split[:, start:stop].reshape(-1) for start, stop in pairwise(block_bounds(tiles, blocks))]
    return np.concatenate(parts).view(np.uint16)


def unpack_tiles(run: np.ndarray, rows: int, columns: int, blocks: int) -> np.ndarray:
    """The padded uint16 ``[rows, columns]`` that :func:`pack_tiles` laid out."""
    tiles, steps = rows // TILE, columns // TILE
    found = np.empty((tiles, 2, TILE // 2, steps, 4, 2), np.uint32)
    for start, stop in pairwise(block_bounds(tiles, blocks)):
        part = run[start * TILE * columns : stop * TILE * columns].view(np.uint32)
        found[start:stop] = part.reshape(steps, stop - start, TILE // 2, 4, 2, 2).transpose(1, 5, 2, 0, 3, 4)
    return found.reshape(rows, -1).view(np.uint16)


def block_bounds(tiles: int, blocks: int) -> list[int]:
    """Where each block of a worker's tiles begins, and where the last ends."""
    return [tiles * block // blocks for block in range(blocks + 1)]


def padded(values: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """``values`` with zeros below and to the right."""
    return np.pad(values, ((0, rows - values.shape[0]), (0, columns - values.shape[1])))


def round_up(count: int, multiple: int) -> int:
    """The next multiple."""
    return ceil_div(count, multiple) * multiple


def ceil_div(count: int, parts: int) -> int:
    """Quotient, rounded up."""
    return (count + parts - 1) // parts
