"""Tiny GGUF files, written with the ``gguf`` package as its converter lays them out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import pre_tokenizers

from laneformer.config import LaneformerConfig
from tests.importing.dense_models import in_halves, their_name

CONTROL, NORMAL = 3, 1
BYTE_LEVEL_TOKENS = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "he", "hel", "<s>", "</s>"]
# The tokenizer of ``tests.tiny_models.byte_level_tokenizer``.
BYTE_LEVEL: dict[str, Any] = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": BYTE_LEVEL_TOKENS,
    "tokenizer.ggml.token_type": [NORMAL] * 258 + [CONTROL] * 2,
    "tokenizer.ggml.merges": ["h e", "he l"],
    "tokenizer.ggml.bos_token_id": 258,
    "tokenizer.ggml.eos_token_id": 259,
    "tokenizer.ggml.add_bos_token": False,
    "tokenizer.chat_template": "{{ messages[0].content }}",
}


def write_gguf(
    path: Path,
    config: LaneformerConfig,
    tensors: dict[str, np.ndarray],
    *,
    kind: str = "F32",
    extra: dict[str, np.ndarray] | None = None,
    **changes: Any,
) -> Path:
    """Write tensors under our names; matrices in type ``kind``, norms in float32, as converters do.

    ``changes`` go into the metadata, with "__" for "." in their names; None takes a value out.
    """
    gguf = pytest.importorskip("gguf", reason="needs the gguf package")
    prefix = "qwen3" if config.qk_norm else "llama"
    values: dict[str, Any] = {
        f"{prefix}.context_length": config.max_position_embeddings,
        f"{prefix}.embedding_length": config.hidden_size,
        f"{prefix}.block_count": config.num_hidden_layers,
        f"{prefix}.feed_forward_length": config.intermediate_size,
        f"{prefix}.attention.head_count": config.num_attention_heads,
        f"{prefix}.attention.head_count_kv": config.num_key_value_heads,
        f"{prefix}.attention.key_length": config.head_size,
        f"{prefix}.attention.value_length": config.head_size,
        f"{prefix}.attention.layer_norm_rms_epsilon": config.norm_eps,
        f"{prefix}.rope.freq_base": config.rope_theta,
        f"{prefix}.vocab_size": config.vocab_size,
    }
    values |= {name.replace("__", "."): value for name, value in changes.items()}
    writer = gguf.GGUFWriter(path, values.pop("general.architecture", prefix))
    for name, value in values.items():
        if value is not None:
            _add(writer, name, value)
    # Halves for Qwen3, pairs for Llama.
    stored = in_halves(config, tensors) if config.qk_norm else tensors
    theirs = {their_name(name, 1): array for name, array in stored.items()} | (extra or {})
    for name, array in theirs.items():
        if array.ndim == 1 or kind == "F32":
            writer.add_tensor(name, array)
        elif kind == "F16":
            writer.add_tensor(name, array.astype(np.float16))
        else:
            quantized = getattr(gguf.GGMLQuantizationType, kind)
            writer.add_tensor(name, gguf.quantize(array, quantized), raw_dtype=quantized)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: Any, name: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(name, value)
    elif isinstance(value, int):
        writer.add_uint32(name, value)
    elif isinstance(value, float):
        writer.add_float32(name, value)
    elif isinstance(value, str):
        writer.add_string(name, value)
    else:
        writer.add_array(name, value)
