"""The reference back end: the architecture in numpy, to be read, and held against by every faster one.

All arithmetic is float32 with an explicit lane axis in front: activations are ``[lane, position, hidden]``.
It is exact for prompts of any length and quick enough for small models; weights are widened to float32
when the model is loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from infer.backends.stepwise import StepwiseBackend
from infer.kv_cache import LayerCache, new_cache
from infer.weights import Weights
from laneformer.config import LaneformerConfig, Module, ResidualMode
from laneformer.parameters import EMBEDDING, final_norm_name, head_name, norm_name
from laneformer.rope import rotation_table


@dataclass(frozen=True)
class LayerWeights:
    """One layer, projections of the same input joined; norms are ``[hidden]`` or ``[lane, 1, hidden]``."""

    attention_norm: np.ndarray
    query_key_value: np.ndarray  # [lane, (query heads + 2 key heads) * head, hidden]
    query_key_norm: np.ndarray | None  # [2, head]: of queries, of keys
    attention_output: np.ndarray  # [lane, hidden, query heads * head]
    feed_forward_norm: np.ndarray
    gate_up: np.ndarray  # [lane, 2 * units, hidden]
    down: np.ndarray  # [lane, hidden, units]


@dataclass
class RequestCache:
    """What a request carries from token to token.  Delayed outputs are per position: none is carried."""

    layers: list[LayerCache]
    length: int = 0  # positions that have run


class NumpyBackend(StepwiseBackend):
    """Runs :class:`infer.weights.Weights` on numpy."""

    name = "numpy"

    def __init__(self, weights: Weights) -> None:
        self.config = config = weights.config
        self._embedding = weights.float32(EMBEDDING)
        self._layers = [_layer_weights(weights, layer) for layer in range(config.num_hidden_layers)]
        self._final_norm = _norm_scale(weights, final_norm_name(config))
        head = self._embedding if config.tie_word_embeddings else weights.float32(head_name(config))
        if config.lm_head_type == "vocab_parallel":
            self._head = head.reshape(config.num_lanes, -1, config.hidden_size)
        else:
            self._head = head[None]  # one linear, written as that of a single lane
        self._rotation = np.empty((0, config.head_size // 2), dtype=np.complex64)  # [position, head / 2]
        self.weight_bytes_per_token = self._weight_bytes()

    def new_cache(self) -> RequestCache:
        """State of a request of which no token has run yet."""
        return RequestCache(new_cache(self.config))

    def forward(
        self, token_ids: Sequence[int], cache: RequestCache, *, last_only: bool = False
    ) -> np.ndarray:
        """Logits ``[len(token_ids), vocab]`` of tokens that follow those in ``cache``, or of the last one."""
        with np.errstate(over="ignore"):  # exp(-gate) may reach infinity: silu is then 0, as it should be
            residual = self._run_layers(np.asarray(token_ids), cache)
            return self._logits(residual[:, -1:] if last_only else residual)

    def _run_layers(self, token_ids: np.ndarray, cache: RequestCache) -> np.ndarray:
        """Residual streams ``[lane, position, hidden]`` after the last layer."""
        config = self.config
        residual = np.repeat(self._embedding[token_ids][None], config.num_lanes, axis=0)
        rotation = self._rotation_up_to(cache.length + len(token_ids))[cache.length :]
        cache.length += len(token_ids)
        exchange = Exchange(config)
        for index, layer in enumerate(self._layers):
            normed = rms_norm(residual, layer.attention_norm, config.norm_eps)
            output = self._attention(layer, normed, rotation, cache.layers[index])
            residual += exchange(output, index, "attention")
            normed = rms_norm(residual, layer.feed_forward_norm, config.norm_eps)
            residual += exchange(self._feed_forward(layer, normed), index, "feed_forward")
        return residual

    def _rotation_up_to(self, stop: int) -> np.ndarray:
        """The first ``stop`` rows of a table that grows: a context may be longer than memory."""
        if stop > len(self._rotation):
            cosines, sines = rotation_table(self.config, np.arange(max(stop, 2 * len(self._rotation))))
            self._rotation = (cosines + 1j * sines).astype(np.complex64)
        return self._rotation[:stop]

    def _attention(
        self, layer: LayerWeights, normed: np.ndarray, rotation: np.ndarray, cache: LayerCache
    ) -> np.ndarray:
        """Causal attention of each lane's heads; returns ``[lane, position, hidden]`` partials."""
        config = self.config
        lanes, positions, head = config.num_lanes, normed.shape[1], config.head_size
        key_heads, group = config.num_key_value_heads // config.num_lanes, config.queries_per_key
        query_heads = key_heads * group

        projected = lane_linear(normed, layer.query_key_value).reshape(lanes, positions, -1, head)
        turning = projected[:, :, : query_heads + key_heads]
        if layer.query_key_norm is not None:
            scale = layer.query_key_norm.repeat((query_heads, key_heads), axis=0)
            turning = rms_norm(turning, scale, config.norm_eps)
        rotated = rotate(turning, rotation)
        queries = rotated[:, :, :query_heads] * np.float32(head**-0.5)
        # Query heads that share a key head become rows of one matrix of group * position rows.
        queries = queries.reshape(lanes, positions, key_heads, group, head).transpose(0, 2, 3, 1, 4)
        queries = queries.reshape(lanes, key_heads, group * positions, head)
        keys, values, mask = cache.append(
            rotated[:, :, query_heads:].swapaxes(1, 2),
            projected[:, :, query_heads + key_heads :].swapaxes(1, 2),
        )

        scores = queries @ keys.swapaxes(-1, -2)  # [lane, key head, group * position, slot]
        if mask is not None:
            by_position = scores.reshape(lanes, key_heads, group, positions, -1)  # a view: masks `scores`
            np.copyto(by_position, np.float32(-np.inf), where=~mask)
        mixed = softmax(scores) @ values
        mixed = mixed.reshape(lanes, key_heads, group, positions, head).transpose(0, 3, 1, 2, 4)
        return lane_linear(mixed.reshape(lanes, positions, query_heads * head), layer.attention_output)

    def _feed_forward(self, layer: LayerWeights, normed: np.ndarray) -> np.ndarray:
        """SwiGLU of each lane; returns ``[lane, position, hidden]`` partials."""
        gate_up = lane_linear(normed, layer.gate_up)
        units = gate_up.shape[-1] // 2
        gate, up = gate_up[..., :units], gate_up[..., units:]
        return lane_linear(gate / (1 + np.exp(-gate)) * up, layer.down)

    def _logits(self, residual: np.ndarray) -> np.ndarray:
        """Logits ``[position, vocab]`` from residual streams ``[lane, position, hidden]``."""
        config = self.config
        if config.pre_norm_lane_agg:
            residual = residual.sum(axis=0, keepdims=True)
        normed = rms_norm(residual, self._final_norm, config.norm_eps)
        if config.lm_head_type == "replicate":
            normed = normed.mean(axis=0, keepdims=True)
        elif config.lm_head_type == "lane":
            normed = normed.swapaxes(0, 1).reshape(1, normed.shape[1], -1)
        sliced = lane_linear(normed, self._head)  # [head lane, position, its slice of the vocabulary]
        return sliced.swapaxes(0, 1).reshape(normed.shape[1], config.vocab_size)

    def _weight_bytes(self) -> int:
        """All weights once, of the embedding one row."""
        arrays = [array for layer in self._layers for array in vars(layer).values() if array is not None]
        arrays += [self._final_norm, self._head, self._embedding[:1]]
        return sum(array.nbytes for array in arrays)


