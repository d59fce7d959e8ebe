"""A tape of tiles for tensor cores: where everything lies, and how it is packed (see ``tile_layout.py``).

A worker's run holds, layer by layer, its tiles of four matrices of its lane, and then of the head:

    project    rows of wq, wk and wv, one under the other, those of each head padded to a multiple of four
    output     wo, the columns of each head padded alike
    gate_up    eight rows of w1, the same eight of w3, and so on
    down       w2
    head       of the lane's slice or of the whole vocabulary; a tied embedding too
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from infer.plan import Plan
from infer.tape.index import RUN_ALIGNMENT, SharedTensor, aligned, shared_run, shared_values
from infer.tape.tile_layout import (
    BLOCK_TILES,
    COLUMN_MULTIPLE,
    GATE_ROWS,
    TILE,
    block_count,
    ceil_div,
    pack_tiles,
    padded,
    round_up,
    tile_share,
    unpack_tiles,
)
from infer.weights import Weights
from laneformer.config import LaneformerConfig
from laneformer.errors import CheckpointError
from laneformer.parameters import head_name, parameter_shapes

GROUP = 4  # values of a packet: no packet holds rows of two heads
PROJECT, OUTPUT, GATE_UP, DOWN, HEAD = "project", "output", "gate_up", "down", "head"
ROWS = {
    OUTPUT: ("attention.wo",),
    GATE_UP: ("feed_forward.w1", "feed_forward.w3"),
    DOWN: ("feed_forward.w2",),
}


@dataclass(frozen=True)
class Matrix:
    """One padded matrix and how many share its rows."""

    kind: str
    rows: int
    columns: int
    workers: int

    @property
    def tiles(self) -> int:
        """Tiles of rows."""
        return ceil_div(self.rows, TILE)

    @property
    def stored_columns(self) -> int:
        """Columns with their padding."""
        return round_up(self.columns, COLUMN_MULTIPLE)

    @property
    def blocks(self) -> int:
        """Blocks of a worker's rows."""
        return block_count(self.tiles, self.workers)


@dataclass(frozen=True)
class TileRun:
    """A worker's tiles of one matrix: ``size`` bytes at ``offset`` from the start of the data."""

    worker: int
    lane: int
    layer: int  # -1 for the head
    matrix: Matrix
    tiles: range
    dtype: str
    offset: int
    size: int


def matrix_type(config: LaneformerConfig, dtypes: Mapping[str, str]) -> str:
    """The 16-bit type of all matrices; :class:`CheckpointError` where they have another or several."""
    shapes = parameter_shapes(config)
    found = {dtypes[name] for name in shapes if len(shapes[name]) > 1 and "norm" not in name}
    if len(found) > 1 or not found <= {"bfloat16", "float16"}:
        raise CheckpointError(
            f"weights are stored as {', '.join(sorted(found))}: tensor cores are fed with bfloat16 or "
            "float16, one for all matrices; `laneformer export --dtype bfloat16` rounds a checkpoint"
        )
    return found.pop()


