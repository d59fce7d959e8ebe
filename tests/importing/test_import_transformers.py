"""Logits of imported models against those of transformers, over the corners of both architectures.

Skipped where transformers is not installed; ``test_huggingface_import`` holds golden vectors made with it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from infer import Engine
from laneformer import LaneformerForCausalLM
from laneformer.importing import import_checkpoint
from tests.importing.dense_models import dense_config, dense_tensors
from tests.importing.gguf_files import write_gguf

transformers = pytest.importorskip("transformers", reason="needs transformers, which no extra installs")

SHAPE: dict[str, Any] = {
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "intermediate_size": 96,
    "vocab_size": 128,
    "max_position_embeddings": 128,
    "initializer_range": 0.2,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 1000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
CORNERS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama, tied": ("Llama", {"tie_word_embeddings": True}),
    "llama, one key head per query head": ("Llama", {"num_key_value_heads": 6}),
    "llama, stretched": ("Llama", {"rope_parameters": LLAMA3}),
    "llama, head_dim": ("Llama", {"head_dim": 14}),
    "qwen3": ("Qwen3", {"head_dim": 8}),
    "qwen3, wide heads, tied": ("Qwen3", {"head_dim": 20, "tie_word_embeddings": True}),
    "qwen3, stretched": ("Qwen3", {"head_dim": 12, "rope_parameters": LLAMA3}),
}
TOLERANCE = 1e-4  # logits up to about 10 in float32: hundreds of roundings of 2**-24


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("corner", CORNERS)
@torch.no_grad()
def test_logits_are_those_of_transformers(tmp_path: Path, corner: str, dtype: torch.dtype) -> None:
    family, changes = CORNERS[corner]
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**(SHAPE | changes))
    theirs = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    for name, parameter in theirs.named_parameters():
        if "norm" in name:
            parameter.add_(torch.randn_like(parameter), alpha=0.2)
    theirs.to(dtype).save_pretrained(tmp_path / "in", max_shard_size="100KB")
    # Not .float(): its table of frequencies was rounded along with the weights.
    theirs = type(theirs).from_pretrained(tmp_path / "in", dtype=torch.float32).eval()
    ids = torch.randint(config.vocab_size, (1, 90))
    expected = theirs(ids).logits[0].numpy()
    for lanes in (1, 3):
        import_checkpoint(tmp_path / "in", tmp_path / f"{lanes}", lanes=lanes)
        stored = LaneformerForCausalLM.from_pretrained(tmp_path / f"{lanes}")
        assert next(stored.parameters()).dtype is dtype
        ours = LaneformerForCausalLM.from_pretrained(tmp_path / f"{lanes}", dtype=torch.float32)
        assert np.abs(ours(ids)[0].numpy() - expected).max() < TOLERANCE
        engine = Engine(tmp_path / f"{lanes}", backend="numpy")
        assert np.abs(engine.logits(ids[0].tolist()) - expected).max() < TOLERANCE


# Heads of 128: transformers takes that size for Qwen3, whatever the file says.
@pytest.mark.parametrize("changes", [{}, {"qk_norm": True, "head_dim": 128}], ids=["llama", "qwen3"])
@torch.no_grad()
def test_gguf_rows_are_in_the_order_that_transformers_expects(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    pytest.importorskip("accelerate", reason="needs accelerate, with which transformers reads GGUF files")
    config = dense_config(**changes)
    write_gguf(tmp_path / "model.gguf", config, dense_tensors(config))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file="model.gguf", dtype=torch.float32
    )
    ids = torch.randint(config.vocab_size, (1, 40), generator=torch.Generator().manual_seed(0))
    expected = theirs.eval()(ids).logits[0].numpy()
    import_checkpoint(tmp_path / "model.gguf", tmp_path / "out", lanes=2)
    found = Engine(tmp_path / "out", backend="numpy").logits(ids[0].tolist())
    assert np.abs(found - expected).max() < TOLERANCE
