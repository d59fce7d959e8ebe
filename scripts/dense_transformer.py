"""A plain dense Transformer that decodes one token at a time from a static cache, for a fair baseline.

The sizes are those of a :class:`LaneformerConfig`; lanes and delay are left out, as in a model whose every
layer waits for all of the one before.  A sliding layer keeps its window in a ring.  Weights are random, or
copied from a dense checkpoint by :meth:`DenseTransformer.load`.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from laneformer.config import LaneformerConfig
from laneformer.parameters import EMBEDDING, final_norm_name, head_name, norm_name
from laneformer.rope import rotation_table

SCALE = 0.02  # of random weights


class Layer(nn.Module):
    """Attention and a gated feed-forward network, for one token."""

    keys: Tensor  # [key heads, slots, head]
    values: Tensor

    def __init__(self, config: LaneformerConfig, layer: int, context: int) -> None:
        super().__init__()
        hidden, head, units = config.hidden_size, config.head_size, config.intermediate_size
        self.query_heads, self.key_heads, self.head = (
            config.num_attention_heads,
            config.num_key_value_heads,
            head,
        )
        self.norm_epsilon = config.norm_eps
        self.slots = min(config.window(layer) or context, context)
        self.attention_norm = nn.Parameter(torch.ones(hidden))
        self.projection = _random((self.query_heads + 2 * self.key_heads) * head, hidden)
        self.output = _random(hidden, self.query_heads * head)
        self.feed_forward_norm = nn.Parameter(torch.ones(hidden))
        self.gate_up = _random(2 * units, hidden)
        self.down = _random(hidden, units)
        for name in ("keys", "values"):
            self.register_buffer(name, torch.zeros(self.key_heads, self.slots, head))

    def forward(self, residual: Tensor, position: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        """``residual`` is ``[1, hidden]``; ``position`` is int64 ``[1]``."""
        width = residual.shape[-1:]
        inputs = functional.rms_norm(residual, width, self.attention_norm, self.norm_epsilon)
        heads = functional.linear(inputs, self.projection).view(-1, 1, self.head)  # [heads, 1, head]
        queries, keys, values = heads.split([self.query_heads, self.key_heads, self.key_heads])
        slot = position % self.slots
        self.keys[:, slot] = _turned(keys, cosines, sines)
        self.values[:, slot] = values
        # Once the ring is full all of it is seen: the oldest slot has just been written over.
        seen = torch.arange(self.slots, device=position.device) <= position
        mixed = functional.scaled_dot_product_attention(
            _turned(queries, cosines, sines)[None],
            self.keys[None],
            self.values[None],
            attn_mask=seen[None, None, None],
            enable_gqa=True,
        )
        residual = residual + functional.linear(mixed.view(1, -1), self.output)
        inputs = functional.rms_norm(residual, width, self.feed_forward_norm, self.norm_epsilon)
        gate, up = functional.linear(inputs, self.gate_up).chunk(2, -1)
        return residual + functional.linear(functional.silu(gate) * up, self.down)


class DenseTransformer(nn.Module):
    """The whole model.  ``context`` is the number of positions that its caches have room for."""

    cosines: Tensor  # [context, head / 2], float32
    sines: Tensor

    def __init__(self, config: LaneformerConfig, context: int) -> None:
        super().__init__()
        if config.qk_norm:
            raise ValueError("the dense baseline has no norm of queries and keys")
        self.config, self.context = config, context
        self.embedding = _random(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(
            Layer(config, layer, context) for layer in range(config.num_hidden_layers)
        )
        self.norm = nn.Parameter(torch.ones(config.hidden_size))
        tied = config.tie_word_embeddings
        self.head = self.embedding if tied else _random(config.vocab_size, config.hidden_size)
        for name, table in zip(("cosines", "sines"), rotation_table(config, np.arange(context)), strict=True):
            self.register_buffer(name, torch.from_numpy(table).to(torch.get_default_device()))

    def forward(self, token: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
        """The most probable next token and logits ``[1, vocab]``, after ``token`` at ``position``.

        Tokens and positions are int64 ``[1]``.
        """
        residual = self.embedding[token]
        cosines, sines = self.cosines[position], self.sines[position]
        for layer in self.layers:
            residual = layer(residual, position, cosines, sines)
        residual = functional.rms_norm(residual, residual.shape[-1:], self.norm, self.config.norm_eps)
        logits = functional.linear(residual, self.head)
        return logits.argmax(-1), logits

    def fill_cache(self, seed: int) -> None:
        """Random keys and values in place of a prompt's: what they are does not change the time."""
        device = self.embedding.device
        random = torch.Generator(device).manual_seed(seed)
        for layer in self.layers:
            for cache in (layer.keys, layer.values):
                cache.copy_(torch.randn(cache.shape, generator=random, device=device))

    def weight_bytes_per_token(self) -> int:
        """Bytes of weights read for one token; of an embedding that is not the head, one row, left out."""
        sizes = {id(each): each.numel() * each.element_size() for each in self.parameters()}
        if self.head is not self.embedding:
            del sizes[id(self.embedding)]
        return sum(sizes.values())

    @torch.no_grad()
    def load(self, tensors: Mapping[str, np.ndarray]) -> None:
        """Copy float32 weights of a checkpoint of one lane."""

        def rows(layer: int, *names: str) -> Tensor:
            found = [tensors[f"model.layers.{layer}.{name}.weight"][0] for name in names]
            return torch.from_numpy(np.concatenate(found))

        def vector(name: str) -> Tensor:
            return torch.from_numpy(tensors[name])

        self.embedding.copy_(vector(EMBEDDING))
        for number, layer in enumerate(self.layers):
            prefix = f"model.layers.{number}"
            layer.attention_norm.copy_(vector(norm_name(self.config, f"{prefix}.attention_norm")))
            layer.feed_forward_norm.copy_(vector(norm_name(self.config, f"{prefix}.ffn_norm")))
            layer.projection.copy_(rows(number, "attention.wq", "attention.wk", "attention.wv"))
            layer.output.copy_(rows(number, "attention.wo"))
            layer.gate_up.copy_(rows(number, "feed_forward.w1", "feed_forward.w3"))
            layer.down.copy_(rows(number, "feed_forward.w2"))
        self.norm.copy_(vector(final_norm_name(self.config)))
        if self.head is not self.embedding:
            self.head.copy_(vector(head_name(self.config)))


def _random(rows: int, columns: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(rows, columns) * SCALE)


def _turned(heads: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Heads ``[heads, 1, head]`` after rotation in float32, elements 2i and 2i + 1 together."""
    pairs = heads.to(cosines.dtype).unflatten(-1, (-1, 2))
    first, second = pairs[..., 0], pairs[..., 1]
    turned = torch.stack([first * cosines - second * sines, first * sines + second * cosines], -1)
    return turned.flatten(-2).to(heads.dtype)
