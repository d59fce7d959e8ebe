"""Where an engine's weights come from: a checkpoint folder or an engine file, behind one interface.

weights, tokenizer = open_model("checkpoint-or-engine-file")
weights.float32("model.norm.weight")
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

import numpy as np

from infer.engine_file import EngineFile
from laneformer.checkpoint import Checkpoint
from laneformer.config import LaneformerConfig
from laneformer.errors import CheckpointError
from laneformer.tokenizer import TOKENIZER_FILE, Tokenizer


class Weights(Protocol):
    """Checked tensors of one model, named as in :func:`laneformer.parameters.parameter_shapes`."""

    config: LaneformerConfig

    @property
    def names(self) -> list[str]:
        """Names of all tensors, in the order in which a token meets them."""

    def dtype(self, name: str) -> str:
        """Stored type of one tensor: float32, bfloat16 or float16."""

    def raw(self, name: str) -> np.ndarray:
        """Stored values, read-only; bfloat16 as uint16."""

    def float32(self, name: str) -> np.ndarray:
        """Values widened to float32; :class:`CheckpointError` for NaN or infinity."""


def open_model(path: str | Path) -> tuple[Weights, Tokenizer | None]:
    """Open an engine file or a checkpoint folder, with its tokenizer where there is one.

    Raises :class:`CheckpointError`, :class:`ConfigError` or :class:`TokenizerError`.
    """
    path = Path(path)
    weights: Weights
    # os.path rather than Path: a name that is too long is "not there" to it, and no OSError.
    if os.path.isdir(path):
        weights = Checkpoint(path)
        tokenizer = Tokenizer.from_folder(path) if (path / TOKENIZER_FILE).exists() else None
    elif os.path.exists(path):
        weights = EngineFile(path)
        tokenizer = weights.tokenizer
    else:
        raise CheckpointError(
            f"{path}: no such file or folder; expected an engine file or a checkpoint folder"
        )
    if tokenizer is not None:
        tokenizer.check_fits(weights.config.vocab_size)
    return weights, tokenizer
