"""Making an engine file from a checkpoint, one tensor at a time.

    export_engine_file("checkpoint", "model.laneformer", dtype="bfloat16")

The container is written here rather than by the safetensors library, which wants all tensors in memory
at once; memory stays at a few times the largest tensor.  The same checkpoint gives the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

import numpy as np

from infer.atomic_file import atomic_file
from infer.engine_file import FORMAT, VERSION
from infer.weights import Weights, open_model
from laneformer.errors import CheckpointError
from laneformer.tensors import FLOAT_TYPES, float32_to_bfloat16
from laneformer.tokenizer import Tokenizer

KEEP = "keep"
EXPORT_DTYPES = (KEEP, *(name for _, name in FLOAT_TYPES.values()))
ALIGNMENT = 64  # bytes: where tensor data begins, so that a mapped file can be read in whole cache lines

_TYPE_NAMES = {name: kind for kind, (_, name) in FLOAT_TYPES.items()}  # float32 -> F32
_ITEM_SIZES = {name: bits.itemsize for bits, name in FLOAT_TYPES.values()}


@dataclass(frozen=True)
class ExportSummary:
    """What was written: ``dtype`` as in the file, ``size`` in bytes."""

    path: Path
    tensors: int
    size: int
    dtype: str
    source_sha256: str


def export_engine_file(
    source: str | Path, out: str | Path, *, dtype: str = KEEP, overwrite: bool = False
) -> ExportSummary:
    """Write the model in ``source``, a checkpoint folder, to the engine file ``out``.

    ``dtype`` "keep" stores every tensor in the type it has.  Raises :class:`CheckpointError` for an
    existing ``out`` without ``overwrite`` (a link that points nowhere exists), for values that are NaN,
    infinite or too large for ``dtype`` (naming the tensor), and where ``out`` cannot be written; a file
    that was there is then untouched.  Where ``out`` is a symbolic link, what it points to is written.
    """
    weights, tokenizer = open_model(source)
    return write_engine_file(weights, out, tokenizer=tokenizer, dtype=dtype, overwrite=overwrite)


def write_engine_file(
    weights: Weights,
    out: str | Path,
    *,
    tokenizer: Tokenizer | None = None,
    dtype: str = KEEP,
    overwrite: bool = False,
) -> ExportSummary:
    """Write ``weights`` that are at hand, as :func:`export_engine_file` writes those of a checkpoint."""
    out = Path(out)
    if dtype not in EXPORT_DTYPES:
        raise CheckpointError(f"dtype must be one of {', '.join(EXPORT_DTYPES)}, found {dtype!r}")
    target = _target(out, overwrite)
    layout = Layout(weights, tokenizer, dtype)
    try:
        with atomic_file(target) as file:
            source_sha256 = _write(file, weights, layout)
    except OSError as error:
        raise CheckpointError(f"{out}: cannot be written ({error.strerror or error})") from None
    return ExportSummary(out, len(layout.dtypes), out.stat().st_size, layout.common_dtype, source_sha256)


def _target(out: Path, overwrite: bool) -> Path:
    """The file to write: where ``out`` is a symbolic link, what it points to, so that the link stays."""
    # os.path rather than Path, whose methods raise for a name that is too long.
    if os.path.isdir(out):
        raise CheckpointError(f"{out}: is a folder; give the name of the file to write")
    if os.path.lexists(out) and not overwrite:
        raise CheckpointError(f"{out}: exists already; give another name or --overwrite")
    target = Path(os.path.realpath(out))
    if os.path.lexists(target) and not os.path.isfile(target):  # a device, a pipe, a link to itself
        raise CheckpointError(f"{out}: is not a plain file, so it is not replaced; give another name")
    return target


class Layout:
    """Types and order of the tensors in the file, and the header that says so."""

    def __init__(self, weights: Weights, tokenizer: Tokenizer | None, dtype: str) -> None:
        stored = {name: weights.dtype(name) if dtype == KEEP else dtype for name in weights.names}
        # In the order in which a token meets them; where types are mixed, wide ones first keep all aligned.
        names = sorted(stored, key=lambda name: -_ITEM_SIZES[stored[name]])
        self.dtypes = {name: stored[name] for name in names}
        different = set(self.dtypes.values())
        self.common_dtype = different.pop() if len(different) == 1 else "mixed"
        config = weights.config
        if self.common_dtype != "mixed":
            config = replace(config, dtype=self.common_dtype)
        self._metadata = {
            "format": FORMAT,
            "version": VERSION,
            "config": json.dumps(config.to_dict()),
            "dtype": self.common_dtype,
        }
        if tokenizer is not None:
            self._metadata["tokenizer"] = tokenizer.to_text()
            self._metadata["tokenizer_settings"] = json.dumps(tokenizer.settings())
        self._entries: dict[str, object] = {}
        offset = 0
        for name, kind in self.dtypes.items():
            shape = weights.raw(name).shape
            size = int(np.prod(shape)) * _ITEM_SIZES[kind]
            entry = {
                "dtype": _TYPE_NAMES[kind],
                "shape": list(shape),
                "data_offsets": [offset, offset + size],
            }
            self._entries[name] = entry
            offset += size

    def header(self, source_sha256: str) -> bytes:
        """Length and header; its size does not depend on the hash, which is known only at the end."""
        metadata = self._metadata | {"source_sha256": source_sha256}
        text = json.dumps({"__metadata__": metadata, **self._entries}, separators=(",", ":")).encode()
        text += b" " * (-(8 + len(text)) % ALIGNMENT)
        return len(text).to_bytes(8, "little") + text


def _write(file: BinaryIO, weights: Weights, layout: Layout) -> str:
    """Write header and tensors; return the hash of the source."""
    sha256 = hashlib.sha256()
    file.write(layout.header("0" * sha256.digest_size * 2))
    for name, dtype in layout.dtypes.items():
        raw = np.ascontiguousarray(weights.raw(name))
        sha256.update(json.dumps([name, list(raw.shape), weights.dtype(name)]).encode())
        sha256.update(raw.data)
        file.write(_converted(weights, name, dtype).data)
    file.seek(0)
    file.write(layout.header(sha256.hexdigest()))
    return sha256.hexdigest()


def _converted(weights: Weights, name: str, dtype: str) -> np.ndarray:
    """Bits of one tensor in ``dtype``; checked, whatever its type, for NaN and infinity."""
    values = weights.float32(name)
    if dtype == weights.dtype(name):
        return np.ascontiguousarray(weights.raw(name))
    bits, is_infinite = _CONVERSIONS[dtype](values)
    if is_infinite.any():
        raise CheckpointError(
            f"tensor {name} holds {int(is_infinite.sum())} values too large for {dtype} "
            f"(up to {float(np.abs(values).max()):g}); export as float32 or, for float16, as bfloat16"
        )
    return bits


def _to_float32(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return values.astype("<f4", copy=False), np.zeros(1, dtype=bool)


def _to_float16(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    with np.errstate(over="ignore"):  # reported with the tensor's name instead
        halves = values.astype("<f2")
    return halves, np.isinf(halves)


def _to_bfloat16(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    bits = float32_to_bfloat16(values).astype("<u2", copy=False)
    return bits, (bits & 0x7FFF) == 0x7F80


_CONVERSIONS: dict[str, Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]] = {
    "float32": _to_float32,
    "float16": _to_float16,
    "bfloat16": _to_bfloat16,
}
