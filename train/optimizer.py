"""AdamW over a Laneformer's parameters."""

from __future__ import annotations

import torch
from torch import nn

from train.config import OptimizerConfig


def make_optimizer(model: nn.Module, config: OptimizerConfig, device: torch.device) -> torch.optim.AdamW:
    """Matrices get weight decay; norm scales, which only set a gain, do not."""
    scales = [parameter for name, parameter in model.named_parameters() if _is_norm(name)]
    matrices = [parameter for name, parameter in model.named_parameters() if not _is_norm(name)]
    groups = [
        {"params": matrices, "weight_decay": config.weight_decay},
        {"params": scales, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        groups,
        lr=config.learning_rate,
        betas=(config.beta1, config.beta2),
        eps=config.epsilon,
        fused=device.type == "cuda",
    )


def _is_norm(name: str) -> bool:
    return name.endswith(("norm.weight", "norm.scale"))
