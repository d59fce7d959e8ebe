"""A Hugging Face folder of a Llama or Qwen3 model, as a source of an import.

folder/
  config.json, generation_config.json (optional)
  model.safetensors                    or   model.safetensors.index.json + shards
  tokenizer.json, tokenizer_config.json, chat_template.jinja (optional)
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from laneformer.checkpoint import open_tensor_files
from laneformer.errors import CheckpointError, TokenizerError
from laneformer.importing.dense import check_dense_shape, dense_shapes, interleave_pairs, is_turned
from laneformer.importing.huggingface_config import read_config
from laneformer.json_input import read_json
from laneformer.parameters import EMBEDDING
from laneformer.tokenizer import SETTINGS_FILE, TEMPLATE_FILE, TOKENIZER_FILE, Tokenizer

# Our name -> theirs, for tensors of a layer and for the others.
LAYER_NAMES = {
    "attention_norm.weight": "input_layernorm.weight",
    "attention.wq.weight": "self_attn.q_proj.weight",
    "attention.wk.weight": "self_attn.k_proj.weight",
    "attention.wv.weight": "self_attn.v_proj.weight",
    "attention.q_norm.weight": "self_attn.q_norm.weight",
    "attention.k_norm.weight": "self_attn.k_norm.weight",
    "attention.wo.weight": "self_attn.o_proj.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "feed_forward.w1.weight": "mlp.gate_proj.weight",
    "feed_forward.w3.weight": "mlp.up_proj.weight",
    "feed_forward.w2.weight": "mlp.down_proj.weight",
}
HEAD = "lm_head.weight"
OTHER_NAMES = {
    EMBEDDING: "model.embed_tokens.weight",
    "model.norm.weight": "model.norm.weight",
    HEAD: HEAD,
}
LEFTOVER = ".rotary_emb.inv_freq"  # a table that old versions stored; it follows from rope_theta


class HuggingFaceSource:
    """See :class:`laneformer.importing.dense.DenseSource`.

    Raises :class:`CheckpointError`, :class:`ConfigError` or :class:`TokenizerError` for a folder that is
    damaged or not supported, before any weight is read.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        if not (folder / "config.json").exists():
            raise CheckpointError(f"{folder}: no config.json; expected a Hugging Face folder or a GGUF file")
        self.config, self.kind = read_config(folder)
        self._files = open_tensor_files(folder)
        self._names = {name: their_name(name) for name in dense_shapes(self.config)}
        self._check_tensors()
        self.tokenizer_files = read_tokenizer_files(folder)

    def dtype(self, name: str) -> str:
        """Stored type of one tensor."""
        their = self._names[name]
        return self._files[their].dtype(their)

    def raw(self, name: str) -> np.ndarray:
        """Stored values, rotary pairs interleaved."""
        their = self._names[name]
        values = self._files[their].raw(their)
        return interleave_pairs(values, self.config.head_size) if is_turned(name) else values

    def _check_tensors(self) -> None:
        for name, their in self._names.items():
            if their not in self._files:
                raise CheckpointError(f"{self.folder}: tensor {their} is missing")
            try:
                check_dense_shape(self.config, name, self._files[their].shape(their), their)
            except CheckpointError as error:
                raise CheckpointError(f"{self.folder}: {error}") from None
            self.dtype(name)  # an unknown type is an error now, not when it is read
        known = set(self._names.values())
        for their in self._files:
            if their == HEAD and self.config.tie_word_embeddings:
                self._check_tied_copy()
            elif their not in known and not their.endswith(LEFTOVER):
                raise CheckpointError(f"{self.folder}: unexpected tensor {their}")

    def _check_tied_copy(self) -> None:
        """A tied head may be stored a second time, if it is the same to the bit."""
        embedding = OTHER_NAMES[EMBEDDING]
        if not np.array_equal(self._files[HEAD].raw(HEAD), self._files[embedding].raw(embedding)):
            raise CheckpointError(
                f"{self.folder}: tie_word_embeddings is set, but {HEAD} differs from {embedding}"
            )


def their_name(name: str) -> str:
    """Hugging Face's name of one of our tensors."""
    if name in OTHER_NAMES:
        return OTHER_NAMES[name]
    _, _, layer, rest = name.split(".", 3)
    return f"model.layers.{layer}.{LAYER_NAMES[rest]}"


def read_tokenizer_files(folder: Path) -> dict[str, bytes]:
    """The tokenizer's files as they are, but for ``add_bos_token``, which is written out where it is implied.

    Raises :class:`TokenizerError` for a tokenizer that cannot be read, or that exists only as a
    SentencePiece model.
    """
    path = folder / TOKENIZER_FILE
    if not path.exists():
        if (folder / "tokenizer.model").exists():
            raise TokenizerError(
                f"{folder}: tokenizer.model without {TOKENIZER_FILE} is not supported; load and save the "
                "tokenizer once with transformers, which writes it"
            )
        return {}
    names = [name for name in (TOKENIZER_FILE, TEMPLATE_FILE) if (folder / name).exists()]
    files = {name: _text_file(folder / name) for name in names}
    settings: dict[str, Any] = {}
    if (folder / SETTINGS_FILE).exists():
        settings = read_json(folder / SETTINGS_FILE, TokenizerError)
    if not isinstance(settings.get("add_bos_token"), bool):
        settings["add_bos_token"] = _adds_bos(Tokenizer.from_file(path))
    try:
        files[SETTINGS_FILE] = (json.dumps(settings, indent=1, ensure_ascii=False) + "\n").encode()
    except (RecursionError, UnicodeEncodeError) as error:
        raise TokenizerError(f"{folder / SETTINGS_FILE}: cannot be written again ({error})") from None
    return files


def _text_file(path: Path) -> bytes:
    """Contents of a file that must be UTF-8."""
    try:
        contents = path.read_bytes()
        contents.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TokenizerError(f"{path}: cannot be read ({error})") from None
    return contents


def _adds_bos(tokenizer: Tokenizer) -> bool:
    """Whether the post-processor of tokenizer.json puts BOS before a text."""
    ids = tokenizer.library_tokenizer.encode("", add_special_tokens=True).ids
    return tokenizer.bos_id is not None and ids[:1] == [tokenizer.bos_id]
