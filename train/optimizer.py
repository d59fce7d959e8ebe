"""AdamW over a Laneformer's parameters."""

from __future__ import annotations

from typing import Any

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


def restore_optimizer(optimizer: torch.optim.AdamW, state: dict[str, Any]) -> None:
    """Take over moments and step counts; rates, betas and decay stay as configured now, not as saved."""
    configured = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
    optimizer.load_state_dict(state)
    for group, values in zip(optimizer.param_groups, configured, strict=True):
        group.update(values)


def _is_norm(name: str) -> bool:
    return name.endswith(("norm.weight", "norm.scale"))
