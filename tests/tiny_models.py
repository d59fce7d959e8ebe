"""Tiny models for tests: configurations, random checkpoints and two kinds of tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from laneformer.config import LaneformerConfig
from laneformer.parameters import parameter_shapes
from laneformer.tensors import float32_to_bfloat16
from laneformer.tokenizer import Tokenizer


def tiny_config(**changes: Any) -> LaneformerConfig:
    """Four lanes, five layers, two of them sliding over 6 positions, delay 2."""
    values: dict[str, Any] = {
        "hidden_size": 32,
        "num_hidden_layers": 5,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "intermediate_size": 48,
        "vocab_size": 320,
        "max_position_embeddings": 64,
        "num_lanes": 4,
        "broadcast_delay": 2,
        "sliding_window": 6,
        "sliding_layers": (1, 3),
    }
    return LaneformerConfig(**(values | changes))


class RandomWeights:
    """Weights made up in memory, with the interface that back ends read."""

    def __init__(self, config: LaneformerConfig, seed: int = 0, scale: float = 0.2) -> None:
        self.config = config
        random = np.random.default_rng(seed)
        # Norm scales near 1, matrices large enough that every term shows in the logits: ``scale`` suits 32
        # columns.
        self.tensors = {
            name: (
                random.standard_normal(shape) * 0.2 + 1.0
                if "norm" in name
                else random.standard_normal(shape) * scale
            ).astype(np.float32)
            for name, shape in parameter_shapes(config).items()
        }

    @property
    def names(self) -> list[str]:
        return list(self.tensors)

    def dtype(self, name: str) -> str:
        return "float32"

    def raw(self, name: str) -> np.ndarray:
        return self.tensors[name]

    def float32(self, name: str) -> np.ndarray:
        return self.tensors[name].copy()


def write_checkpoint(
    folder: Path,
    config: LaneformerConfig,
    tokenizer: Tokenizer | None = None,
    dtypes: dict[str, str] | None = None,
    tensors: dict[str, np.ndarray] | None = None,
) -> Path:
    """Write a checkpoint folder; ``dtypes`` says which tensors are not float32."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config.to_dict()))
    # Written by hand: safetensors' numpy functions know no bfloat16.
    header, data = {}, bytearray()
    for name, values in (tensors or RandomWeights(config).tensors).items():
        dtype = (dtypes or {}).get(name, "float32")
        bits = {
            "float32": lambda v: v,
            "float16": lambda v: v.astype(np.float16),
            "bfloat16": float32_to_bfloat16,
        }[dtype](values)
        start = len(data)
        data += bits.tobytes()
        kind = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}[dtype]
        header[name] = {"dtype": kind, "shape": values.shape, "data_offsets": [start, len(data)]}
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
    if tokenizer is not None:
        tokenizer.save(folder)
    return folder


def byte_level_tokenizer(chat_template: str | None = None) -> Tokenizer:
    """GPT-2 style: one token per byte, two merges, ``<s>`` and ``</s>``; 260 ids."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {symbol: index for index, symbol in enumerate([*alphabet, "he", "hel"])}
    library = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[("h", "e"), ("he", "l")]))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    library.add_special_tokens(["<s>", "</s>"])
    return Tokenizer(library, chat_template=chat_template)


def byte_fallback_tokenizer() -> Tokenizer:
    """Llama-2 style: spaces as ``▁``, unknown characters as byte tokens; 268 ids."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["▁", "a", "b", "▁a", "▁b", "ab", "▁ab", "你", "\ufffd"]
    merges = [("▁", "a"), ("▁", "b"), ("a", "b"), ("▁", "ab")]
    library = tokenizers.Tokenizer(
        models.BPE(
            vocab={piece: index for index, piece in enumerate(pieces)},
            merges=merges,
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    library.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    library.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    library.add_special_tokens(["<unk>", "<s>", "</s>"])
    return Tokenizer(library)


class ScriptedBackend:
    """A back end that says what it is told to, for tests of what the engine does with tokens."""

    name = "scripted"
    weight_bytes_per_token = None

    def __init__(self, config: LaneformerConfig, script: list[int]) -> None:
        self.config = config
        self.script = script
        self.closed = False

    def logits(self, token_ids: Any) -> np.ndarray:
        return np.zeros((len(token_ids), self.config.vocab_size), dtype=np.float32)

    def decode(self, request: Any) -> Any:
        self.request = request
        try:
            for token_id in self.script[: request.new_token_limit(self.config)]:
                yield token_id, -1.0
                if token_id in request.stop_token_ids:
                    return
        finally:
            self.closed = True
