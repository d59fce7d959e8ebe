"""Greedy tokens of the CUDA back end are numpy's wherever 16 bits can tell the best from the next."""

from __future__ import annotations

from collections.abc import Generator, Sequence

import numpy as np
import pytest

from infer.backends.numpy_backend import NumpyBackend
from infer.bench.agreement import Agreement, greedy_agreement
from infer.request import Request
from infer.weights import Weights
from tests.infer.cuda_kernels import GREEDY
from tests.infer.rounded import Rounded, rounded_cache
from tests.tiny_models import RandomWeights

SCALE = 0.07  # of weights with 256 columns
PROMPT_TOKENS, NEW_TOKENS = 190, 256  # a whole chunk and a part of one
CLEAR_SHARE = 0.3  # of tokens whose choice must be clear, or the comparison says little


def made_up(seed: int, new_tokens: int = NEW_TOKENS) -> tuple[Weights, Request]:
    prompt = np.random.default_rng(seed).integers(GREEDY.vocab_size, size=PROMPT_TOKENS)
    request = Request(tuple(int(token) for token in prompt), max_new_tokens=new_tokens)
    return Rounded(RandomWeights(GREEDY, seed, SCALE)), request


def check(found: Agreement) -> None:
    print(found)
    assert found.clear_share > CLEAR_SHARE
    assert not found.wrong


@pytest.mark.gpu
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_greedy_tokens_are_numpy_s(seed: int) -> None:
    from infer.backends.cuda_backend import CudaBackend

    weights, request = made_up(seed)
    found = greedy_agreement(CudaBackend(weights), NumpyBackend(weights), request)
    check(found)
    assert found.tokens == NEW_TOKENS


class RoundedNumpy(NumpyBackend):
    """Numpy with keys and values in 16 bits, in place of the GPU, and one token that is wrong on purpose."""

    def __init__(self, weights: Weights, wrong_at: int | None = None) -> None:
        super().__init__(weights)
        self._wrong_at = wrong_at

    def logits(self, token_ids: Sequence[int]) -> np.ndarray:
        with rounded_cache():
            return super().logits(token_ids)

    def decode(self, request: Request) -> Generator[tuple[int, float], None, None]:
        ids = list(request.token_ids)
        with rounded_cache():
            for place, (token, log_probability) in enumerate(super().decode(request)):
                if place == self._wrong_at:
                    logits = super().logits(ids)[-1]
                    second, best = np.argsort(logits)[-2:]
                    yield int(second), log_probability - float(logits[best] - logits[second])
                    return
                ids.append(token)
                yield token, log_probability


def test_the_comparison_takes_16_bits_and_not_a_wrong_token() -> None:
    weights, request = made_up(0, new_tokens=40)
    check(greedy_agreement(RoundedNumpy(weights), NumpyBackend(weights), request))
    short = Request(request.token_ids, max_new_tokens=5)
    found = greedy_agreement(RoundedNumpy(weights, wrong_at=4), NumpyBackend(weights), short)
    assert found.differing == found.wrong == (4,)


def test_the_comparison_does_not_take_another_model() -> None:
    weights, request = made_up(0, new_tokens=40)
    found = greedy_agreement(RoundedNumpy(made_up(1)[0]), NumpyBackend(weights), request)
    assert found.clear == 0 and len(found.differing) > 30
