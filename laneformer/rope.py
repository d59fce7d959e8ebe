"""Rotary position embedding: the table that PyTorch and the engine share, so that both turn alike.

Numpy only.  Elements 2i and 2i+1 of a head rotate together (interleaved pairs).
Source: Su et al. 2021, "RoFormer"; stretching of wavelengths as published with Llama 3.1.
"""

from __future__ import annotations

import math

import numpy as np

from laneformer.config import LaneformerConfig


def inverse_frequencies(config: LaneformerConfig) -> np.ndarray:
    """Radians per position of each rotating pair, float32 ``[head_size / 2]``."""
    exponents = np.arange(0, config.head_size, 2, dtype=np.float32) / np.float32(config.head_size)
    frequencies = (1.0 / np.float32(config.rope_theta) ** exponents).astype(np.float32)
    scaling = config.rope_scaling
    if scaling is None:
        return frequencies
    wavelengths = 2 * math.pi / frequencies
    turns = scaling.original_max_position_embeddings / wavelengths  # within the context trained first
    keep = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    keep = np.clip(keep, 0.0, 1.0)  # 1: fast pairs stay as they are; 0: slow pairs are stretched
    return ((1 - keep) * frequencies / scaling.factor + keep * frequencies).astype(np.float32)


def rotation_table(config: LaneformerConfig, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Cosines and sines, each float32 ``[len(positions), head_size / 2]``, angles formed in float32."""
    angles = np.outer(positions.astype(np.float32), inverse_frequencies(config))
    return np.cos(angles), np.sin(angles)
