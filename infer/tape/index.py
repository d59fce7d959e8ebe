"""Where everything lies in a tape: arithmetic on a plan and the types of its tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from infer.plan import Page, Plan
from infer.plan.plan import shared_tensors
from infer.tape.page_layout import padded_columns
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

    @cached_property
    def shared(self) -> tuple[SharedTensor, ...]:
        """Tensors into which every worker looks."""
        shapes, offset, found = parameter_shapes(self.plan.config), 0, []
        for name in shared_tensors(self.plan):
            size = math.prod(shapes[name]) * STORED[self.dtypes[name]].itemsize
            found.append(SharedTensor(name, shapes[name], self.dtypes[name], offset, size))
            offset = _aligned(offset + size, PAGE_ALIGNMENT)
        return tuple(found)

    @cached_property
    def pages(self) -> tuple[TapePage, ...]:
        """All pages, worker by worker, in the order of use."""
        offset = self.shared[-1].offset + self.shared[-1].size  # a model always has norms
        found = []
        for worker in self.plan.workers:
            offset = _aligned(offset, RUN_ALIGNMENT)
            for page in self.plan.pages(worker.index):
                dtype = self.dtypes[page.tensor]
                size = len(page.rows) * padded_columns(page.columns) * STORED[dtype].itemsize
                found.append(TapePage(worker.index, page, dtype, offset, size))
                offset = _aligned(offset + size, PAGE_ALIGNMENT)
        return tuple(found)

    @cached_property
    def size(self) -> int:
        """Bytes of all data."""
        return _aligned(self.pages[-1].offset + self.pages[-1].size, RUN_ALIGNMENT)

    @cached_property
    def streamed_bytes(self) -> int:
        """Bytes of all pages, which is what one token reads."""
        return sum(page.size for page in self.pages)


def _aligned(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment
