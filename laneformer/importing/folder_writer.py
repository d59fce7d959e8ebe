"""Writing a checkpoint folder tensor by tensor, and so that its name never holds half of one.

The safetensors container is written here rather than by the library, which wants all tensors of a file in
memory at once.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from laneformer.checkpoint import INDEX_FILE, SINGLE_FILE, split_into_shards
from laneformer.errors import CheckpointError
from laneformer.tensors import FLOAT_TYPES

MAX_SHARD_BYTES = 5 * 10**9
_ITEM_SIZES = {name: kind.itemsize for kind, name in FLOAT_TYPES.values()}
_TYPE_NAMES = {name: stored for stored, (_, name) in FLOAT_TYPES.items()}
_ALIGNMENT = 64  # bytes: where tensor data begins, so that a mapped file can be read in whole cache lines


@dataclass(frozen=True)
class TensorLayout:
    """Shape and type of a tensor that is going to be written."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def size(self) -> int:
        """Bytes."""
        return int(np.prod(self.shape)) * _ITEM_SIZES[self.dtype]


@contextmanager
def whole_folder(out: Path, *, overwrite: bool) -> Iterator[Path]:
    """A new folder beside ``out`` that takes its name when the block ends, and is removed if it raises.

    Raises :class:`CheckpointError` where ``out`` exists and is not to be overwritten, where it is something
    else than a checkpoint folder, and where the disk is full or cannot be written.
    """
    _check_target(out, overwrite)
    out = Path(os.path.realpath(out))  # a link to a folder stays, and leads to the new one
    partial = out.with_name(f".{out.name}.{os.getpid()}.partial")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(partial, ignore_errors=True)  # left by a process of the same number that was killed
        partial.mkdir()
        yield partial
        _sync_folder(partial)
        _take_name(partial, out)
        _sync_folder(out.parent)
    except OSError as error:
        reason = "the disk is full" if error.errno == errno.ENOSPC else error.strerror or error
        raise CheckpointError(f"{out}: cannot be written ({reason}); nothing was left there") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def write_file(path: Path, contents: bytes) -> None:
    """Write a small file and hand it to the disk."""
    with open(path, "wb") as file:
        file.write(contents)
        _sync(file)


def write_tensors(
    folder: Path,
    layout: Mapping[str, TensorLayout],
    bits_of: Callable[[str], np.ndarray],
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> None:
    """Write the tensors of ``layout``, in files of at most ``max_shard_bytes`` where there are several.

    ``bits_of`` gives one tensor at a time, of that shape and type (bfloat16 as uint16).
    """
    split = split_into_shards({name: tensor.size for name, tensor in layout.items()}, max_shard_bytes)
    shards = [{name: layout[name] for name in shard} for shard in split]
    if len(shards) == 1:
        _write_shard(folder / SINGLE_FILE, shards[0], bits_of)
        return
    weight_map: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        file_name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        _write_shard(folder / file_name, shard, bits_of)
        weight_map |= dict.fromkeys(shard, file_name)
    total = sum(tensor.size for tensor in layout.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    write_file(folder / INDEX_FILE, (json.dumps(index, indent=1) + "\n").encode())


def _write_shard(path: Path, shard: Mapping[str, TensorLayout], bits_of: Callable[[str], np.ndarray]) -> None:
    """One safetensors file; where types are mixed, wide ones first, which keeps all aligned."""
    names = sorted(shard, key=lambda name: -_ITEM_SIZES[shard[name].dtype])
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name in names:
        tensor = shard[name]
        offsets = [offset, offset + tensor.size]
        header[name] = {
            "dtype": _TYPE_NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": offsets,
        }
        offset = offsets[1]
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % _ALIGNMENT)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in names:
            bits = np.ascontiguousarray(bits_of(name))
            if bits.shape != shard[name].shape or bits.nbytes != shard[name].size:
                raise RuntimeError(f"{name}: {bits.shape} {bits.dtype} does not fit {shard[name]}")
            file.write(bits.data)
        _sync(file)


def _check_target(out: Path, overwrite: bool) -> None:
    # os.path rather than Path, whose methods raise for a name that is too long.
    if not os.path.lexists(out):
        return
    if not overwrite:
        raise CheckpointError(f"{out}: exists already; give another name or --overwrite")
    if os.path.islink(out) and not os.path.exists(out):
        raise CheckpointError(f"{out}: is a link that points nowhere; remove it or give another name")
    if not os.path.isdir(out) or (any(out.iterdir()) and not (out / "config.json").exists()):
        raise CheckpointError(f"{out}: not a checkpoint folder, so it is not overwritten")


def _take_name(partial: Path, out: Path) -> None:
    """Give ``partial`` the name ``out``; a folder that had it goes only once the new one is there."""
    old = out.with_name(f".{out.name}.{os.getpid()}.old")
    if out.exists():
        os.rename(out, old)
    try:
        os.rename(partial, out)
    except OSError:
        if old.exists():
            os.rename(old, out)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _sync(file: BinaryIO) -> None:
    """The folder's name must not reach the disk before the contents."""
    file.flush()
    os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
