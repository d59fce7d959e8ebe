"""Laneformer in PyTorch: a Transformer of parallel lanes whose exchange is delayed.

Activations carry a lane axis, ``[batch, sequence, lane, hidden]``.  Every lane starts as a copy of the
token embedding and keeps a residual stream of its own; a module's raw output reaches the other lanes
``broadcast_delay`` layers later, so on as many devices no lane ever waits for another
(see ``docs/architecture.md``).

    model = LaneformerForCausalLM.from_pretrained("checkpoint")
    logits = model(input_ids)                    # [batch, sequence, vocab]
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from laneformer.attention_mask import attention_mask
from laneformer.config import LaneformerConfig, ResidualMode
from laneformer.errors import RequestError
from laneformer.key_value_cache import KeyValueCache
from laneformer.parameters import head_name
from laneformer.rope import inverse_frequencies


class LaneLinear(nn.Module):
    """Each lane multiplies its own input: ``[..., lane, in] -> [..., lane, out]``.

    The weight is ``[lane, out, in]``.  A *row* linear splits a dense layer's outputs over lanes, a *column*
    linear its inputs; the outputs of a column linear are full-width partials whose sum over lanes is what
    the dense layer would give.
    """

    def __init__(self, lanes: int, out_features: int, in_features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(lanes, out_features, in_features))

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("bsli,loi->bslo", x, self.weight)


class LaneRMSNorm(nn.Module):
    """RMSNorm over the hidden axis with one scale vector per lane (``replicated_rmsn_scale: false``)."""

    def __init__(self, lanes: int, hidden_size: int, eps: float) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(lanes, hidden_size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], eps=self.eps) * self.scale


def rotate(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Rotary embedding in interleaved pairs, in float32: ``x [..., position, head_size]``."""
    even, odd = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    turned = torch.stack((even * cosines - odd * sines, even * sines + odd * cosines), dim=-1)
    return turned.flatten(-2).type_as(x)


class Attention(nn.Module):
    """Grouped-query attention; the heads of all lanes, lane after lane, attend side by side."""

    def __init__(self, config: LaneformerConfig, layer: int) -> None:
        super().__init__()
        lanes, hidden = config.num_lanes, config.hidden_size
        queries = config.num_attention_heads * config.head_size // lanes
        keys = config.num_key_value_heads * config.head_size // lanes
        self.layer = layer
        self.head_size = config.head_size
        self.num_lanes = lanes
        self.wq = LaneLinear(lanes, queries, hidden)
        self.wk = LaneLinear(lanes, keys, hidden)
        self.wv = LaneLinear(lanes, keys, hidden)
        self.wo = LaneLinear(lanes, hidden, queries)
        self.q_norm = make_head_norm(config)
        self.k_norm = make_head_norm(config)

    def forward(
        self, x: Tensor, rotation: tuple[Tensor, Tensor], mask: Tensor | None, cache: KeyValueCache | None
    ) -> Tensor:
        queries = rotate(self.q_norm(self._heads(self.wq(x))), *rotation)
        keys = rotate(self.k_norm(self._heads(self.wk(x))), *rotation)
        values = self._heads(self.wv(x))
        if cache is not None:
            keys, values = cache.append(self.layer, keys, values)
        heads = F.scaled_dot_product_attention(
            queries, keys, values, attn_mask=mask, is_causal=mask is None, enable_gqa=True
        )
        partial: Tensor = self.wo(heads.transpose(1, 2).unflatten(2, (self.num_lanes, -1)).flatten(3))
        return partial

    def _heads(self, x: Tensor) -> Tensor:
        """``[batch, sequence, lane, features] -> [batch, head, sequence, head_size]``."""
        return x.flatten(2).unflatten(2, (-1, self.head_size)).transpose(1, 2)


