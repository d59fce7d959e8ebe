"""The configuration of a Laneformer: what config.json says, checked, in one dialect.

Two dialects of config.json exist in public checkpoints (see ``docs/architecture.md``); the keys that
are present decide which one is read, and :meth:`LaneformerConfig.to_dict` writes the newer.  A key
that is not known, and so could change the arithmetic, is an error.

Importable without torch.

    config = LaneformerConfig.from_file("checkpoint/config.json")
    config.residual_mode(layer=3, module="attention")
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from enum import Enum
from pathlib import Path
from typing import Any, Literal

from laneformer.errors import ConfigError
from laneformer.json_input import read_json

HEAD_TYPES = ("replicate", "lane", "vocab_parallel")
DTYPES = ("float32", "bfloat16", "float16")
Module = Literal["attention", "feed_forward"]

# Far beyond any model, and small enough that nothing made from them overflows or takes for ever.
MAX_LAYERS = 10_000
MAX_INT = 2**53  # what every JSON reader keeps exactly
SMALLEST, LARGEST = 1e-30, 1e30  # squares and reciprocals of a few factors are still float32 or float64


class ResidualMode(Enum):
    """What lane ``l`` adds to its residual stream, from raw module outputs ``o`` (see the specification)."""

    PRESENT = "present"  # sum over all lanes j of o_j: the exchange happens now
    PAST = "past"  # o_l + sum over j != l of p_j, p from the layer `broadcast_delay` before
    INDEPENDENT = "independent"  # sqrt(num_lanes) * o_l: no exchange


@dataclass(frozen=True)
class RopeScaling:
    """Llama-3 style stretching of the rotary wavelengths beyond the context trained first."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int

    def __post_init__(self) -> None:
        for name in ("factor", "low_freq_factor", "high_freq_factor"):
            _require_number(f"rope_scaling.{name}", getattr(self, name))
        require_int("rope_scaling.original_max_position_embeddings", self.original_max_position_embeddings)
        if self.high_freq_factor <= self.low_freq_factor:
            raise ConfigError(
                f"rope_scaling: high_freq_factor ({self.high_freq_factor}) must be above "
                f"low_freq_factor ({self.low_freq_factor})"
            )


@dataclass(frozen=True, kw_only=True)
class LaneformerConfig:
    """Shape and arithmetic of one model.  Raises :class:`ConfigError` where a value makes no sense.

    ``sliding_layers`` lists the layers (from 0) in which position i sees ``i - sliding_window < j <= i``.
    ``broadcast_delay`` counts layers; 0 means that nothing is late, which is tensor parallelism.
    ``qk_norm`` norms each head of queries and keys before they turn (RMSNorm over the head, as in Qwen3).
    ``dtype`` is the type in which weights are stored; it does not change the shape of anything.
    """

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    intermediate_size: int
    vocab_size: int
    max_position_embeddings: int
    num_lanes: int = 1
    broadcast_delay: int = 0
    use_attention_comm: bool = True
    use_mlp_comm: bool = True
    use_early_comm: bool = True
    lm_head_type: str = "replicate"
    pre_norm_lane_agg: bool = False
    replicated_rmsn_scale: bool = True
    tie_word_embeddings: bool = False
    head_dim: int | None = None
    qk_norm: bool = False
    rope_theta: float = 10000.0
    rope_scaling: RopeScaling | None = None
    norm_eps: float = 1e-5
    sliding_window: int | None = None
    sliding_layers: tuple[int, ...] = ()
    bos_token_id: int | None = None
    eos_token_id: int | tuple[int, ...] | None = None
    pad_token_id: int | None = None
    dtype: str = "float32"

    def __post_init__(self) -> None:
        _check_types(self)
        _check_lanes(self)
        _check_attention(self)
        _check_head(self)
        _check_token_ids(self)

    @property
    def head_size(self) -> int:
        """Width of one attention head."""
        return self.head_dim if self.head_dim is not None else self.hidden_size // self.num_attention_heads

    @property
    def queries_per_key(self) -> int:
        """Query heads that share one key/value head."""
        return self.num_attention_heads // self.num_key_value_heads

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """All ids that end a text, possibly none."""
        if self.eos_token_id is None:
            return ()
        return (self.eos_token_id,) if isinstance(self.eos_token_id, int) else self.eos_token_id

    def window(self, layer: int) -> int | None:
        """Positions that ``layer`` may look back over, itself included; None where it sees everything."""
        return self.sliding_window if layer in self.sliding_layers else None

    def residual_mode(self, layer: int, module: Module) -> ResidualMode:
        """How ``layer``'s module joins the residual streams."""
        if layer < self.broadcast_delay:
            return ResidualMode.PRESENT if self.use_early_comm else ResidualMode.INDEPENDENT
        if not (self.use_attention_comm if module == "attention" else self.use_mlp_comm):
            return ResidualMode.INDEPENDENT
        return ResidualMode.PAST if self.broadcast_delay > 0 else ResidualMode.PRESENT

    @classmethod
    def from_file(cls, path: str | Path) -> LaneformerConfig:
        """Read a config.json.  Raises :class:`ConfigError` naming the file."""
        values = read_json(path, ConfigError)
        try:
            return cls.from_dict(values)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from None

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> LaneformerConfig:
        """Build from the keys of a config.json, in either dialect or a mixture that agrees with itself."""
        from laneformer.config_dialects import normalize

        return cls(**normalize(values))

    def to_dict(self) -> dict[str, Any]:
        """Keys and values of a config.json in the released dialect; ``from_dict`` gives this config back."""
        values = asdict(self)
        values["swa_layers"] = list(values.pop("sliding_layers"))
        values["torch_dtype"] = values.pop("dtype")
        if values["head_dim"] is None:
            del values["head_dim"]
        if self.rope_scaling is not None:
            values["rope_scaling"]["rope_type"] = "llama3"
        if isinstance(self.eos_token_id, tuple):
            values["eos_token_id"] = list(self.eos_token_id)
        return {"model_type": "laneformer", "architectures": ["LaneformerForCausalLM"], **values}


