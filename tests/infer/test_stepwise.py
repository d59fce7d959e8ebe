"""The loop around a model that only knows ``forward``, here one without any cache of keys."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from infer import Engine
from infer.backends import StepwiseBackend
from infer.request import Request
from tests.tiny_models import tiny_config


class Successor(StepwiseBackend):
    """Prefers the last token plus the number of tokens so far; its cache is the list of ids."""

    name = "successor"

    def __init__(self) -> None:
        self.config = tiny_config()
        self.calls: list[tuple[list[int], bool]] = []

    def new_cache(self) -> list[int]:
        return []

    def forward(self, token_ids: Sequence[int], cache: list[int], *, last_only: bool = False) -> np.ndarray:
        self.calls.append((list(token_ids), last_only))
        logits = np.zeros((len(token_ids), self.config.vocab_size), dtype=np.float32)
        for row, token_id in enumerate(token_ids):
            cache.append(token_id)
            logits[row, token_id + len(cache)] = 1.0
        return logits[-1:] if last_only else logits


def test_tokens_run_once_each_and_the_last_not_at_all() -> None:
    backend = Successor()
    backend.chunk_size = 2
    found = [token_id for token_id, _ in backend.decode(Request((1, 2, 3), max_new_tokens=3))]
    assert found == [6, 10, 15]
    assert backend.calls == [([1, 2], True), ([3], True), ([6], True), ([10], True)]


def test_nothing_runs_for_no_tokens_and_requests_do_not_share_a_cache() -> None:
    backend = Successor()
    assert list(backend.decode(Request((1,), max_new_tokens=0))) == []
    assert backend.calls == []
    request = Request((1, 2), max_new_tokens=4)
    assert list(backend.decode(request)) == list(backend.decode(request))


def test_in_an_engine() -> None:
    engine = Engine.from_backend(Successor())
    assert engine.backend_name == "successor"
    assert engine.logits([5, 5]).argmax(axis=1).tolist() == [6, 7]
    tokens = list(engine.generate([5], max_new_tokens=9, stop=8))
    assert [(token.token_id, token.finish_reason) for token in tokens] == [(6, None), (8, "stop")]
    assert tokens[0].logprob == pytest.approx(1 - np.log(np.e + 319), abs=1e-6)
