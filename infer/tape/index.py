"""Where everything lies in a tape: arithmetic on a plan and the types of its tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from infer.plan import Page, Plan
from infer.plan.plan import shared_tensors
from infer.tape.page_layout import BLOCK_ROWS, COLUMN_GROUP, pack_rows, padded_columns, unpack_rows
from infer.weights import Weights
from laneformer.parameters import parameter_shapes

# Type of a tensor -> numpy type that holds its bits.
STORED: dict[str, np.dtype] = {
    "float32": np.dtype("<f4"),
    "bfloat16": np.dtype("<u2"),
    "float16": np.dtype("<f2"),
}
PAGE_ALIGNMENT = 64  # a cache line
RUN_ALIGNMENT = 4096  # a page of memory: no two workers share one


@dataclass(frozen=True)
class TapePage:
    """One page of one worker: ``size`` bytes at ``offset`` from the start of the data."""

    worker: int
    page: Page
    dtype: str
    offset: int
    size: int


@dataclass(frozen=True)
class SharedTensor:
    """A tensor in the shared run, as the checkpoint has it: rows one after the other."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    offset: int
    size: int


@dataclass(frozen=True)
class TapeIndex:
    """Offsets for ``plan`` where tensor ``name`` is stored as ``dtypes[name]``.

    The shared run comes first, then the run of each worker.
    """

    plan: Plan
    dtypes: Mapping[str, str]
    layout = f"rows {BLOCK_ROWS} x {COLUMN_GROUP}"

    @cached_property
    def shared(self) -> tuple[SharedTensor, ...]:
        """Tensors into which every worker looks."""
        return shared_run(self.plan, self.dtypes)

    @cached_property
    def pages(self) -> tuple[TapePage, ...]:
        """All pages, worker by worker, in the order of use."""
        offset = self.shared[-1].offset + self.shared[-1].size  # a model always has norms
        found = []
        for worker in self.plan.workers:
            offset = aligned(offset, RUN_ALIGNMENT)
            for page in self.plan.pages(worker.index):
                dtype = self.dtypes[page.tensor]
                size = len(page.rows) * padded_columns(page.columns) * STORED[dtype].itemsize
                found.append(TapePage(worker.index, page, dtype, offset, size))
                offset = aligned(offset + size, PAGE_ALIGNMENT)
        return tuple(found)

    @cached_property
    def size(self) -> int:
        """Bytes of all data."""
        return aligned(self.pages[-1].offset + self.pages[-1].size, RUN_ALIGNMENT)

    @cached_property
    def streamed_bytes(self) -> int:
        """Bytes of all pages, which is what one token reads."""
        return sum(page.size for page in self.pages)

    def pack(self, weights: Weights, entry: TapePage) -> np.ndarray:
        """The page's weights as they lie in the tape, flat."""
        page = entry.page
        tensor = weights.raw(page.tensor)
        rows = (tensor if page.lane < 0 else tensor[page.lane])[page.rows.start : page.rows.stop]
        return pack_rows(rows)

    def tensor_names(self, entry: TapePage) -> tuple[str, ...]:
        """Tensors of which the page has rows."""
        return (entry.page.tensor,)

    def unpack(self, data: np.ndarray) -> dict[str, np.ndarray]:
        """All tensors as the checkpoint had them, bit for bit."""
        tensors = shared_values(self.shared, data)
        shapes = parameter_shapes(self.plan.config)
        for entry in self.pages:
            name, lane, rows = entry.page.tensor, entry.page.lane, entry.page.rows
            if name not in tensors:
                tensors[name] = np.empty(shapes[name], STORED[entry.dtype])
            target = tensors[name] if lane < 0 else tensors[name][lane]
            target[rows.start : rows.stop] = unpack_rows(view(data, entry), len(rows), entry.page.columns)
        return tensors


def shared_run(plan: Plan, dtypes: Mapping[str, str]) -> tuple[SharedTensor, ...]:
    """The tensors at the start of every tape."""
    shapes, offset, found = parameter_shapes(plan.config), 0, []
    for name in shared_tensors(plan):
        size = math.prod(shapes[name]) * STORED[dtypes[name]].itemsize
        found.append(SharedTensor(name, shapes[name], dtypes[name], offset, size))
        offset = aligned(offset + size, PAGE_ALIGNMENT)
    return tuple(found)


def shared_values(shared: tuple[SharedTensor, ...], data: np.ndarray) -> dict[str, np.ndarray]:
    """Tensors of the shared run as they are stored; bfloat16 as uint16."""
    return {entry.name: view(data, entry).reshape(entry.shape) for entry in shared}


def view(data: np.ndarray, entry: SharedTensor | TapePage) -> np.ndarray:
    """An entry's bytes as what they hold."""
    return data[entry.offset : entry.offset + entry.size].view(STORED[entry.dtype])


def aligned(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment
