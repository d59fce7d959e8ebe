"""From a dense model to a Laneformer checkpoint, one tensor at a time.

import_checkpoint("llama-folder", "checkpoint", lanes=4)
import_checkpoint("model.gguf", "checkpoint", dtype="bfloat16")
"""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from laneformer.checkpoint import Checkpoint
from laneformer.config import LaneformerConfig
from laneformer.errors import CheckpointError, TokenizerError
from laneformer.importing.dense import DenseSource, check_lanes, cut_into_lanes, dense_shapes
from laneformer.importing.folder_writer import (
    MAX_SHARD_BYTES,
    TensorLayout,
    whole_folder,
    write_file,
    write_tensors,
)
from laneformer.importing.number_types import check_finite, converted, fits_exactly
from laneformer.parameters import parameter_count, parameter_shapes
from laneformer.tensors import FLOAT_TYPES
from laneformer.tokenizer import SETTINGS_FILE, TEMPLATE_FILE, TOKENIZER_FILE, Tokenizer

KEEP = "keep"
IMPORT_DTYPES = (KEEP, *(name for _, name in FLOAT_TYPES.values()))


@dataclass(frozen=True)
class ImportSummary:
    """What was written.  ``dtype`` is "mixed" where tensors differ; ``size`` is the bytes of all tensors."""

    path: Path
    kind: str
    config: LaneformerConfig
    parameters: int
    tensors: int
    size: int
    dtype: str
    tokenizer_ids: int | None


def import_checkpoint(
    source: str | Path,
    out: str | Path,
    *,
    lanes: int = 1,
    dtype: str = KEEP,
    overwrite: bool = False,
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> ImportSummary:
    """Write the dense model ``source``, a Hugging Face folder or a GGUF file, as the checkpoint ``out``.

    More than one lane needs heads, key heads and feed-forward units that they divide; the function stays
    the same (``broadcast_delay`` 0).  ``dtype`` "keep" changes no value; quantized blocks become float32.
    Memory stays at a few times the largest tensor, and ``out`` appears only when it is whole.

    Raises :class:`CheckpointError`, :class:`ConfigError` or :class:`TokenizerError`, naming what is damaged,
    not supported, or cannot be written.
    """
    source, out = Path(source), Path(out)
    if dtype not in IMPORT_DTYPES:
        raise CheckpointError(f"unknown dtype {dtype!r}; known: {', '.join(IMPORT_DTYPES)}")
    if os.path.realpath(out) == os.path.realpath(source):
        raise CheckpointError(f"{out}: is the source itself; give another name")
    model = open_source(source)
    check_lanes(model.config, lanes)
    tokenizer = _checked_tokenizer(model, source)
    layout = _layout(model, lanes, dtype)
    common = Counter(tensor.dtype for tensor in layout.values())
    main = max(common, key=lambda kind: sum(t.size for t in layout.values() if t.dtype == kind))
    config = replace(model.config, num_lanes=lanes, dtype=main)

    def bits_of(name: str) -> np.ndarray:
        return _bits(model, source, name, layout[name].dtype, lanes)

    with whole_folder(out, overwrite=overwrite) as folder:
        write_tensors(folder, layout, bits_of, max_shard_bytes)
        for file_name, contents in model.tokenizer_files.items():
            write_file(folder / file_name, contents)
        write_file(folder / "config.json", (json.dumps(config.to_dict(), indent=1) + "\n").encode())
        Checkpoint(folder)  # what was written is a checkpoint
    return ImportSummary(
        path=out,
        kind=model.kind,
        config=config,
        parameters=parameter_count(config),
        tensors=len(layout),
        size=sum(tensor.size for tensor in layout.values()),
        dtype=main if len(common) == 1 else "mixed",
        tokenizer_ids=None if tokenizer is None else tokenizer.vocab_size,
    )


def open_source(source: Path) -> DenseSource:
    """Open a Hugging Face folder or a GGUF file."""
    if os.path.isdir(source):  # Path.is_dir raises for a name that is too long
        from laneformer.importing.huggingface import HuggingFaceSource

        return HuggingFaceSource(source)
    if not os.path.exists(source):
        raise CheckpointError(f"{source}: no such file or folder")
    from laneformer.importing.gguf_source import GgufSource

    return GgufSource(source)


def _checked_tokenizer(model: DenseSource, source: Path) -> Tokenizer | None:
    """The tokenizer as it will be read back; :class:`TokenizerError` where it does not fit the model."""
    files = model.tokenizer_files
    if TOKENIZER_FILE not in files:
        return None
    settings = json.loads(files.get(SETTINGS_FILE, b"{}"))
    if TEMPLATE_FILE in files:
        settings["chat_template"] = files[TEMPLATE_FILE].decode()
    try:
        tokenizer = Tokenizer.from_text(files[TOKENIZER_FILE].decode(), settings)
        tokenizer.check_fits(model.config.vocab_size)
    except TokenizerError as error:
        raise TokenizerError(f"{source}: {error}") from None
    return tokenizer


def _layout(model: DenseSource, lanes: int, dtype: str) -> dict[str, TensorLayout]:
    """Shape and type of every tensor of the checkpoint, in the order in which a token meets them."""
    shapes = parameter_shapes(replace(model.config, num_lanes=lanes))
    if dtype != KEEP:
        return {name: TensorLayout(shape, dtype) for name, shape in shapes.items()}
    kept = {name: model.dtype(name) for name in shapes}
    matrix_types = {kept[name] for name, shape in dense_shapes(model.config).items() if len(shape) == 2}
    if len(matrix_types) == 1:
        # Files with 16-bit matrices often widen norms to float32.  Where 16 bits hold them, one type serves
        # all and PyTorch needs no conversion.
        (matrix_type,) = matrix_types
        for name, kind in kept.items():
            if kind == "float32" != matrix_type and fits_exactly(model.raw(name), matrix_type):
                kept[name] = matrix_type
    return {name: TensorLayout(shape, kept[name]) for name, shape in shapes.items()}


def _bits(model: DenseSource, source: Path, name: str, dtype: str, lanes: int) -> np.ndarray:
    """One tensor as it is stored in the checkpoint."""
    raw = model.raw(name)
    try:
        check_finite(name, raw, model.dtype(name))
        bits = converted(name, raw, model.dtype(name), dtype)
    except CheckpointError as error:
        raise CheckpointError(f"{source}: {error}") from None
    return cut_into_lanes(name, bits, lanes)
