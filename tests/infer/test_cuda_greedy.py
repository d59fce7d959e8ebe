"""Greedy tokens of the CUDA back end are numpy's wherever 16 bits can tell the best from the next.

Numpy reads what the engine wrote in one go, so each token is compared given those before it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from infer.backends.numpy_backend import NumpyBackend
from infer.request import Request
from infer.weights import Weights
from tests.infer.cuda_kernels import GREEDY
from tests.infer.rounded import Rounded, rounded_cache
from tests.tiny_models import RandomWeights

SCALE = 0.07  # of weights with 256 columns
PROMPT_TOKENS, NEW_TOKENS = 100, 256
CLEAR_SHARE = 0.3  # of tokens whose choice must be clear, or the comparison says little


def made_up(seed: int, new_tokens: int = NEW_TOKENS) -> tuple[Weights, Request]:
    prompt = np.random.default_rng(seed).integers(GREEDY.vocab_size, size=PROMPT_TOKENS)
    request = Request(tuple(int(token) for token in prompt), max_new_tokens=new_tokens)
    return Rounded(RandomWeights(GREEDY, seed, SCALE)), request


def check_greedy(engine: Any, weights: Weights, request: Request) -> None:
    """Each token must be numpy's where its two best logits differ by more than two of them can be wrong."""
    found = list(engine.decode(request))
    tokens = np.array([token for token, _ in found])
    ids = [*request.token_ids, *tokens.tolist()]
    exact = NumpyBackend(weights).logits(ids[:-1])
    chosen_from = exact[len(request.token_ids) - 1 :]
    places = np.arange(len(tokens))
    # Logits of tokens read one by one; log-probabilities show what a prompt in chunks adds.
    error = float(np.abs(engine.logits(ids[:-1]) - exact).max())
    totals = np.log(np.exp(chosen_from - chosen_from.max(-1, keepdims=True)).sum(-1)) + chosen_from.max(-1)
    log_probabilities = np.array([value for _, value in found])
    decoding_error = float(np.abs(log_probabilities - (chosen_from[places, tokens] - totals)).max())
    second, best = np.partition(chosen_from, -2)[:, -2:].T
    clear = best - second > 2 * max(error, decoding_error)
    wrong = clear & (tokens != chosen_from.argmax(-1))
    differ = int((tokens != chosen_from.argmax(-1)).sum())
    print(f"errors {error:.1e}, {decoding_error:.1e} of {np.abs(exact).max():.1f}; {differ} tokens differ")
    print(f"{clear.mean():.0%} of the choices are clear")
    assert len(tokens) == request.max_new_tokens
    assert clear.mean() > CLEAR_SHARE
    assert not wrong.any(), f"other tokens than numpy's at {np.flatnonzero(wrong).tolist()}"


@pytest.mark.gpu
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_greedy_tokens_are_numpy_s(seed: int) -> None:
    from infer.backends.cuda_backend import CudaBackend

    weights, request = made_up(seed)
    check_greedy(CudaBackend(weights), weights, request)


class RoundedNumpy:
    """Numpy with keys and values in 16 bits, in place of the GPU, and one token that is wrong on purpose."""

    def __init__(self, weights: Weights, wrong_at: int | None = None) -> None:
        self._backend, self._wrong_at = NumpyBackend(weights), wrong_at

    def logits(self, ids: list[int]) -> np.ndarray:
        with rounded_cache():
            return self._backend.logits(ids)

    def decode(self, request: Request) -> Any:
        with rounded_cache():
            for place, (token, log_probability) in enumerate(self._backend.decode(request)):
                if place == self._wrong_at:
                    logits = self._backend.logits([*request.token_ids, *self.tokens])[-1]
                    yield int(logits.argsort()[-2]), log_probability - float(np.diff(np.sort(logits)[-2:])[0])
                    return
                self.tokens = [*(self.tokens if place else []), token]
                yield token, log_probability


def test_the_comparison_takes_16_bits_and_not_a_wrong_token() -> None:
    weights, request = made_up(0, new_tokens=40)
    check_greedy(RoundedNumpy(weights), weights, request)
    short = Request(request.token_ids, max_new_tokens=5)
    with pytest.raises(AssertionError, match=r"other tokens than numpy's at \[4\]"):
        check_greedy(RoundedNumpy(weights, wrong_at=4), weights, short)


def test_the_comparison_does_not_take_another_model() -> None:
    weights, request = made_up(0, new_tokens=40)
    with pytest.raises(AssertionError, match=r"> 0\.3"):
        check_greedy(RoundedNumpy(made_up(1)[0]), weights, request)
