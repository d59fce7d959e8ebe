"""How rows lie inside a page, so that one token and many tokens both read it from front to back.

Rows are taken in blocks of :data:`BLOCK_ROWS` (the last block may have fewer).  Within a block the first
:data:`COLUMN_GROUP` columns of all its rows come first, row by row, then the next columns, and so on;
columns are padded with zeros to a multiple of :data:`COLUMN_GROUP`:

    block 0:  row 0, columns 0-31 | row 1, columns 0-31 | ... | row 7, columns 0-31
              row 0, columns 32-63 | ...
    block 1:  ...

So a dot-product kernel keeps one sum per row of a block, loads each group of activations once for all
eight rows, and its stream of memory is one straight line.
"""

from __future__ import annotations

import numpy as np

BLOCK_ROWS = 8  # eight sums hide the latency of a fused multiply-add (4 cycles, 1 or 2 each cycle)
COLUMN_GROUP = 32  # 64 bytes of 16-bit weights: a cache line


def padded_columns(columns: int) -> int:
    """Columns as they are stored."""
    return -(-columns // COLUMN_GROUP) * COLUMN_GROUP


def pack_rows(rows: np.ndarray) -> np.ndarray:
    """Lay ``[rows, columns]`` out as a page; returns a flat array of the same type."""
    count, columns = rows.shape
    width = padded_columns(columns)
    if width != columns:
        rows = np.pad(rows, ((0, 0), (0, width - columns)))
    whole = count - count % BLOCK_ROWS
    parts = [_blocks(rows[:whole], BLOCK_ROWS)]
    if count > whole:
        parts.append(_blocks(rows[whole:], count - whole))
    return np.concatenate(parts)


def unpack_rows(page: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """The ``[rows, columns]`` that :func:`pack_rows` laid out."""
    width = padded_columns(columns)
    whole = rows - rows % BLOCK_ROWS
    parts = [_unblocked(page[: whole * width], BLOCK_ROWS, width)]
    if rows > whole:
        parts.append(_unblocked(page[whole * width :], rows - whole, width))
    return np.concatenate(parts)[:, :columns]


def _blocks(rows: np.ndarray, height: int) -> np.ndarray:
    groups = rows.shape[1] // COLUMN_GROUP
    return rows.reshape(-1, height, groups, COLUMN_GROUP).swapaxes(1, 2).reshape(-1)


def _unblocked(page: np.ndarray, height: int, width: int) -> np.ndarray:
    blocks = page.reshape(-1, width // COLUMN_GROUP, height, COLUMN_GROUP)
    return blocks.swapaxes(1, 2).reshape(-1, width)
