"""A GGUF file of architecture ``llama`` or ``qwen3``, as a source of an import.

The converter that writes GGUF files reorders rows of wq and wk to interleaved pairs for ``llama`` and
leaves them in halves for ``qwen3``; so does what runs them.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from laneformer.config import LaneformerConfig, RopeScaling
from laneformer.errors import CheckpointError, ConfigError, TokenizerError
from laneformer.importing.dense import check_dense_shape, dense_shapes, interleave_pairs, is_turned
from laneformer.importing.gguf_file import GgufFile
from laneformer.importing.gguf_rope import ROPE_FACTORS, scaling_of_factors
from laneformer.importing.gguf_tokenizer import read_tokenizer
from laneformer.parameters import EMBEDDING
from laneformer.tokenizer import SETTINGS_FILE, TOKENIZER_FILE, Tokenizer

ARCHITECTURES = ("llama", "qwen3")
LAYER_NAMES = {
    "attention_norm.weight": "attn_norm.weight",
    "attention.wq.weight": "attn_q.weight",
    "attention.wk.weight": "attn_k.weight",
    "attention.wv.weight": "attn_v.weight",
    "attention.q_norm.weight": "attn_q_norm.weight",
    "attention.k_norm.weight": "attn_k_norm.weight",
    "attention.wo.weight": "attn_output.weight",
    "ffn_norm.weight": "ffn_norm.weight",
    "feed_forward.w1.weight": "ffn_gate.weight",
    "feed_forward.w3.weight": "ffn_up.weight",
    "feed_forward.w2.weight": "ffn_down.weight",
}
OUTPUT = "output.weight"
OTHER_NAMES = {
    EMBEDDING: "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": OUTPUT,
}
# Metadata of the architecture that is read or checked here; anything else could change the arithmetic.
KNOWN_KEYS = frozenset({
    "attention.head_count", "attention.head_count_kv", "attention.key_length",
    "attention.layer_norm_rms_epsilon", "attention.value_length", "block_count", "context_length",
    "embedding_length", "expert_count", "expert_used_count", "feed_forward_length", "rope.dimension_count",
    "rope.freq_base", "rope.scaling.original_context_length", "rope.scaling.type", "tensor_data_layout",
    "vocab_size",
})  # fmt: skip


class GgufSource:
    """See :class:`laneformer.importing.dense.DenseSource`.

    Raises :class:`CheckpointError`, :class:`ConfigError` or :class:`TokenizerError` for a file that is
    damaged or not supported, before any weight is read.
    """

    def __init__(self, path: Path) -> None:
        self._file = GgufFile(path)
        self.path = path
        self.architecture = self._file.text("general.architecture")
        if self.architecture not in ARCHITECTURES:
            raise ConfigError(
                f"{path}: architecture {self.architecture} is not supported; "
                f"known: {', '.join(ARCHITECTURES)}"
            )
        self.kind = f"GGUF {self.architecture}"
        tokenizer = read_tokenizer(self._file)
        try:
            self.config = self._read_config(tokenizer)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from None
        self._names = {name: their_name(name) for name in dense_shapes(self.config)}
        self._check_tensors()
        self.tokenizer_files = {} if tokenizer is None else _files_of(tokenizer)

    def dtype(self, name: str) -> str:
        """Stored type of one tensor; float32 for quantized blocks."""
        return self._file.dtype(self._names[name])

    def raw(self, name: str) -> np.ndarray:
        """Values, rotary pairs interleaved."""
        values = self._file.raw(self._names[name])
        if self.architecture == "qwen3" and is_turned(name):
            return interleave_pairs(values, self.config.head_size)
        return values

    def _read_config(self, tokenizer: Tokenizer | None) -> LaneformerConfig:
        file, prefix = self._file, self.architecture
        self._refuse_unknown()
        hidden, heads = (
            file.integer(f"{prefix}.embedding_length"),
            file.integer(f"{prefix}.attention.head_count"),
        )
        head_size = file.integer(f"{prefix}.attention.key_length", hidden // max(heads, 1))
        for key in ("attention.value_length", "rope.dimension_count"):
            found = file.integer(f"{prefix}.{key}", head_size)
            if found != head_size:
                raise ConfigError(f"{key} ({found}) other than the head size ({head_size}) is not supported")
        theta = file.number(f"{prefix}.rope.freq_base", 10000.0)
        return LaneformerConfig(
            hidden_size=hidden,
            num_hidden_layers=file.integer(f"{prefix}.block_count"),
            num_attention_heads=heads,
            num_key_value_heads=file.integer(f"{prefix}.attention.head_count_kv", heads),
            intermediate_size=file.integer(f"{prefix}.feed_forward_length"),
            vocab_size=self._vocab_size(tokenizer),
            max_position_embeddings=file.integer(f"{prefix}.context_length"),
            head_dim=None if head_size * heads == hidden else head_size,
            qk_norm=prefix == "qwen3",
            tie_word_embeddings=OUTPUT not in file.tensor_names,
            rope_theta=theta,
            rope_scaling=self._rope_scaling(theta, head_size),
            norm_eps=file.number(f"{prefix}.attention.layer_norm_rms_epsilon"),
            bos_token_id=self._token_id("bos"),
            eos_token_id=self._end_ids(),
            pad_token_id=self._token_id("padding"),
        )

    def _refuse_unknown(self) -> None:
        """:class:`ConfigError` for metadata of the architecture that would change the arithmetic."""
        file, prefix = self._file, f"{self.architecture}."
        experts = file.integer(f"{prefix}expert_count", 0)
        if experts:
            raise ConfigError(f"a mixture of {experts} experts is not supported")
        rope_type = file.text(f"{prefix}rope.scaling.type", "none")
        if rope_type != "none":
            raise ConfigError(f"rope scaling of type {rope_type!r} is not supported")
        unknown = [
            key for key in file.keys if key.startswith(prefix) and key[len(prefix) :] not in KNOWN_KEYS
        ]
        if unknown:
            raise ConfigError(
                f"unknown metadata {', '.join(unknown)}: it could change the arithmetic, so it is not ignored"
            )

    def _vocab_size(self, tokenizer: Tokenizer | None) -> int:
        embedding = OTHER_NAMES[EMBEDDING]
        if embedding not in self._file.tensor_names:
            raise CheckpointError(f"{self.path}: tensor {embedding} is missing")
        rows = self._file.shape(embedding)[0]
        stated = self._file.integer(f"{self.architecture}.vocab_size", rows)
        ids = rows if tokenizer is None else tokenizer.vocab_size
        if not rows == stated == ids:
            raise TokenizerError(
                f"{self.path}: the embedding has {rows} rows, vocab_size is {stated}, "
                f"the tokenizer has {ids} ids: they do not belong together"
            )
        return rows

    def _rope_scaling(self, theta: float, head_size: int) -> RopeScaling | None:
        if ROPE_FACTORS not in self._file.tensor_names:
            return None
        key = f"{self.architecture}.rope.scaling.original_context_length"
        return scaling_of_factors(
            self._file.raw(ROPE_FACTORS), theta, head_size, self._file.integer(key, 0) or None
        )

    def _token_id(self, role: str) -> int | None:
        key = f"tokenizer.ggml.{role}_token_id"
        return self._file.integer(key) if key in self._file.keys else None

    def _end_ids(self) -> int | tuple[int, ...] | None:
        """End of text, and end of turn where it is another token."""
        found = [token for token in (self._token_id("eos"), self._token_id("eot")) if token is not None]
        ids = tuple(dict.fromkeys(found))
        return (ids[0] if ids else None) if len(ids) < 2 else ids

    def _check_tensors(self) -> None:
        for name, their in self._names.items():
            if their not in self._file.tensor_names:
                raise CheckpointError(f"{self.path}: tensor {their} is missing")
            try:
                check_dense_shape(self.config, name, self._file.shape(their), their)
            except CheckpointError as error:
                raise CheckpointError(f"{self.path}: {error}") from None
        for their in self._file.tensor_names:
            if their != ROPE_FACTORS and their not in self._names.values():
                raise CheckpointError(f"{self.path}: unexpected tensor {their}")


def their_name(name: str) -> str:
    """GGUF's name of one of our tensors."""
    if name in OTHER_NAMES:
        return OTHER_NAMES[name]
    _, _, layer, rest = name.split(".", 3)
    return f"blk.{layer}.{LAYER_NAMES[rest]}"


def _files_of(tokenizer: Tokenizer) -> dict[str, bytes]:
    """The tokenizer as it is saved in a folder."""
    return {TOKENIZER_FILE: tokenizer.to_text().encode(), SETTINGS_FILE: tokenizer.settings_text().encode()}