def require_int(name: str, value: object, minimum: int = 1, maximum: int = MAX_INT) -> None:
    """:class:`ConfigError` for anything but a whole number within bounds."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{name} must be a whole number, found {value!r}")
    if value < minimum:
        raise ConfigError(f"{name} must be at least {minimum}, found {value}")
    if value > maximum:
        raise ConfigError(f"{name} must be at most {maximum}, found {value}")


def _require_number(name: str, value: object, minimum: float = SMALLEST) -> None:
    # Compared rather than converted: a whole number may be too large for a float.
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
        raise ConfigError(f"{name} must be a finite number, found {value!r}")
    if value <= 0:
        raise ConfigError(f"{name} must be above zero, found {value}")
    if not minimum <= value <= LARGEST:
        raise ConfigError(f"{name} must be from {minimum:g} to {LARGEST:g}, found {value}")


def _check_types(config: LaneformerConfig) -> None:
    for field in fields(config):
        value = getattr(config, field.name)
        if field.type == "int":
            require_int(
                field.name,
                value,
                minimum=0 if field.name == "broadcast_delay" else 1,
                maximum=MAX_LAYERS if field.name == "num_hidden_layers" else MAX_INT,
            )
        elif field.type == "float":
            # Below 1, rotary pairs would turn faster the slower they should be.
            _require_number(field.name, value, minimum=1.0 if field.name == "rope_theta" else SMALLEST)
        elif field.type == "bool" and not isinstance(value, bool):
            raise ConfigError(f"{field.name} must be true or false, found {value!r}")
    if config.dtype not in DTYPES:
        raise ConfigError(f"dtype must be one of {', '.join(DTYPES)}, found {config.dtype!r}")


def _check_lanes(config: LaneformerConfig) -> None:
    for name in ("num_attention_heads", "num_key_value_heads", "intermediate_size"):
        if getattr(config, name) % config.num_lanes:
            raise ConfigError(
                f"num_lanes ({config.num_lanes}) does not divide {name} ({getattr(config, name)})"
            )
    if config.num_attention_heads % config.num_key_value_heads:
        raise ConfigError(
            f"num_key_value_heads ({config.num_key_value_heads}) does not divide "
            f"num_attention_heads ({config.num_attention_heads})"
        )


def _check_attention(config: LaneformerConfig) -> None:
    if config.head_dim is None:
        if config.hidden_size % config.num_attention_heads:
            raise ConfigError(
                f"num_attention_heads ({config.num_attention_heads}) does not divide "
                f"hidden_size ({config.hidden_size}), and no head_dim is given"
            )
    else:
        require_int("head_dim", config.head_dim)
    if config.head_size % 2:
        raise ConfigError(f"rotary embedding needs an even head size, found {config.head_size}")
    if config.sliding_window is not None:
        require_int("sliding_window", config.sliding_window)
    for layer in config.sliding_layers:
        require_int("sliding layer index", layer, minimum=0)
        if layer >= config.num_hidden_layers:
            raise ConfigError(f"sliding layer {layer} is outside the {config.num_hidden_layers} layers")
    if list(config.sliding_layers) != sorted(set(config.sliding_layers)):
        raise ConfigError(f"sliding layers must be ascending and different, found {config.sliding_layers}")
    if config.sliding_layers and config.sliding_window is None:
        raise ConfigError(f"layers {list(config.sliding_layers)} slide, but sliding_window is not given")


def _check_head(config: LaneformerConfig) -> None:
    if config.lm_head_type not in HEAD_TYPES:
        raise ConfigError(
            f"lm_head_type must be one of {', '.join(HEAD_TYPES)}, found {config.lm_head_type!r}"
        )
    if config.lm_head_type == "vocab_parallel" and config.vocab_size % config.num_lanes:
        raise ConfigError(f"num_lanes ({config.num_lanes}) does not divide vocab_size ({config.vocab_size})")
    if config.pre_norm_lane_agg and config.lm_head_type != "replicate":
        raise ConfigError(f"pre_norm_lane_agg needs lm_head_type 'replicate', found {config.lm_head_type!r}")
    if config.tie_word_embeddings and config.lm_head_type == "lane" and config.num_lanes > 1:
        raise ConfigError(
            "a head of type 'lane' is num_lanes times as wide as the embedding: it cannot be tied"
        )


def _check_token_ids(config: LaneformerConfig) -> None:
    if not isinstance(config.eos_token_id, int | tuple | None):
        raise ConfigError(f"eos_token_id must be a token id or a list of them, found {config.eos_token_id!r}")
    ids = {"bos_token_id": config.bos_token_id, "pad_token_id": config.pad_token_id}
    ids |= {f"eos_token_id[{i}]": token for i, token in enumerate(config.eos_token_ids)}
    for name, token in ids.items():
        if token is None or (name == "pad_token_id" and token == -1):  # Llama writes "no padding" as -1
            continue
        require_int(name, token, minimum=0)
        if token >= config.vocab_size:
            raise ConfigError(f"{name} ({token}) is outside the vocabulary of {config.vocab_size}")
