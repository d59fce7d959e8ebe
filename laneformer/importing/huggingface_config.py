"""The config.json of a Hugging Face model, as a Laneformer configuration of one lane.

Only what computes the same as Laneformer's own arithmetic is accepted.  A key that is not known, and so
could change the arithmetic, is an error, as in our own files.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from laneformer.config import LaneformerConfig
from laneformer.errors import ConfigError
from laneformer.json_input import read_json

ARCHITECTURES = ("LlamaForCausalLM", "Qwen3ForCausalLM")
QWEN3 = "Qwen3ForCausalLM"

# Settings of generation, training and bookkeeping that old and new versions of the library wrote.
WITHOUT_EFFECT = frozenset({
    "_attn_implementation_autoset", "_commit_hash", "_from_model_config", "_name_or_path", "_unsloth_version",
    "add_cross_attention", "architectures", "auto_map", "bad_words_ids", "begin_suppress_tokens",
    "chunk_size_feed_forward", "cross_attention_hidden_size", "decoder_start_token_id", "diversity_penalty",
    "do_sample", "early_stopping", "encoder_no_repeat_ngram_size", "exponential_decay_length_penalty",
    "finetuning_task", "forced_bos_token_id", "forced_eos_token_id", "id2label", "initializer_range",
    "is_decoder", "is_encoder_decoder", "is_llama_config", "label2id", "length_penalty", "max_length",
    "min_length", "model_type", "no_repeat_ngram_size", "num_beam_groups", "num_beams",
    "num_return_sequences", "output_attentions", "output_hidden_states", "output_scores", "prefix",
    "pretraining_tp", "problem_type", "remove_invalid_values", "repetition_penalty", "return_dict",
    "return_dict_in_generate", "sep_token_id", "suppress_tokens", "task_specific_params", "temperature",
    "tf_legacy_loss", "tie_encoder_decoder", "tokenizer_class", "top_k", "top_p", "torchscript",
    "transformers.js_config", "transformers_version", "typical_p", "unsloth_fixed", "unsloth_version",
    "use_bfloat16", "use_cache",
})  # fmt: skip


def read_config(folder: Path) -> tuple[LaneformerConfig, str]:
    """Configuration of one lane, and the architecture's name.

    End-of-text ids are those of generation_config.json where it gives any, since they end an answer.
    Raises :class:`ConfigError` for what is not supported, by name.
    """
    path = folder / "config.json"
    values = read_json(path, ConfigError)
    generation = folder / "generation_config.json"
    eos = read_json(generation, ConfigError).get("eos_token_id") if generation.exists() else None
    try:
        architecture = _architecture(values)
        config = LaneformerConfig.from_dict(_translated(values, architecture, eos))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    return config, architecture


def _architecture(values: Mapping[str, Any]) -> str:
    named = values.get("architectures")
    if not isinstance(named, list) or len(named) != 1:
        raise ConfigError(f"architectures must name one class, found {named!r}")
    if named[0] not in ARCHITECTURES:
        raise ConfigError(f"architecture {named[0]} is not supported; known: {', '.join(ARCHITECTURES)}")
    return str(named[0])


def _translated(values: Mapping[str, Any], architecture: str, eos: Any) -> dict[str, Any]:
    """The same settings under Laneformer's names."""
    left = {name: value for name, value in values.items() if name not in WITHOUT_EFFECT}
    quantization = left.pop("quantization_config", None)
    if quantization is not None:
        method = quantization.get("quant_method") if isinstance(quantization, Mapping) else quantization
        raise ConfigError(f"weights quantized by {method!r} are not supported; import the original ones")
    if left.pop("rope_interleaved", None):
        raise ConfigError("rope_interleaved: only False is supported in a Hugging Face model")
    if left.pop("qk_norm", None):
        raise ConfigError(f"qk_norm: not a key of {architecture}")
    _refuse_sliding(left)
    left["norm_eps"] = left.pop("rms_norm_eps", 1e-6)
    left["tie_word_embeddings"] = left.get("tie_word_embeddings") or False
    left["qk_norm"] = architecture == QWEN3
    if eos is not None:
        left["eos_token_id"] = eos
    _simplify_rope(left)
    if architecture == QWEN3:
        # The library's own defaults (128, 32 heads) are not what a reader of the file would take.
        missing = [name for name in ("head_dim", "num_key_value_heads") if left.get(name) is None]
        if missing:
            raise ConfigError(f"required key missing: {', '.join(missing)}")
    return left


def _refuse_sliding(left: dict[str, Any]) -> None:
    """Take out the keys of sliding attention, all of which must say that nothing slides."""
    switch = left.pop("use_sliding_window", None)
    window = left.pop("sliding_window", None)
    left.pop("max_window_layers", None)
    kinds = left.pop("layer_types", None) or []
    if not isinstance(kinds, list):
        raise ConfigError(f"layer_types must be a list of names, found {kinds!r}")
    sliding = {str(kind) for kind in kinds if kind != "full_attention"}
    if sliding:
        raise ConfigError(f"layer_types: only 'full_attention' is supported, found {', '.join(sliding)}")
    if switch or (window is not None and switch is None):
        raise ConfigError(f"sliding_window ({window}): sliding attention is not supported")


def _simplify_rope(left: dict[str, Any]) -> None:
    """Drop, where it says that whole heads turn, a key that the rotary settings of newer files may hold."""
    parameters = left.get("rope_parameters")
    if isinstance(parameters, Mapping) and "partial_rotary_factor" in parameters:
        kept = dict(parameters)
        left.setdefault("partial_rotary_factor", kept.pop("partial_rotary_factor"))
        left["rope_parameters"] = kept
