"""Reading config.json in the dialects that public checkpoints use.

The older code says ``use_comm`` and ``sliding_window_n_layers`` (with ``unclamped_layers`` as
exceptions); the released code says ``use_attention_comm``, ``use_mlp_comm`` and ``swa_layers``.  The
keys decide, not ``model_type``, since files exist that mix them; where both are given they must agree.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from laneformer.config import MAX_LAYERS, RopeScaling, require_int
from laneformer.errors import ConfigError

MODEL_TYPES = ("laneformer", "laneformer_tp")
REQUIRED = (
    "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size",
    "max_position_embeddings",
)  # fmt: skip
PLAIN = (
    *REQUIRED, "num_lanes", "broadcast_delay", "use_early_comm", "lm_head_type", "pre_norm_lane_agg",
    "replicated_rmsn_scale", "tie_word_embeddings", "head_dim", "qk_norm", "rope_theta", "norm_eps",
    "sliding_window", "bos_token_id", "pad_token_id",
)  # fmt: skip
OPTIONAL_NULL = ("head_dim", "sliding_window", "bos_token_id", "pad_token_id")

# Bookkeeping of other software: changes no output of the model.
WITHOUT_EFFECT = frozenset({
    "_name_or_path", "architectures", "attn_implementation", "_attn_implementation", "auto_map", "depth_init",
    "initializer_range", "model_type", "multiple_of", "pretraining_tp", "transformers_version", "use_cache",
    "use_flex_attn",
})  # fmt: skip
# Would change the arithmetic, but these values mean what Laneformer does anyway.
NEUTRAL_VALUES: dict[str, tuple[Any, ...]] = {
    "attention_bias": (False, None),
    "attention_dropout": (0, None),
    "attn_mask_type": ("causal", None),
    "hidden_act": ("silu", "swish"),
    "mlp_bias": (False, None),
    "partial_rotary_factor": (1, None),
    "rope_interleaved": (True, None),
}


def normalize(values: Mapping[str, Any]) -> dict[str, Any]:
    """Turn the keys of a config.json into keyword arguments of ``LaneformerConfig``.

    Raises :class:`ConfigError` for a missing key, an unknown key that could change the arithmetic, or
    two dialects that contradict each other.
    """
    left = {name: value for name, value in values.items() if name not in WITHOUT_EFFECT}
    if values.get("model_type", "laneformer") not in MODEL_TYPES:
        raise ConfigError(f"model_type {values['model_type']!r} is not one of {', '.join(MODEL_TYPES)}")
    missing = [name for name in REQUIRED if values.get(name) is None]
    if missing:
        raise ConfigError(f"required key missing: {', '.join(missing)}")
    require_int("num_hidden_layers", values["num_hidden_layers"], maximum=MAX_LAYERS)  # lists are made of it
    result = {name: left.pop(name) for name in PLAIN if name in left}
    result = {name: value for name, value in result.items() if value is not None or name in OPTIONAL_NULL}
    key_value_heads = left.pop("num_key_value_heads", None)
    result["num_key_value_heads"] = (
        result["num_attention_heads"] if key_value_heads is None else key_value_heads
    )
    if "eos_token_id" in left:
        eos = left.pop("eos_token_id")
        result["eos_token_id"] = tuple(eos) if isinstance(eos, list) else eos
    result |= _dtype(left)
    result |= _communication(left)
    result |= _sliding_layers(left, result)
    result |= _rope(left, result.get("rope_theta"))
    _check_nothing_left(left)
    return result


def _take_agreeing(left: dict[str, Any], names: tuple[str, ...]) -> Any:
    """Pop synonymous keys; None where none is given, an error where two differ."""
    found = {name: left.pop(name) for name in names if left.get(name) is not None}
    for name in names:
        left.pop(name, None)
    if len(set(map(repr, found.values()))) > 1:
        raise ConfigError("keys disagree: " + ", ".join(f"{name}={value!r}" for name, value in found.items()))
    return next(iter(found.values()), None)


def _dtype(left: dict[str, Any]) -> dict[str, Any]:
    dtype = _take_agreeing(left, ("torch_dtype", "dtype"))
    return {} if dtype is None else {"dtype": str(dtype).removeprefix("torch.")}


def _communication(left: dict[str, Any]) -> dict[str, Any]:
    both = left.pop("use_comm", None)
    result = {}
    for name in ("use_attention_comm", "use_mlp_comm"):
        value = left.pop(name, None)
        if value is not None and both is not None and value != both:
            raise ConfigError(f"keys disagree: use_comm={both!r}, {name}={value!r}")
        if value is not None or both is not None:
            result[name] = both if value is None else value
    return result


def _sliding_layers(left: dict[str, Any], result: dict[str, Any]) -> dict[str, Any]:
    total = result["num_hidden_layers"]
    listed = _layer_indices(left, "swa_layers")
    count = left.pop("sliding_window_n_layers", None)
    full = _layer_indices(left, "unclamped_layers") or set()
    if count is None:
        return {"sliding_layers": tuple(sorted((listed or set()) - full))}
    if isinstance(count, bool) or not isinstance(count, int):
        raise ConfigError(f"sliding_window_n_layers must be a whole number, found {count!r}")
    if abs(count) > total:
        raise ConfigError(f"sliding_window_n_layers ({count}) exceeds num_hidden_layers ({total})")
    counted = range(count) if count >= 0 else range(total + count, total)
    layers = tuple(layer for layer in counted if layer not in full)
    if listed is not None and tuple(sorted(listed)) != layers:
        raise ConfigError(f"keys disagree: swa_layers={sorted(listed)}, sliding_window_n_layers={count!r}")
    return {"sliding_layers": layers}


def _layer_indices(left: dict[str, Any], name: str) -> set[int] | None:
    """Pop a list of layer indices; None where it is not given."""
    listed = left.pop(name, None)
    if listed is None:
        return None
    if not isinstance(listed, list | tuple) or any(
        isinstance(layer, bool) or not isinstance(layer, int) for layer in listed
    ):
        raise ConfigError(f"{name} must be a list of layer indices, found {listed!r}")
    return set(listed)


def _rope(left: dict[str, Any], outer_theta: Any) -> dict[str, Any]:
    """``rope_scaling``, or the newer ``rope_parameters`` that also carries ``rope_theta``.

    ``outer_theta`` is the ``rope_theta`` beside them, which must be the same where both are given.
    """
    scaling = _take_agreeing(left, ("rope_scaling", "rope_parameters"))
    if scaling is None:
        return {}
    if not isinstance(scaling, Mapping):
        raise ConfigError(f"rope_scaling must be an object or null, found {scaling!r}")
    scaling = dict(scaling)
    result: dict[str, Any] = {}
    theta = scaling.pop("rope_theta", None)
    if theta is not None:
        if outer_theta is not None and outer_theta != theta:
            raise ConfigError(
                f"keys disagree: rope_theta={outer_theta!r}, rope_parameters.rope_theta={theta!r}"
            )
        result["rope_theta"] = theta
    kind = _take_agreeing(scaling, ("rope_type", "type"))
    if kind == "default" or (kind is None and not scaling):
        if scaling:
            raise ConfigError(f"rope_scaling of type 'default' takes no {', '.join(scaling)}")
        return result
    if kind not in (None, "llama3"):
        raise ConfigError(f"rope_scaling of type {kind!r} is not supported; known: 'default', 'llama3'")
    try:
        result["rope_scaling"] = RopeScaling(**scaling)
    except TypeError as error:
        raise ConfigError(f"rope_scaling: {str(error).split('__init__() ')[-1]}") from None
    return result


def _check_nothing_left(left: dict[str, Any]) -> None:
    for name, accepted in NEUTRAL_VALUES.items():
        if name in left and left.pop(name) not in accepted:
            raise ConfigError(f"{name}: only {accepted[0]!r} is supported")
    if left:
        raise ConfigError(
            f"unknown key {', '.join(sorted(left))}: it could change the arithmetic, so it is not ignored"
        )
