"""Tapes that have been made, by content: the same weights, plan and version give the same file.

The folder is ``$LANEFORMER_CACHE``, else ``laneformer`` in ``$XDG_CACHE_HOME`` or ``~/.cache``.  Everything
in it can be deleted at any time.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

import numpy as np

from infer.plan import Plan
from infer.tape.index import TapeIndex
from infer.tape.tape_file import VERSION, Index, Tape, write_tape
from infer.weights import Weights
from laneformer.errors import CheckpointError
from laneformer.parameters import parameter_shapes

log = logging.getLogger(__name__)


def cache_folder() -> Path:
    """Where tapes and compiled back ends are kept."""
    if named := os.environ.get("LANEFORMER_CACHE"):
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "laneformer"


def open_tape(weights: Weights, plan: Plan, layout: type[Index] = TapeIndex) -> Tape:
    """The tape of ``weights`` for ``plan``, made where it is not in the cache.

    ``layout`` is how weights lie in it: rows for the CPU, :class:`TileIndex` for tensor cores.

    A file in the cache that is damaged or of another version is replaced, with a warning.  Raises
    :class:`CheckpointError` where the tape cannot be written or a weight is not finite.
    """
    key = tape_key(weights, plan, layout)
    path = cache_folder() / "tapes" / f"{key[:32]}.tape"
    if path.exists():
        try:
            return Tape(path, plan, key, layout)
        except CheckpointError as error:
            log.warning("packing the weights again: %s", error)
    dtypes = {name: weights.dtype(name) for name in parameter_shapes(plan.config)}
    write_tape(weights, layout(plan, dtypes), path, key)
    return Tape(path, plan, key, layout)


def tape_key(weights: Weights, plan: Plan, layout: type[Index] = TapeIndex) -> str:
    """SHA-256 over version, layout of pages, plan, and name, type and bytes of every tensor."""
    names = list(parameter_shapes(plan.config))
    with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:  # hashing lets go of the interpreter
        digests = list(pool.map(lambda name: _digest(weights.raw(name)), names))
    described = {
        "version": VERSION,
        "weights": layout.layout,
        "config": plan.config.to_dict(),
        "layout": asdict(plan.layout),
        "tensors": [(name, weights.dtype(name), digest) for name, digest in zip(names, digests, strict=True)],
    }
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()


def _digest(values: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(values).reshape(-1).view(np.uint8).data).hexdigest()
