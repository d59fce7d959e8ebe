"""The model in training as a back end of the engine, so that samples and HumanEval use one code path."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from infer.backends import StepwiseBackend
from laneformer.key_value_cache import KeyValueCache
from laneformer.model import LaneformerForCausalLM


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