class FeedForward(nn.Module):
    """SwiGLU, each lane with its share of the units."""

    def __init__(self, config: LaneformerConfig) -> None:
        super().__init__()
        lanes, hidden, units = config.num_lanes, config.hidden_size, config.intermediate_size
        self.w1 = LaneLinear(lanes, units // lanes, hidden)
        self.w3 = LaneLinear(lanes, units // lanes, hidden)
        self.w2 = LaneLinear(lanes, hidden, units // lanes)

    def forward(self, x: Tensor) -> Tensor:
        partial: Tensor = self.w2(F.silu(self.w1(x)) * self.w3(x))
        return partial


def exchange(output: Tensor, past: Tensor | None, mode: ResidualMode) -> Tensor:
    """What each lane adds to its residual stream, from raw outputs ``[batch, sequence, lane, hidden]``."""
    if mode is ResidualMode.PRESENT:
        return output.sum(dim=2, keepdim=True)
    if mode is ResidualMode.INDEPENDENT:
        return output * math.sqrt(output.shape[2])
    assert past is not None
    return output + past.sum(dim=2, keepdim=True) - past


class Block(nn.Module):
    """One layer; returns the residual streams and the two raw outputs that later layers receive."""

    def __init__(self, config: LaneformerConfig, layer: int) -> None:
        super().__init__()
        self.attention = Attention(config, layer)
        self.feed_forward = FeedForward(config)
        self.attention_norm = make_norm(config)
        self.ffn_norm = make_norm(config)
        self.attention_mode = config.residual_mode(layer, "attention")
        self.feed_forward_mode = config.residual_mode(layer, "feed_forward")

    def forward(
        self,
        residual: Tensor,
        past: tuple[Tensor | None, Tensor | None],
        rotation: tuple[Tensor, Tensor],
        mask: Tensor | None,
        cache: KeyValueCache | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        attended = self.attention(self.attention_norm(residual), rotation, mask, cache)
        residual = residual + exchange(attended, past[0], self.attention_mode)
        fed = self.feed_forward(self.ffn_norm(residual))
        residual = residual + exchange(fed, past[1], self.feed_forward_mode)
        return residual, attended, fed


class LaneStack(nn.Module):
    """Embedding, layers and last norm: ``[batch, sequence] -> [batch, sequence, lane, hidden]``.

    Where ``pre_norm_lane_agg`` sums lanes before the norm, one lane comes out.
    """

    inverse_frequencies: Tensor

    def __init__(self, config: LaneformerConfig) -> None:
        super().__init__()
        self.config = config
        self.tok_embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Block(config, layer) for layer in range(config.num_hidden_layers))
        self.norm = make_norm(config, shared=config.replicated_rmsn_scale or config.pre_norm_lane_agg)
        frequencies = torch.from_numpy(inverse_frequencies(config))
        self.register_buffer("inverse_frequencies", frequencies, persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> LaneStack:
        """What ``to``, ``cuda``, ``bfloat16`` and ``to_empty`` go through: frequencies move, in float32."""
        super()._apply(fn, recurse)
        # In bfloat16 a frequency would be off by up to 2**-9: a whole turn after a few hundred positions.
        frequencies = torch.from_numpy(inverse_frequencies(self.config))
        self.inverse_frequencies = frequencies.to(self.inverse_frequencies.device)
        return self

    def forward(self, input_ids: Tensor, document_ids: Tensor | None, cache: KeyValueCache | None) -> Tensor:
        config = self.config
        stop = input_ids.shape[1] + (cache.length if cache is not None else 0)
        positions = torch.arange(stop - input_ids.shape[1], stop, device=input_ids.device)
        angles = torch.outer(positions.float(), self.inverse_frequencies)
        rotation = (angles.cos(), angles.sin())
        windows = {config.window(layer) for layer in range(config.num_hidden_layers)}
        masks = {window: attention_mask(positions, stop, window, document_ids) for window in windows}

        residual = self.tok_embeddings(input_ids).unsqueeze(2).expand(-1, -1, config.num_lanes, -1)
        sent: list[tuple[Tensor, Tensor]] = []
        for layer, block in enumerate(self.layers):
            late = layer - config.broadcast_delay
            past = sent[late] if 0 <= late < layer else (None, None)
            residual, attended, fed = block(residual, past, rotation, masks[config.window(layer)], cache)
            sent.append((attended, fed))
        if config.pre_norm_lane_agg:
            residual = residual.sum(dim=2, keepdim=True)
        normed: Tensor = self.norm(residual)
        return normed


class LaneformerForCausalLM(nn.Module):
    """A Laneformer with its language-model head.

    ``LaneformerForCausalLM(config)`` is initialised for training: normal with deviation 0.02, the linears
    that write into the residual stream divided by ``sqrt(2 * layers)`` (Radford et al. 2019, "GPT-2").
    """

    def __init__(self, config: LaneformerConfig) -> None:
        super().__init__()
        self.config = config
        self.model = LaneStack(config)
        self.lm_head = make_head(config)
        self.apply_initialization()

    def forward(
        self, input_ids: Tensor, *, document_ids: Tensor | None = None, cache: KeyValueCache | None = None
    ) -> Tensor:
        """Logits ``[batch, sequence, vocab]`` for token ids ``[batch, sequence]``.

        ``document_ids`` (same shape) keep attention inside documents.  With a ``cache`` the tokens continue
        what the cache holds.  Raises :class:`RequestError` beyond ``max_position_embeddings``, and for both
        together, since a cache does not know which documents its positions belong to.
        """
        if document_ids is not None and cache is not None:
            raise RequestError(
                "document_ids and cache cannot be combined: run whole sequences, or one document"
            )
        length = input_ids.shape[1] + (cache.length if cache is not None else 0)
        if length > self.config.max_position_embeddings:
            raise RequestError(
                f"{length} positions exceed the context of {self.config.max_position_embeddings}"
            )
        hidden = self.model(input_ids, document_ids, cache)
        if self.config.lm_head_type == "replicate":
            return F.linear(hidden.mean(dim=2), self.head_weight())
        if self.config.lm_head_type == "lane":
            return F.linear(hidden.flatten(2), self.head_weight())
        return torch.einsum("bsli,loi->bslo", hidden, self.head_weight()).flatten(2)

    def head_weight(self) -> Tensor:
        """The weight of the head; the embedding where tied, in slices for ``vocab_parallel``."""
        if not self.config.tie_word_embeddings:
            return self.get_parameter(head_name(self.config))
        weight = self.model.tok_embeddings.weight
        if self.config.lm_head_type == "vocab_parallel":
            return weight.unflatten(0, (self.config.num_lanes, -1))
        return weight

    @torch.no_grad()
    def apply_initialization(self) -> None:
        """Draw fresh weights from torch's global generator."""
        # 0.02 everywhere was also better than inputs ** -0.5 on the `small` shape: 2.34 against 2.46 bits per
        # byte after 0.8 M tokens of Python, same data and settings.
        deviation, depth = 0.02, math.sqrt(2 * self.config.num_hidden_layers)
        for name, parameter in self.named_parameters():
            if name.endswith(("norm.weight", "norm.scale")):
                parameter.fill_(1.0)
            else:
                writes_residual = name.endswith(("wo.weight", "w2.weight"))
                parameter.normal_(0.0, deviation / depth if writes_residual else deviation)

    @classmethod
    def from_pretrained(cls, folder: str | Path, dtype: torch.dtype | None = None) -> LaneformerForCausalLM:
        """Load a checkpoint folder in the Hugging Face layout, in its stored type unless ``dtype`` is given.

        Where stored types are mixed, the model has the narrowest type that holds all their values.
        Raises :class:`CheckpointError` or :class:`ConfigError`, one line that names what is wrong.
        """
        from laneformer.pretrained import load_model

        return load_model(folder, dtype)

    def save_pretrained(self, folder: str | Path, max_shard_bytes: int = 5 * 10**9) -> None:
        """Write config.json and safetensors into ``folder``, in several files above ``max_shard_bytes``.

        Every tensor keeps its type; config.json names the one that holds them all, in which they load again.
        Weight files of an earlier save that are not written again are removed.  Raises
        :class:`CheckpointError` for a type that checkpoints do not have, such as float64.
        """
        from laneformer.pretrained import save_model

        save_model(self, folder, max_shard_bytes)


def make_norm(config: LaneformerConfig, shared: bool | None = None) -> nn.Module:
    """RMSNorm with one scale vector for all lanes (``shared``), or with one per lane."""
    if config.replicated_rmsn_scale if shared is None else shared:
        return nn.RMSNorm(config.hidden_size, eps=config.norm_eps)
    return LaneRMSNorm(config.num_lanes, config.hidden_size, config.norm_eps)


def make_head_norm(config: LaneformerConfig) -> nn.Module:
    """RMSNorm over each head of queries or keys, one scale for all heads; nothing without ``qk_norm``."""
    return nn.RMSNorm(config.head_size, eps=config.norm_eps) if config.qk_norm else nn.Identity()


def make_head(config: LaneformerConfig) -> nn.Module | None:
    """The module that holds the head's weight under its published name; None where the head is tied."""
    lanes, hidden, vocab = config.num_lanes, config.hidden_size, config.vocab_size
    if config.tie_word_embeddings:
        return None
    if config.lm_head_type == "replicate":
        return nn.Linear(hidden, vocab, bias=False)
    if config.lm_head_type == "lane":
        return nn.ModuleDict({"linear": nn.Linear(lanes * hidden, vocab, bias=False)})
    return LaneLinear(lanes, vocab // lanes, hidden)
