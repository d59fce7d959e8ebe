"""The PyTorch model as a back end of the engine, so that samples and evaluation use one code path."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from infer import Engine
from infer.backends import StepwiseBackend
from laneformer.errors import CheckpointError
from laneformer.key_value_cache import KeyValueCache
from laneformer.model import LaneformerForCausalLM
from laneformer.tokenizer import TOKENIZER_FILE, Tokenizer
from train.hardware import select_device


class TorchBackend(StepwiseBackend):
    """Runs a :class:`LaneformerForCausalLM` where its weights are."""

    name = "torch"

    def __init__(self, model: LaneformerForCausalLM) -> None:
        self.model = model
        self.config = model.config

    def new_cache(self) -> KeyValueCache:
        """An empty cache."""
        return KeyValueCache(self.config.num_hidden_layers)

    @torch.no_grad()
    def forward(
        self, token_ids: Sequence[int], cache: KeyValueCache, *, last_only: bool = False
    ) -> np.ndarray:
        """Float32 logits ``[len(token_ids), vocab]``, or ``[1, vocab]`` with ``last_only``."""
        device = next(self.model.parameters()).device
        logits = self.model(torch.tensor([list(token_ids)], device=device), cache=cache)[0]
        kept = logits[-1:] if last_only else logits
        return np.asarray(kept.float().cpu().numpy())


def open_engine(folder: str | Path) -> Engine:
    """An engine that runs the checkpoint ``folder`` through PyTorch in float32, on a GPU where there is one.

    Raises :class:`CheckpointError`, :class:`ConfigError` or :class:`TokenizerError` as :class:`infer.Engine`
    does.
    """
    folder = Path(folder)
    if os.path.isfile(folder):
        raise CheckpointError(
            f"{folder}: the torch back end reads checkpoint folders; this is a file: use another back end"
        )
    model = LaneformerForCausalLM.from_pretrained(folder, torch.float32).to(select_device("auto")).eval()
    tokenizer = Tokenizer.from_folder(folder) if (folder / TOKENIZER_FILE).exists() else None
    return Engine.from_backend(TorchBackend(model), tokenizer)
