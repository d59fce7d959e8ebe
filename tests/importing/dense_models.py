"""Tiny dense models to import, written as Hugging Face folders and GGUF files without transformers.

They start from random Laneformer tensors of one lane, whose rows are put into the other order by plain
loops: an import must give the tensors back to the bit, and their logits come from ``tests.plain_reference``.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from laneformer.config import LaneformerConfig
from laneformer.tensors import float32_to_bfloat16
from laneformer.tokenizer import Tokenizer
from tests.tiny_models import RandomWeights

THEIR_NAMES = {
    "model.tok_embeddings": ("model.embed_tokens", "token_embd"),
    "model.norm": ("model.norm", "output_norm"),
    "lm_head": ("lm_head", "output"),
    "attention_norm": ("input_layernorm", "attn_norm"),
    "attention.wq": ("self_attn.q_proj", "attn_q"),
    "attention.wk": ("self_attn.k_proj", "attn_k"),
    "attention.wv": ("self_attn.v_proj", "attn_v"),
    "attention.q_norm": ("self_attn.q_norm", "attn_q_norm"),
    "attention.k_norm": ("self_attn.k_norm", "attn_k_norm"),
    "attention.wo": ("self_attn.o_proj", "attn_output"),
    "ffn_norm": ("post_attention_layernorm", "ffn_norm"),
    "feed_forward.w1": ("mlp.gate_proj", "ffn_gate"),
    "feed_forward.w3": ("mlp.up_proj", "ffn_up"),
    "feed_forward.w2": ("mlp.down_proj", "ffn_down"),
}
TURNED = ("wq.weight", "wk.weight", "q_norm.weight", "k_norm.weight")
STORED = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}


def dense_config(**changes: Any) -> LaneformerConfig:
    """One lane, two layers, 8 query heads on 4 key heads."""
    values: dict[str, Any] = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "intermediate_size": 64,
        "vocab_size": 260,
        "max_position_embeddings": 64,
        "norm_eps": 1e-6,
    }
    return LaneformerConfig(**(values | changes))


def dense_tensors(config: LaneformerConfig, seed: int = 0) -> dict[str, np.ndarray]:
    """Random tensors under our names, matrices ``[out, in]``."""
    tensors = RandomWeights(config, seed).tensors
    return {name: values[0] if values.ndim == 3 else values for name, values in tensors.items()}


def in_halves(config: LaneformerConfig, tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same model with every head's even rows first, then its odd rows, as rotate-half wants them."""
    result = dict(tensors)
    for name, values in tensors.items():
        if name.endswith(TURNED):
            size = config.head_size
            rows: list[np.ndarray] = []
            for head in range(len(values) // size):
                rows += [values[head * size + 2 * pair] for pair in range(size // 2)]
                rows += [values[head * size + 2 * pair + 1] for pair in range(size // 2)]
            result[name] = np.array(rows)
    return result


def huggingface_values(config: LaneformerConfig, **changes: Any) -> dict[str, Any]:
    """What config.json of such a model says, in the manner of transformers 4."""
    scaling = None
    if config.rope_scaling is not None:
        scaling = {"rope_type": "llama3", **asdict(config.rope_scaling)}
    values: dict[str, Any] = {
        "architectures": ["Qwen3ForCausalLM" if config.qk_norm else "LlamaForCausalLM"],
        "model_type": "qwen3" if config.qk_norm else "llama",
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_hidden_layers,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "intermediate_size": config.intermediate_size,
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.max_position_embeddings,
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope_theta,
        "rope_scaling": scaling,
        "tie_word_embeddings": config.tie_word_embeddings,
        "hidden_act": "silu",
        "attention_bias": False,
        "torch_dtype": "float32",
        "transformers_version": "4.57.0",
    }
    if config.head_dim is not None or config.qk_norm:
        values["head_dim"] = config.head_size
    return values | changes


def write_huggingface(
    folder: Path,
    config: LaneformerConfig,
    tensors: dict[str, np.ndarray],
    *,
    dtype: str = "float32",
    tokenizer: Tokenizer | None = None,
    **changes: Any,
) -> Path:
    """Write a folder from tensors under our names; ``changes`` go into config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(huggingface_values(config, **changes)))
    theirs = {their_name(name, 0): values for name, values in in_halves(config, tensors).items()}
    write_tensors(folder / "model.safetensors", theirs, dtype)
    if tokenizer is not None:
        tokenizer.save(folder)
    return folder


def write_tensors(path: Path, tensors: dict[str, np.ndarray], dtype: str = "float32") -> None:
    """A safetensors file, written by hand since safetensors' numpy functions know no bfloat16."""
    header: dict[str, Any] = {}
    data = bytearray()
    for name, values in tensors.items():
        start = len(data)
        data += as_type(values, dtype).tobytes()
        header[name] = {"dtype": STORED[dtype], "shape": values.shape, "data_offsets": [start, len(data)]}
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def as_type(values: np.ndarray, dtype: str) -> np.ndarray:
    """Float32 rounded to ``dtype``; bfloat16 as uint16."""
    if dtype == "bfloat16":
        return float32_to_bfloat16(values)
    return values.astype(np.float16 if dtype == "float16" else np.float32)


def their_name(name: str, column: int) -> str:
    """Name of one of our tensors in a Hugging Face folder (column 0) or a GGUF file (1)."""
    stem = name.removesuffix(".weight")
    if ".layers." not in name:
        return THEIR_NAMES[stem][column] + ".weight"
    _, _, layer, rest = stem.split(".", 3)
    return f"{('model.layers', 'blk')[column]}.{layer}.{THEIR_NAMES[rest][column]}.weight"
