"""Checkpoint folders to and from PyTorch, in the Hugging Face layout.

Every file is written under a temporary name and renamed, config.json last: a folder that holds a
config.json is whole.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from safetensors.torch import save_file

from laneformer.checkpoint import INDEX_FILE, SINGLE_FILE, Checkpoint, split_into_shards
from laneformer.errors import CheckpointError
from laneformer.parameters import parameter_shapes

if TYPE_CHECKING:
    from laneformer.model import LaneformerForCausalLM

SHARD_FILE = re.compile(r"model-\d{5}-of-\d{5}\.safetensors")
TORCH_TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def load_model(folder: str | Path, dtype: torch.dtype | None) -> LaneformerForCausalLM:
    """See :meth:`LaneformerForCausalLM.from_pretrained`."""
    from laneformer.model import LaneformerForCausalLM

    checkpoint = Checkpoint(folder)
    with torch.device("meta"):
        model = LaneformerForCausalLM(checkpoint.config)
    if dtype is None:  # mixed types meet in the narrowest that holds all their values: a product needs one
        dtypes = (TORCH_TYPES[checkpoint.dtype(name)] for name in checkpoint.names)
        dtype = reduce(torch.promote_types, dtypes)
    state = {name: _tensor(checkpoint, name, dtype) for name in checkpoint.names}
    model.load_state_dict(state, assign=True)
    return model


def _tensor(checkpoint: Checkpoint, name: str, dtype: torch.dtype) -> torch.Tensor:
    """One finite tensor; :class:`CheckpointError` for NaN or infinity."""
    raw = np.array(checkpoint.raw(name))  # a copy: the file may change or go while the model lives
    tensor = torch.from_numpy(raw)
    if checkpoint.dtype(name) == "bfloat16":
        tensor = tensor.view(torch.bfloat16)
    if not bool(torch.isfinite(tensor).all()):
        raise CheckpointError(f"{checkpoint.folder}: tensor {name} holds values that are NaN or infinite")
    return tensor.to(dtype)


def save_model(model: LaneformerForCausalLM, folder: str | Path, max_shard_bytes: int) -> None:
    """See :meth:`LaneformerForCausalLM.save_pretrained`."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    names = list(parameter_shapes(model.config))
    state = model.state_dict()
    tensors = {name: state[name].detach().cpu().contiguous() for name in names}
    common = reduce(torch.promote_types, (tensor.dtype for tensor in tensors.values()))
    if common not in TORCH_TYPES.values():
        raise CheckpointError(
            f"{folder}: weights of {common} are not stored; cast the model to torch.float32"
        )
    sizes = {name: tensor.nbytes for name, tensor in tensors.items()}
    split = split_into_shards(sizes, max_shard_bytes)
    shards = [{name: tensors[name] for name in shard} for shard in split]
    weight_map: dict[str, str] = {}
    if len(shards) == 1:
        _replace(folder / SINGLE_FILE, lambda path: save_file(shards[0], path, metadata={"format": "pt"}))
        (folder / INDEX_FILE).unlink(missing_ok=True)
    else:
        for number, shard in enumerate(shards, start=1):
            file_name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
            _save_shard(folder / file_name, shard)
            weight_map |= dict.fromkeys(shard, file_name)
        index = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": weight_map}
        write_json(folder / INDEX_FILE, index)
        (folder / SINGLE_FILE).unlink(missing_ok=True)
    for path in folder.iterdir():  # shards of what was saved here before
        if SHARD_FILE.fullmatch(path.name) and path.name not in weight_map.values():
            path.unlink()
    values = model.config.to_dict()
    values["torch_dtype"] = str(common).removeprefix("torch.")
    write_json(folder / "config.json", values)


def write_json(path: Path, values: object) -> None:
    """Write indented JSON through a temporary name."""
    text = json.dumps(values, indent=1) + "\n"
    _replace(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def _save_shard(path: Path, shard: dict[str, torch.Tensor]) -> None:
    _replace(path, lambda temporary: save_file(shard, temporary, metadata={"format": "pt"}))


def _replace(path: Path, write: Callable[[Path], object]) -> None:
    temporary = path.with_name(f".{path.name}.partial")
    write(temporary)
    os.replace(temporary, path)
