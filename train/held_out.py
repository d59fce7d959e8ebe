"""Loss on documents that training never sees."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from train.data.packing import Batch, HeldOutBatches


@dataclass(frozen=True)
class HeldOutLoss:
    """Loss in nats per token and in bits per UTF-8 byte of the documents' text."""

    nats_per_token: float
    bits_per_byte: float
    tokens: int
    bytes: int


@torch.no_grad()
def held_out_loss(
    batches: HeldOutBatches,
    sum_of_losses: Callable[[Batch], Tensor],
    stop: Callable[[], bool] = lambda: False,
) -> HeldOutLoss | None:
    """Loss over all of ``batches``; None where ``stop`` became true on the way.

    Bits per byte counts every target (the end-of-text token too) over the bytes of the text, so it can be
    compared across tokenizers.
    """
    nats = 0.0
    for batch in _until(stop, batches):
        nats += float(sum_of_losses(batch))
    if stop():
        return None
    return HeldOutLoss(
        nats_per_token=nats / batches.num_targets,
        bits_per_byte=nats / math.log(2) / batches.num_bytes,
        tokens=batches.num_targets,
        bytes=batches.num_bytes,
    )


def _until(stop: Callable[[], bool], batches: Iterable[Batch]) -> Iterable[Batch]:
    for batch in batches:
        if stop():
            return
        yield batch
