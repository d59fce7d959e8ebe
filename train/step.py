"""One optimizer step: loss over all micro-batches, clipping, and the guard against non-finite numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from train.data.packing import IGNORED_LABEL, Batch

ForwardFunction = Callable[..., Tensor]


@dataclass(frozen=True)
class StepResult:
    """``loss`` in nats per target, gradient norm before clipping, and whether weights were changed."""

    loss: float
    gradient_norm: float
    targets: int
    applied: bool


def autocast(device: torch.device, precision: torch.dtype) -> AbstractContextManager[object]:
    """bfloat16 matrix products where asked for; weights, residual streams and loss stay float32."""
    if precision is torch.float32:
        return nullcontext()
    return torch.autocast(device.type, dtype=precision)


def loss_sum(
    forward: ForwardFunction,
    batch: Batch,
    device: torch.device,
    precision: torch.dtype,
    attention_within_documents: bool,
) -> Tensor:
    """Summed cross-entropy in nats over the targets of ``batch``, a float32 scalar."""
    input_ids = torch.from_numpy(batch.input_ids).to(device, non_blocking=True)
    labels = torch.from_numpy(batch.labels).to(device, non_blocking=True)
    document_ids = None
    if attention_within_documents:
        document_ids = torch.from_numpy(batch.document_ids).to(device, non_blocking=True)
    with autocast(device, precision):
        logits = forward(input_ids, document_ids=document_ids)
    return F.cross_entropy(
        logits.flatten(0, 1).float(), labels.flatten(), ignore_index=IGNORED_LABEL, reduction="sum"
    )


def optimizer_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    micro_batches: Sequence[Batch],
    sum_of_losses: Callable[[Batch], Tensor],
    learning_rate: float,
    max_gradient_norm: float,
) -> StepResult:
    """Change the weights by one step, unless loss or gradient is not finite: then nothing changes.

    Gradients are of the mean over all targets of the step, so the split into micro-batches does not
    weigh them.
    """
    targets = sum(int((batch.labels != IGNORED_LABEL).sum()) for batch in micro_batches)
    total = 0.0
    optimizer.zero_grad(set_to_none=True)
    for batch in micro_batches:
        loss = sum_of_losses(batch) / max(targets, 1)
        loss.backward()
        total += float(loss.detach())
    norm = float(nn.utils.clip_grad_norm_(model.parameters(), max_gradient_norm))
    finite = math.isfinite(total) and math.isfinite(norm)
    if finite:
        for group in optimizer.param_groups:
            group["lr"] = learning_rate
        optimizer.step()
    return StepResult(total, norm, targets, finite)
