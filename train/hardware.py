"""Where a run computes, in which precision, and what the hardware could do at best."""

from __future__ import annotations

import torch

from laneformer.config import LaneformerConfig
from laneformer.errors import ConfigError
from laneformer.parameters import EMBEDDING, parameter_count, parameter_shapes

# Dense bfloat16 peaks from the makers' data sheets, floating-point operations per second.
# A device that is not listed gets "n/a": a guessed peak would make a made-up MFU.
BFLOAT16_PEAKS = {
    "NVIDIA H200": 989e12,
    "NVIDIA H100 80GB HBM3": 989e12,
    "NVIDIA H100 PCIe": 756e12,
    "NVIDIA A100": 312e12,
    "NVIDIA L40S": 362e12,
    "NVIDIA L4": 121e12,
}


def select_device(name: str) -> torch.device:
    """``auto`` is the first GPU where there is one, else the CPU."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise ConfigError(f"device {name!r} is not known; try 'auto', 'cpu', 'cuda' or 'cuda:1'")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"device {name!r} was asked for; torch finds {torch.cuda.device_count()} CUDA devices"
        )
    return device


def select_precision(name: str, device: torch.device) -> torch.dtype:
    """Type of the matrix products: bfloat16 where a GPU has it, unless told otherwise."""
    if name == "auto":
        name = "bfloat16" if device.type == "cuda" and torch.cuda.is_bf16_supported() else "float32"
    return {"bfloat16": torch.bfloat16, "float32": torch.float32}[name]


def peak_flops(device: torch.device, precision: torch.dtype) -> float | None:
    """Operations per second at best; None where it is not known."""
    if device.type != "cuda" or precision is not torch.bfloat16:
        return None
    name = torch.cuda.get_device_name(device)
    return next((peak for known, peak in BFLOAT16_PEAKS.items() if name.startswith(known)), None)


def flops_per_token(config: LaneformerConfig, sequence_length: int) -> float:
    """Training operations per token, ``6 N + 12 layers heads head_size sequence``.

    N leaves out an embedding that is only looked up.  Source: Chowdhery et al. 2022, "PaLM", appendix B.
    """
    weights = parameter_count(config)
    if not config.tie_word_embeddings:
        vocab, hidden = parameter_shapes(config)[EMBEDDING]
        weights -= vocab * hidden
    attention = 12 * config.num_hidden_layers * config.num_attention_heads * config.head_size
    return 6.0 * weights + attention * sequence_length
