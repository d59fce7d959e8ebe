"""Which positions may see which: causal, sliding window, and inside one document."""

from __future__ import annotations

import torch
from torch import Tensor


def attention_mask(
    positions: Tensor, stop: int, window: int | None, document_ids: Tensor | None
) -> Tensor | None:
    """Boolean mask for the new ``positions [new]``, which end before ``stop``, against all of ``0..stop-1``.

    True where a query may look: ``key <= query``, ``key > query - window`` for a sliding layer, and the
    same document where ``document_ids [batch, new]`` are given.  Shape ``[new, stop]``, with document ids
    ``[batch, 1, new, stop]``.  None stands for plain causal attention over new positions alone, for which
    attention kernels need no mask.
    """
    starts_at_zero = len(positions) == stop
    narrow = window is not None and window < stop
    if document_ids is None and not narrow and starts_at_zero:
        return None
    distance = positions[:, None] - torch.arange(stop, device=positions.device)[None, :]
    mask = distance >= 0
    if window is not None:
        mask &= distance < window
    if document_ids is None:
        return mask
    return mask & (document_ids[:, None, :, None] == document_ids[:, None, None, :])