class Exchange:
    """What joins the residual streams, and the outputs that are on their way between lanes."""

    def __init__(self, config: LaneformerConfig) -> None:
        self._config = config
        self._in_flight: dict[tuple[int, Module], np.ndarray] = {}  # by the layer in which it lands

    def __call__(self, output: np.ndarray, layer: int, module: Module) -> np.ndarray:
        """What each lane adds, ``[lane, position, hidden]``, for raw outputs of the same shape."""
        mode = self._config.residual_mode(layer, module)
        self._send(output, layer, module)
        if mode is ResidualMode.PRESENT:
            return output.sum(axis=0)
        if mode is ResidualMode.INDEPENDENT:
            return output * np.float32(self._config.num_lanes**0.5)
        return output + self._in_flight.pop((layer, module))

    def _send(self, output: np.ndarray, layer: int, module: Module) -> None:
        """Keep, for a later layer that asks for it, the sum over the other lanes at each lane."""
        receiver = layer + self._config.broadcast_delay
        if receiver < self._config.num_hidden_layers and (
            self._config.residual_mode(receiver, module) is ResidualMode.PAST
        ):
            self._in_flight[receiver, module] = output.sum(axis=0) - output


def lane_linear(inputs: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """``[lane, position, in]`` times ``[lane, out, in]``, lane by lane: ``[lane, position, out]``."""
    if inputs.shape[1] == 1:
        # Row by row, so that memory streams: 20 GB/s where the matrix-vector product that `@` picks reached
        # 10, on one core of an AMD EPYC with weights larger than its cache (numpy 2.4, OpenBLAS 0.3.31).
        return np.vecdot(weights, inputs)[:, None]
    return inputs @ weights.swapaxes(1, 2)


def rms_norm(inputs: np.ndarray, scale: np.ndarray, epsilon: float) -> np.ndarray:
    """Scale each ``[hidden]`` vector to a root mean square of 1, then by ``scale``."""
    mean_square = np.vecdot(inputs, inputs)[..., None] / np.float32(inputs.shape[-1])
    return inputs / np.sqrt(mean_square + np.float32(epsilon)) * scale


def rotate(heads: np.ndarray, rotation: np.ndarray) -> np.ndarray:
    """Turn ``[lane, position, head index, head]`` by ``[position, head / 2]`` unit complex numbers.

    Elements 2i and 2i+1 are real and imaginary part of one number, so turning them is a product.
    """
    turned: np.ndarray = heads.view(np.complex64) * rotation[:, None]
    return turned.view(np.float32)


def softmax(scores: np.ndarray) -> np.ndarray:
    """Softmax over the last axis, which must hold something finite; overwrites ``scores``."""
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=-1, keepdims=True)
    return scores


