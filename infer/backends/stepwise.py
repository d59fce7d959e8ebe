"""The loop for back ends that only know how to run a few tokens on top of a cache.

Subclass it, give ``name``, ``config``, :meth:`new_cache` and :meth:`forward`, and it answers requests:

    class MyBackend(StepwiseBackend):
        name = "mine"
        ...
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Sequence
from typing import Any

import numpy as np

from infer.request import Request
from infer.sampling import Sampler
from laneformer.config import LaneformerConfig


class StepwiseBackend(ABC):
    """A :class:`infer.backends.base.Backend` made of :meth:`forward`.

    Prompts run in pieces of ``chunk_size`` tokens: memory for attention scores grows with the chunk, not
    with the prompt.
    """

    name: str
    config: LaneformerConfig
    weight_bytes_per_token: int | None = None
    chunk_size: int = 64

    @abstractmethod
    def new_cache(self) -> Any:
        """State of a request of which no token has run yet; :meth:`forward` changes it."""

    @abstractmethod
    def forward(self, token_ids: Sequence[int], cache: Any, *, last_only: bool = False) -> np.ndarray:
        """Run ``token_ids`` after those already in ``cache`` and add them to it.

        Returns float32 logits ``[len(token_ids), vocab]``, or ``[1, vocab]`` of the last position with
        ``last_only``.
        """

    def logits(self, token_ids: Sequence[int]) -> np.ndarray:
        """Logits of every position, float32 ``[sequence, vocab]``."""
        cache = self.new_cache()
        return np.concatenate([self.forward(chunk, cache) for chunk in self._chunks(token_ids)])

    def decode(self, request: Request) -> Generator[tuple[int, float], None, None]:
        """Yield (token id, log-probability) until a stop token or the limit."""
        limit = request.new_token_limit(self.config)
        if limit == 0:
            return
        sampler = Sampler(request, self.config.vocab_size)
        cache = self.new_cache()
        for chunk in self._chunks(request.token_ids):
            logits = self.forward(chunk, cache, last_only=True)
        for count in range(1, limit + 1):
            token_id, log_probability = sampler.choose(logits[-1])
            yield token_id, log_probability
            if count == limit or token_id in request.stop_token_ids:
                return
            logits = self.forward([token_id], cache, last_only=True)

    def _chunks(self, token_ids: Sequence[int]) -> Iterator[Sequence[int]]:
        for start in range(0, len(token_ids), self.chunk_size):
            yield token_ids[start : start + self.chunk_size]
