"""Checkpoint folders in the Hugging Face layout, read without torch.

    folder/
      config.json
      model.safetensors                 or   model.safetensors.index.json + model-0000i-of-0000n.safetensors
      tokenizer.json, tokenizer_config.json (optional)

:class:`Checkpoint` checks names and shapes against the configuration before any value is read, so a
wrong file is one clear error and never reaches a model.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from laneformer.config import LaneformerConfig
from laneformer.errors import CheckpointError
from laneformer.json_input import read_json
from laneformer.parameters import EMBEDDING, parameter_shapes
from laneformer.tensors import TensorFile

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"


class Checkpoint:
    """A checked checkpoint folder.

    Raises :class:`CheckpointError` for missing or damaged files and for missing, extra or wrongly shaped
    tensors, which it names; :class:`ConfigError` for a config.json that makes no sense.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        if not os.path.isdir(self.folder):  # Path.is_dir raises for a name that is too long
            raise CheckpointError(f"{self.folder}: no such checkpoint folder")
        self.config = LaneformerConfig.from_file(self.folder / "config.json")
        self._file_of = open_tensor_files(self.folder)
        check_tensors(
            self.config, {name: file.shape(name) for name, file in self._file_of.items()}, self.folder
        )
        for name, file in self._file_of.items():
            file.dtype(name)  # an unknown type is an error now, not when it is read
        _drop_tied_copy(self.config, self._file_of)

    @property
    def names(self) -> list[str]:
        """Names of all tensors, in the order in which a token meets them."""
        return list(parameter_shapes(self.config))

    def dtype(self, name: str) -> str:
        """Stored type of one tensor."""
        return self._file_of[name].dtype(name)

    def raw(self, name: str) -> np.ndarray:
        """Stored values, read-only; bfloat16 as uint16."""
        return self._file_of[name].raw(name)

    def float32(self, name: str) -> np.ndarray:
        """Values widened to float32; :class:`CheckpointError` for NaN or infinity."""
        return self._file_of[name].float32(name)


def check_tensors(config: LaneformerConfig, shapes: dict[str, tuple[int, ...]], source: object) -> None:
    """Hold the tensors found in ``source`` against the configuration.

    :class:`CheckpointError` names the first that is missing, extra or of another shape.  A tied head may
    be stored beside the embedding.
    """
    expected = parameter_shapes(config)
    allowed = dict(expected)
    if config.tie_word_embeddings:
        allowed.setdefault("lm_head.weight", expected[EMBEDDING])
    for name, shape in expected.items():
        if name not in shapes:
            raise CheckpointError(f"{source}: tensor {name} is missing (expected shape {list(shape)})")
    for name, shape in shapes.items():
        if name not in allowed:
            raise CheckpointError(f"{source}: unexpected tensor {name} of shape {list(shape)}")
        if shape != allowed[name]:
            raise CheckpointError(
                f"{source}: tensor {name} has shape {list(shape)}, config.json asks for {list(allowed[name])}"
            )


def open_tensor_files(folder: Path) -> dict[str, TensorFile]:
    """Which file holds each tensor, for a single file or an index, whatever the tensors are.

    Raises :class:`CheckpointError` where files are missing, damaged or disagree with the index.
    """
    index_path = folder / INDEX_FILE
    if not index_path.exists():
        if not (folder / SINGLE_FILE).exists():
            raise CheckpointError(f"{folder}: neither {SINGLE_FILE} nor {INDEX_FILE} is there")
        file = TensorFile(folder / SINGLE_FILE)
        return dict.fromkeys(file.names, file)
    weight_map = read_json(index_path, CheckpointError).get("weight_map")
    if not isinstance(weight_map, dict):
        raise CheckpointError(f"{index_path}: no index of shards, weight_map is {weight_map!r}")
    for name in weight_map.values():
        if not isinstance(name, str) or Path(name).name != name:
            raise CheckpointError(f"{index_path}: shard {name!r} must be a file in the same folder")
    file_names = sorted(set(weight_map.values()))
    files = {name: TensorFile(folder / name) for name in file_names}
    for tensor, name in weight_map.items():
        if tensor not in files[name].names:
            raise CheckpointError(f"{index_path}: tensor {tensor} is not in {name}, where the index puts it")
    for name, file in files.items():
        for tensor in file.names:
            if weight_map.get(tensor) != name:
                raise CheckpointError(
                    f"{index_path}: {name} holds tensor {tensor}, which the index does not list there"
                )
    return {tensor: files[name] for tensor, name in weight_map.items()}


def split_into_shards(sizes: Mapping[str, int], max_bytes: int) -> list[list[str]]:
    """Names of tensors by file, in order; ``sizes`` in bytes.  One above ``max_bytes`` gets its own file."""
    shards: list[list[str]] = [[]]
    size = 0
    for name, tensor_bytes in sizes.items():
        if shards[-1] and size + tensor_bytes > max_bytes:
            shards.append([])
            size = 0
        shards[-1].append(name)
        size += tensor_bytes
    return shards


def _drop_tied_copy(config: LaneformerConfig, file_of: dict[str, TensorFile]) -> None:
    """Some software stores a tied head a second time; accept it only where it is the same to the bit."""
    if not (config.tie_word_embeddings and "lm_head.weight" in file_of):
        return
    file = file_of.pop("lm_head.weight")
    if not np.array_equal(file.raw("lm_head.weight"), file_of[EMBEDDING].raw(EMBEDDING)):
        raise CheckpointError(
            f"{file.path}: tie_word_embeddings is set, but lm_head.weight differs from {EMBEDDING}"
        )
