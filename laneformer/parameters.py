"""Names and shapes of all tensors of a checkpoint, from the configuration alone (Hugging Face layout).

Reader, writer, model and engine all take names and shapes from :func:`parameter_shapes`.
"""

from __future__ import annotations

import math

from laneformer.config import LaneformerConfig

EMBEDDING = "model.tok_embeddings.weight"


def norm_name(config: LaneformerConfig, prefix: str) -> str:
    """Parameter name of a norm before a module: ``.weight`` shared by lanes, ``.scale`` one row per lane."""
    return f"{prefix}.{'weight' if config.replicated_rmsn_scale else 'scale'}"


def final_norm_name(config: LaneformerConfig) -> str:
    """Parameter name of the last norm, which sees one stream where lanes were summed before it."""
    return "model.norm.weight" if config.pre_norm_lane_agg else norm_name(config, "model.norm")


def head_name(config: LaneformerConfig) -> str:
    """Parameter name of the head; where it is tied, of the embedding."""
    if config.tie_word_embeddings:
        return EMBEDDING
    return "lm_head.linear.weight" if config.lm_head_type == "lane" else "lm_head.weight"


def parameter_shapes(config: LaneformerConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor of a checkpoint with its shape, in the order in which a token meets them.

    Row linears (wq, wk, wv, w1, w3) are ``[lane, out / lanes, in]``, column linears (wo, w2)
    ``[lane, out, in / lanes]``.  The norms of queries and keys are ``[head]``, shared by all heads.
    """
    lanes, hidden, head = config.num_lanes, config.hidden_size, config.head_size
    queries = config.num_attention_heads * head // lanes
    keys = config.num_key_value_heads * head // lanes
    units = config.intermediate_size // lanes
    norm = (hidden,) if config.replicated_rmsn_scale else (lanes, hidden)
    shapes: dict[str, tuple[int, ...]] = {EMBEDDING: (config.vocab_size, hidden)}
    for layer in range(config.num_hidden_layers):
        prefix = f"model.layers.{layer}"
        shapes[norm_name(config, f"{prefix}.attention_norm")] = norm
        shapes[f"{prefix}.attention.wq.weight"] = (lanes, queries, hidden)
        shapes[f"{prefix}.attention.wk.weight"] = (lanes, keys, hidden)
        shapes[f"{prefix}.attention.wv.weight"] = (lanes, keys, hidden)
        if config.qk_norm:
            shapes[f"{prefix}.attention.q_norm.weight"] = (head,)
            shapes[f"{prefix}.attention.k_norm.weight"] = (head,)
        shapes[f"{prefix}.attention.wo.weight"] = (lanes, hidden, queries)
        shapes[norm_name(config, f"{prefix}.ffn_norm")] = norm
        shapes[f"{prefix}.feed_forward.w1.weight"] = (lanes, units, hidden)
        shapes[f"{prefix}.feed_forward.w3.weight"] = (lanes, units, hidden)
        shapes[f"{prefix}.feed_forward.w2.weight"] = (lanes, hidden, units)
    shapes[final_norm_name(config)] = (hidden,) if config.pre_norm_lane_agg else norm
    if not config.tie_word_embeddings:
        shapes[head_name(config)] = {
            "replicate": (config.vocab_size, hidden),
            "lane": (config.vocab_size, lanes * hidden),
            "vocab_parallel": (lanes, config.vocab_size // lanes, hidden),
        }[config.lm_head_type]
    return shapes


def parameter_count(config: LaneformerConfig) -> int:
    """Number of parameters, a tied head counted once."""
    return sum(math.prod(shape) for shape in parameter_shapes(config).values())
