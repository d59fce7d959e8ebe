"""bfloat16 weights on the CPU back end against PyTorch's own bfloat16 forward."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from infer.backends.cpu_backend import CpuBackend
from laneformer import LaneformerForCausalLM
from laneformer.checkpoint import Checkpoint
from tests.golden_cases import CASES, answers
from tests.tiny_models import write_checkpoint

# Measured: 2e-7 to 2e-6 of the largest logit here, 5e-3 and more for PyTorch in bfloat16.
SHARE_OF_TORCH_ERROR = 1e-2


@pytest.mark.parametrize("folder", CASES)
@torch.no_grad()
def test_error_of_16_bit_weights_is_below_that_of_torch(folder: Path, tmp_path: Path) -> None:
    """Both against a float32 run of the same rounded weights."""
    source = Checkpoint(folder)
    tensors = {name: source.float32(name) for name in source.names}
    dtypes = dict.fromkeys(tensors, "bfloat16")
    rounded = write_checkpoint(tmp_path / "rounded", source.config, dtypes=dtypes, tensors=tensors)
    ids = answers(folder)["input_ids"][0]
    batch = torch.from_numpy(ids)[None]
    exact = LaneformerForCausalLM.from_pretrained(rounded, torch.float32)(batch)[0].numpy()
    torch_logits = LaneformerForCausalLM.from_pretrained(rounded, torch.bfloat16)(batch)[0].float().numpy()
    logits = CpuBackend(Checkpoint(rounded)).logits(ids.tolist())
    error, torch_error = np.abs(logits - exact).max(), np.abs(torch_logits - exact).max()
    assert error < SHARE_OF_TORCH_ERROR * torch_error
