"""The architecture once more, in float64 and plain loops over lanes, heads and positions; no cache.

Slow and obvious on purpose: it shares nothing with the engine but the configuration and tensor names.
"""

from __future__ import annotations

import math

import numpy as np

from laneformer.config import LaneformerConfig


def reference_logits(config: LaneformerConfig, tensors: dict[str, np.ndarray], ids: list[int]) -> np.ndarray:
    """Logits float64 ``[sequence, vocab]``."""
    w = {name: values.astype(np.float64) for name, values in tensors.items()}
    lanes, delay = config.num_lanes, config.broadcast_delay
    streams = [w["model.tok_embeddings.weight"][ids] for _ in range(lanes)]
    history: dict[str, list[list[np.ndarray]]] = {"attention": [], "feed_forward": []}
    for layer in range(config.num_hidden_layers):
        prefix = f"model.layers.{layer}"
        for module, norm in (("attention", "attention_norm"), ("feed_forward", "ffn_norm")):
            run = _attention if module == "attention" else _feed_forward
            outputs = []
            for lane in range(lanes):
                normed = _norm(config, w, f"{prefix}.{norm}", streams[lane], lane)
                outputs.append(run(config, w, f"{prefix}.{module}", normed, lane, layer))
            communicates = config.use_attention_comm if module == "attention" else config.use_mlp_comm
            for lane in range(lanes):
                others = [other for other in range(lanes) if other != lane]
                if layer < delay:
                    late, exchanged = False, config.use_early_comm
                else:
                    late, exchanged = delay > 0, communicates
                if not exchanged:
                    streams[lane] = streams[lane] + math.sqrt(lanes) * outputs[lane]
                    continue
                source = history[module][layer - delay] if late else outputs
                streams[lane] = streams[lane] + outputs[lane] + sum(source[other] for other in others)
            history[module].append(outputs)
    return _head(config, w, streams)


def _norm(config: LaneformerConfig, w: dict, name: str, x: np.ndarray, lane: int) -> np.ndarray:
    scale = w[f"{name}.weight"] if f"{name}.weight" in w else w[f"{name}.scale"][lane]
    return _scaled_to_one(config, x) * scale


def _scaled_to_one(config: LaneformerConfig, x: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x**2).mean(axis=1, keepdims=True) + config.norm_eps)


def _attention(
    config: LaneformerConfig, w: dict, prefix: str, x: np.ndarray, lane: int, layer: int
) -> np.ndarray:
    head = config.head_size
    q, k, v = (x @ w[f"{prefix}.{name}.weight"][lane].T for name in ("wq", "wk", "wv"))
    outputs = []
    for index in range(q.shape[1] // head):
        key_index = index // config.queries_per_key
        queries = q[:, index * head : (index + 1) * head]
        keys = k[:, key_index * head : (key_index + 1) * head]
        if config.qk_norm:
            queries = _scaled_to_one(config, queries) * w[f"{prefix}.q_norm.weight"]
            keys = _scaled_to_one(config, keys) * w[f"{prefix}.k_norm.weight"]
        queries, keys = _turned(config, queries), _turned(config, keys)
        values = v[:, key_index * head : (key_index + 1) * head]
        rows = []
        for i in range(len(x)):
            window = config.sliding_window if layer in config.sliding_layers else len(x)
            seen = [j for j in range(len(x)) if i - window < j <= i]
            weights = np.exp([queries[i] @ keys[j] / math.sqrt(head) for j in seen])
            rows.append(weights / weights.sum() @ values[seen])
        outputs.append(np.array(rows))
    return np.concatenate(outputs, axis=1) @ w[f"{prefix}.wo.weight"][lane].T


def _turned(config: LaneformerConfig, x: np.ndarray) -> np.ndarray:
    result = np.empty_like(x)
    for pair in range(config.head_size // 2):
        frequency = config.rope_theta ** (-2 * pair / config.head_size)
        if config.rope_scaling is not None:
            frequency = _stretched(config.rope_scaling, frequency)
        angle = np.arange(len(x)) * frequency
        even, odd = x[:, 2 * pair], x[:, 2 * pair + 1]
        result[:, 2 * pair] = even * np.cos(angle) - odd * np.sin(angle)
        result[:, 2 * pair + 1] = even * np.sin(angle) + odd * np.cos(angle)
    return result


def _stretched(scaling, frequency: float) -> float:
    wavelength = 2 * math.pi / frequency
    original = scaling.original_max_position_embeddings
    if wavelength < original / scaling.high_freq_factor:
        return frequency
    if wavelength > original / scaling.low_freq_factor:
        return frequency / scaling.factor
    smooth = original / wavelength - scaling.low_freq_factor
    smooth /= scaling.high_freq_factor - scaling.low_freq_factor
    return (1 - smooth) * frequency / scaling.factor + smooth * frequency


def _feed_forward(
    config: LaneformerConfig, w: dict, prefix: str, x: np.ndarray, lane: int, layer: int
) -> np.ndarray:
    gate, up = (x @ w[f"{prefix}.{name}.weight"][lane].T for name in ("w1", "w3"))
    return (gate / (1 + np.exp(-gate)) * up) @ w[f"{prefix}.w2.weight"][lane].T


def _head(config: LaneformerConfig, w: dict, streams: list[np.ndarray]) -> np.ndarray:
    lanes = len(streams)
    embedding = w["model.tok_embeddings.weight"]
    if config.pre_norm_lane_agg:
        normed = [_norm(config, w, "model.norm", sum(streams), 0)]
    else:
        normed = [_norm(config, w, "model.norm", streams[lane], lane) for lane in range(lanes)]
    if config.lm_head_type == "lane":
        return np.concatenate(normed, axis=1) @ w["lm_head.linear.weight"].T
    head = embedding if config.tie_word_embeddings else w["lm_head.weight"]
    if config.lm_head_type == "vocab_parallel":
        slices = head.reshape(lanes, -1, config.hidden_size)
        return np.concatenate([normed[lane] @ slices[lane].T for lane in range(lanes)], axis=1)
    return sum(normed) / len(normed) @ head.T
