"""Llama-3 RoPE scaling, found again from the table of divisors that a GGUF file stores in its place."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from laneformer.config import LaneformerConfig, RopeScaling
from laneformer.errors import ConfigError
from laneformer.rope import inverse_frequencies

ROPE_FACTORS = "rope_freqs.weight"
# What every Llama 3.1, 3.2 and 3.3 was published with; only the factor differs (8, 32).
PUBLISHED_LOW, PUBLISHED_HIGH, PUBLISHED_CONTEXT = 1.0, 4.0, 8192
# The table was rounded to float32, after float32 frequencies: a few times 2**-24 each way.
TOLERANCE = 1e-5


def scaling_of_factors(
    factors: np.ndarray, theta: float, head_size: int, original_context: int | None
) -> RopeScaling | None:
    """The scaling whose frequencies are the unscaled ones divided by ``factors``, ``[head_size / 2]``.

    The slowest pair is divided by the scaling's factor itself; the other parameters are tried as
    published.  None where all factors are 1.  Raises :class:`ConfigError` where the table is another one.
    """
    expected_shape = (head_size // 2,)
    if factors.shape != expected_shape:
        raise ConfigError(f"{ROPE_FACTORS} has shape {list(factors.shape)}, expected {list(expected_shape)}")
    largest = float(factors.max())
    if np.all(factors == 1.0):
        return None
    plain = _frequencies(theta, head_size, None)
    for context in (original_context, PUBLISHED_CONTEXT):
        if context is None or not np.isfinite(largest) or largest <= 0:
            continue
        scaling = RopeScaling(largest, PUBLISHED_LOW, PUBLISHED_HIGH, context)
        ratio = plain / _frequencies(theta, head_size, scaling)
        if np.allclose(ratio, factors, rtol=TOLERANCE, atol=0):
            return scaling
    raise ConfigError(
        f"{ROPE_FACTORS} is not the table of a published Llama-3 scaling "
        f"(low {PUBLISHED_LOW:g}, high {PUBLISHED_HIGH:g}, context {PUBLISHED_CONTEXT}): not supported"
    )


def _frequencies(theta: float, head_size: int, scaling: RopeScaling | None) -> np.ndarray:
    """Radians per position of each pair, by the model's own function."""
    shape = LaneformerConfig(
        hidden_size=head_size,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        intermediate_size=1,
        vocab_size=1,
        max_position_embeddings=1,
        rope_theta=theta,
    )
    return inverse_frequencies(replace(shape, rope_scaling=scaling))
