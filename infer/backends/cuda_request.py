"""What the host and the kernel say to each other: ``Request`` of worker.cuh, and outcomes of packets.cuh."""

from __future__ import annotations

from enum import IntEnum

import numpy as np

POINTERS = (
    *("tape", "run_offset", "embedding", "norms", "head_norms", "rotation", "cache", "cache_offset"),
    *("packets", "logits", "scores", "uniforms", "histograms", "chunk_memory", "flags", "control", "prompt", "stop_ids"),
    *("tokens", "cancel", "all_logits", "stall_nanoseconds"),
)
REQUEST = np.dtype(
    [(name, "<u8") for name in POINTERS]
    + [("first_epoch", "<u4")]
    + [(name, "<i4") for name in ("prompt_count", "limit", "stop_count")]
    + [(name, "<f4") for name in ("norm_epsilon", "repetition_penalty", "temperature", "top_p", "min_p")]
    + [("top_k", "<i4")]
)


class Outcome(IntEnum):
    """Why a request ended."""

    RUNNING = 0
    FINISHED = 1
    CANCELLED = 2
    STALLED = 3
    TORN = 4
    NOT_FINITE = 5


OUTCOMES = {
    Outcome.STALLED: "waited too long for another worker",
    Outcome.TORN: "found a packet whose checksum does not fit",
}
PLACES = (
    "waiting for a page of weights",
    "waiting for room for a page",
    "waiting for the residual stream",
    "waiting for queries, keys and values",
    "waiting for results of attention",
    "waiting for other lanes",
    "waiting for feed-forward units",
    "waiting for all lanes' results",
    "waiting for inputs of the head",
    "waiting for the token",
    "waiting in a chunk of the prompt",
    "waiting for merged results of attention",
    "waiting for the choice of a token",
)
