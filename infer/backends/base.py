"""What the engine asks of a back end.

A back end owns a whole request: prompt, loop, sampling, stop tokens.  So one that keeps everything on
a device can answer a request with a single launch, and the engine only reads tokens as they appear.
Text, stop strings and cancelling belong to the engine; it cancels by closing the iterator.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Protocol

import numpy as np

from infer.request import Request
from laneformer.config import LaneformerConfig


class Backend(Protocol):
    """Something that runs one model."""

    @property
    def name(self) -> str:
        """Short name, as in ``--backend``."""

    @property
    def config(self) -> LaneformerConfig:
        """Shape and arithmetic of the model."""

    @property
    def weight_bytes_per_token(self) -> int | None:
        """Bytes of weights read to generate one token; None where the back end does not know."""

    def logits(self, token_ids: Sequence[int]) -> np.ndarray:
        """Logits of every position, float32 ``[sequence, vocab]``.  The ids have been checked."""

    def decode(self, request: Request) -> Generator[tuple[int, float], None, None]:
        """Yield (token id, log-probability) as tokens are chosen; the request has been checked.

        Ends after a token in ``request.stop_token_ids`` or after ``request.new_token_limit(config)``
        tokens.  The log-probability is that of :mod:`infer.sampling`.  Closing the iterator cancels.
        """