def _layer_weights(weights: Weights, layer: int) -> LayerWeights:
    prefix = f"model.layers.{layer}"
    attention, feed_forward = f"{prefix}.attention", f"{prefix}.feed_forward"

    def joined(*names: str) -> np.ndarray:
        return np.concatenate([weights.float32(f"{name}.weight") for name in names], axis=1)

    query_key_norm = None
    if weights.config.qk_norm:
        query_key_norm = np.stack([weights.float32(f"{attention}.{name}_norm.weight") for name in "qk"])
    return LayerWeights(
        attention_norm=_norm_scale(weights, norm_name(weights.config, f"{prefix}.attention_norm")),
        query_key_value=joined(f"{attention}.wq", f"{attention}.wk", f"{attention}.wv"),
        query_key_norm=query_key_norm,
        attention_output=weights.float32(f"{attention}.wo.weight"),
        feed_forward_norm=_norm_scale(weights, norm_name(weights.config, f"{prefix}.ffn_norm")),
        gate_up=joined(f"{feed_forward}.w1", f"{feed_forward}.w3"),
        down=weights.float32(f"{feed_forward}.w2.weight"),
    )


def _norm_scale(weights: Weights, name: str) -> np.ndarray:
    scale = weights.float32(name)
    return scale if scale.ndim == 1 else scale[:, None]
