"""Reading a GGUF file through the ``gguf`` package: metadata with checked types, tensors dequantized.

file = GgufFile(Path("model.gguf"))
file.integer("llama.block_count")
file.raw("token_embd.weight")
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from laneformer.errors import CheckpointError, LaneformerError
from laneformer.importing.gguf_structure import check_structure

# Stored as they are; every other type is dequantized to float32.
_PLAIN_TYPES = {"F32": ("float32", "<f4"), "F16": ("float16", "<f2"), "BF16": ("bfloat16", "<u2")}

_PIECE = 1 << 22  # elements that are dequantized at a time: the package needs several copies of them


class GgufFile:
    """A GGUF file, mapped.  Raises :class:`CheckpointError` where it is damaged, split or big-endian."""

    def __init__(self, path: Path) -> None:
        self.path = path
        gguf = _package()
        check_structure(path)
        try:
            reader = gguf.GGUFReader(path)
            self._values = {name: field.contents() for name, field in reader.fields.items()}
            self._tensors = {tensor.name: tensor for tensor in reader.tensors}
        except Exception as error:  # the library raises whatever its parsing runs into
            reason = " ".join(str(error).split()) or type(error).__name__
            raise CheckpointError(f"{path}: truncated or not a GGUF file ({reason})") from None
        if self.integer("split.count", 1) > 1:
            raise CheckpointError(f"{path}: one part of a split GGUF file; merge the parts first")

    @property
    def tensor_names(self) -> list[str]:
        """Names of all tensors in the file."""
        return list(self._tensors)

    @property
    def keys(self) -> list[str]:
        """Names of all metadata values."""
        return list(self._values)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of one tensor, outermost axis first."""
        return tuple(int(size) for size in reversed(self._tensors[name].shape))

    def dtype(self, name: str) -> str:
        """``float16`` or ``bfloat16`` where that is what is stored; float32 for all else."""
        return _PLAIN_TYPES.get(self._tensors[name].tensor_type.name, ("float32", ""))[0]

    def raw(self, name: str) -> np.ndarray:
        """Values in the type of :meth:`dtype`, bfloat16 as uint16; quantized blocks widened to float32.

        Raises :class:`CheckpointError` for a block type that the ``gguf`` package cannot widen.
        """
        tensor = self._tensors[name]
        kind = tensor.tensor_type.name
        if kind in _PLAIN_TYPES:
            values: np.ndarray = tensor.data.view(_PLAIN_TYPES[kind][1])
            return values.reshape(self.shape(name))
        values = np.empty(self.shape(name), "<f4")
        by_row, stored = values.reshape(-1, values.shape[-1]), tensor.data.reshape(-1, tensor.data.shape[-1])
        step = max(1, _PIECE // values.shape[-1])
        dequantize = _package().dequantize
        try:
            for start in range(0, len(by_row), step):
                by_row[start : start + step] = dequantize(stored[start : start + step], tensor.tensor_type)
        except NotImplementedError:
            raise CheckpointError(
                f"{self.path}: tensor {name} has type {kind}, which the gguf package cannot dequantize"
            ) from None
        return values

    def integer(self, key: str, default: int | None = None) -> int:
        """A whole number of the metadata; :class:`CheckpointError` where it is missing without a default."""
        return int(self._value(key, int, default))

    def number(self, key: str, default: float | None = None) -> float:
        """A number of the metadata, with the digits that float32 holds."""
        value = self._value(key, (int, float), default)
        return float(str(np.float32(value)))

    def text(self, key: str, default: str | None = None) -> str:
        """A text of the metadata."""
        return str(self._value(key, str, default))

    def flag(self, key: str, default: bool) -> bool:
        """A truth value of the metadata."""
        return bool(self._value(key, bool, default))

    def array(self, key: str) -> list[Any]:
        """A list of the metadata."""
        return list(self._value(key, list, None))

    def _value(self, key: str, kind: type | tuple[type, ...], default: Any) -> Any:
        value = self._values.get(key, default)
        if value is None:
            raise CheckpointError(f"{self.path}: metadata {key} is missing")
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise CheckpointError(f"{self.path}: metadata {key} has an unexpected value {str(value)[:60]!r}")
        return value


def _package() -> Any:
    """The ``gguf`` package, which only this needs."""
    try:
        import gguf
    except ModuleNotFoundError:
        raise LaneformerError("GGUF files need gguf: pip install 'laneformer[import]'") from None
    return gguf