@dataclass(frozen=True)
class TileIndex:
    """Offsets for the workers of ``plan``; all matrices must be of one 16-bit type.

    Raises :class:`CheckpointError` where they are not.
    """

    plan: Plan
    dtypes: Mapping[str, str]
    layout = f"tiles {TILE} x {TILE}, blocks of {BLOCK_TILES}"

    def __post_init__(self) -> None:
        matrix_type(self.plan.config, self.dtypes)

    @cached_property
    def dtype(self) -> str:
        """Type of all matrices."""
        return matrix_type(self.plan.config, self.dtypes)

    @cached_property
    def shared(self) -> tuple[SharedTensor, ...]:
        """Tensors into which every worker looks."""
        return shared_run(self.plan, self.dtypes)

    @cached_property
    def matrices(self) -> dict[str, Matrix]:
        """The matrices of a lane, by kind, and the head."""
        config, workers = self.plan.config, self.plan.layout.workers_per_lane
        lanes = config.num_lanes
        heads = (config.num_attention_heads + 2 * config.num_key_value_heads) // lanes
        mixed = config.num_attention_heads // lanes * head_rows(config)
        units, hidden = config.intermediate_size // lanes, config.hidden_size
        sliced = config.lm_head_type == "vocab_parallel"
        columns = hidden * (lanes if config.lm_head_type == "lane" else 1)
        return {
            PROJECT: Matrix(PROJECT, heads * head_rows(config), hidden, workers),
            OUTPUT: Matrix(OUTPUT, hidden, mixed, workers),
            GATE_UP: Matrix(GATE_UP, 2 * round_up(units, GATE_ROWS), hidden, workers),
            DOWN: Matrix(DOWN, hidden, units, workers),
            HEAD: Matrix(
                HEAD,
                config.vocab_size // (lanes if sliced else 1),
                columns,
                workers if sliced else workers * lanes,
            ),
        }

    @cached_property
    def pages(self) -> tuple[TileRun, ...]:
        """All runs, worker by worker, in the order of use."""
        offset = self.shared[-1].offset + self.shared[-1].size
        found = []
        sliced = self.plan.config.lm_head_type == "vocab_parallel"
        for worker in self.plan.workers:
            offset = aligned(offset, RUN_ALIGNMENT)
            for layer, matrix in self._order():
                place = worker.index if layer < 0 and not sliced else worker.place
                tiles = tile_share(matrix.tiles, matrix.workers, place)
                size = len(tiles) * TILE * matrix.stored_columns * 2
                found.append(
                    TileRun(worker.index, worker.lane, layer, matrix, tiles, self.dtype, offset, size)
                )
                offset += size
        return tuple(found)

    def _order(self) -> Iterator[tuple[int, Matrix]]:
        for layer in range(self.plan.config.num_hidden_layers):
            for kind in (PROJECT, OUTPUT, GATE_UP, DOWN):
                yield layer, self.matrices[kind]
        yield -1, self.matrices[HEAD]

    @cached_property
    def run_offsets(self) -> np.ndarray:
        """Where each worker's run begins, and its rows of the head: bytes, int64 ``[2, workers]``."""
        first = {run.worker: run.offset for run in reversed(self.pages)}
        heads = {run.worker: run.offset for run in self.pages if run.layer < 0}
        return np.array([[table[worker] for worker in sorted(table)] for table in (first, heads)], np.int64)

    @cached_property
    def size(self) -> int:
        """Bytes of all data."""
        return aligned(self.pages[-1].offset + self.pages[-1].size, RUN_ALIGNMENT)

    @cached_property
    def streamed_bytes(self) -> int:
        """Bytes of all runs, which is what one token reads."""
        return sum(run.size for run in self.pages)

    def tensor_names(self, run: TileRun) -> tuple[str, ...]:
        """Tensors of which the run has rows."""
        if run.layer < 0:
            return (head_name(self.plan.config),)
        kind = run.matrix.kind
        names = ("attention.wq", "attention.wk", "attention.wv") if kind == PROJECT else ROWS[kind]
        return tuple(f"model.layers.{run.layer}.{name}.weight" for name in names)

    def pack(self, weights: Weights, run: TileRun) -> np.ndarray:
        """The run's weights as they lie in the tape, flat uint16."""
        if not run.tiles:
            return np.empty(0, np.uint16)
        rows = self._rows(weights, run)
        whole = padded(rows, len(run.tiles) * TILE, run.matrix.stored_columns)
        return pack_tiles(whole, run.matrix.blocks)

    def _rows(self, weights: Weights, run: TileRun) -> np.ndarray:
        """The rows of a run, uint16 ``[rows, columns]``, heads padded; fewer at the matrix's end."""
        config, kind = self.plan.config, run.matrix.kind
        tensors = [_bits(weights.raw(name)) for name in self.tensor_names(run)]
        start, stop = run.tiles.start * TILE, min(run.tiles.stop * TILE, run.matrix.rows)
        if kind == HEAD:
            head = tensors[0]
            if head.ndim == 2 and config.lm_head_type == "vocab_parallel":  # a tied embedding
                head = head.reshape(config.num_lanes, -1, head.shape[1])
            return (head[run.lane] if head.ndim == 3 else head)[start:stop]
        lane = [tensor[run.lane] for tensor in tensors]
        if kind == PROJECT:
            return _rows_of_heads(lane, config, start, stop)
        if kind == OUTPUT:
            return _padded_columns(lane[0][start:stop], config)
        if kind == DOWN:
            return lane[0][start:stop]
        first, last = start // 2, stop // 2
        parts = [padded(part[first:last], last - first, part.shape[1]) for part in lane]
        groups = [part.reshape(-1, GATE_ROWS, part.shape[1]) for part in parts]
        return np.stack(groups, axis=1).reshape(2 * (last - first), -1)

    def unpack(self, data: np.ndarray) -> dict[str, np.ndarray]:
        """All tensors as the checkpoint had them, bit for bit; bfloat16 as uint16."""
        config = self.plan.config
        tensors = shared_values(self.shared, data)
        shapes = parameter_shapes(config)
        for run in self.pages:
            for name in self.tensor_names(run):
                if name not in tensors:
                    tensors[name] = np.empty(shapes[name], np.uint16)
        whole: dict[tuple[str, int, int], np.ndarray] = {}
        for run in (run for run in self.pages if run.tiles):
            matrix = run.matrix
            key = (matrix.kind, run.layer, run.lane if matrix.workers != len(self.plan.workers) else 0)
            shape = (matrix.tiles * TILE, matrix.stored_columns)
            target = whole.setdefault(key, np.empty(shape, np.uint16))
            rows = len(run.tiles) * TILE
            values = data[run.offset : run.offset + run.size].view(np.uint16)
            target[run.tiles.start * TILE : run.tiles.stop * TILE] = unpack_tiles(
                values, rows, matrix.stored_columns, matrix.blocks
            )
        for (kind, layer, lane), values in whole.items():
            run = next(run for run in self.pages if run.matrix.kind == kind and run.layer == layer)
            self._put_back([tensors[name] for name in self.tensor_names(run)], kind, lane, values)
        is_half = self.dtype == "float16"
        return {
            name: values.view(np.float16) if is_half and values.dtype == np.uint16 else values
            for name, values in tensors.items()
        }

    def _put_back(self, tensors: list[np.ndarray], kind: str, lane: int, values: np.ndarray) -> None:
        config = self.plan.config
        matrix = self.matrices[kind]
        values = values[: matrix.rows, : matrix.columns]
        if kind == HEAD:
            head = tensors[0]
            if config.lm_head_type == "vocab_parallel":
                head.reshape(config.num_lanes, -1, head.shape[-1])[lane] = values
            else:
                head[:] = values
        elif kind == PROJECT:
            heads = values.reshape(-1, head_rows(config), values.shape[1])[:, : config.head_size]
            start = 0
            for tensor in tensors:
                count = tensor.shape[1] // config.head_size
                tensor[lane] = heads[start : start + count].reshape(tensor.shape[1:])
                start += count
        elif kind == OUTPUT:
            heads = values.reshape(len(values), -1, head_rows(config))[:, :, : config.head_size]
            tensors[0][lane] = heads.reshape(len(values), -1)
        elif kind == DOWN:
            tensors[0][lane] = values
        else:
            pairs = values.reshape(-1, 2, GATE_ROWS, values.shape[1])
            for place, tensor in enumerate(tensors):
                tensor[lane] = pairs[:, place].reshape(-1, values.shape[1])[: tensor.shape[1]]


def head_rows(config: LaneformerConfig) -> int:
    """Rows of one head in the tape."""
    return round_up(config.head_size, GROUP)


def _bits(values: np.ndarray) -> np.ndarray:
    return values if values.dtype == np.uint16 else values.view(np.uint16)


def _rows_of_heads(parts: list[np.ndarray], config: LaneformerConfig, start: int, stop: int) -> np.ndarray:
    """Rows ``start`` to ``stop`` of the parts, one under the other, after each head's rows were padded."""
    size, rows = config.head_size, head_rows(config)
    heads = [head for part in parts for head in part.reshape(-1, size, part.shape[1])]
    first, last = start // rows, ceil_div(stop, rows)
    joined = np.concatenate([padded(head, rows, head.shape[1]) for head in heads[first:last]])
    return joined[start - first * rows : stop - first * rows]


def _padded_columns(rows: np.ndarray, config: LaneformerConfig) -> np.ndarray:
    size, wanted = config.head_size, head_rows(config)
    heads = rows.reshape(len(rows), -1, size)
    return np.pad(heads, ((0, 0), (0, 0), (0, wanted - size))).reshape(len(rows), -1)
