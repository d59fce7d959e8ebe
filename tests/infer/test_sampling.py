"""Sampling against distributions worked out by brute force, one token at a time."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest

from infer.request import Request
from infer.sampling import Sampler, distribution, log_probability
from laneformer.errors import LaneformerError

LOGITS = np.array([0.3, 2.0, -1.0, 2.0, 1.2, -3.0, 0.0, 1.9], dtype=np.float32)
DRAWS = 4000


def request(**values: Any) -> Request:
    return Request(**({"token_ids": (6,), "max_new_tokens": 1} | values))


def brute_force(logits: np.ndarray, **values: Any) -> dict[int, float]:
    """The documented order, in plain Python."""
    r = request(**values)
    weights = {i: math.exp(float(logit) / r.temperature) for i, logit in enumerate(logits)}

    def shares() -> dict[int, float]:
        total = sum(weights.values())
        return {i: weight / total for i, weight in weights.items()}

    ranked = sorted(weights, key=lambda i: (-weights[i], i))
    if r.top_k:
        weights = {i: weights[i] for i in ranked[: r.top_k]}
    if r.top_p < 1:
        kept, covered = [], 0.0
        for i in (i for i in ranked if i in weights):
            if covered >= r.top_p:
                break
            kept.append(i)
            covered += shares()[i]
        weights = {i: weights[i] for i in kept}
    if r.min_p:
        best = max(weights.values())
        weights = {i: weight for i, weight in weights.items() if weight >= r.min_p * best}
    return shares()


SETTINGS: list[dict[str, Any]] = [
    {"temperature": 1.0},
    {"temperature": 0.4},
    {"temperature": 3.0},
    {"temperature": 1.0, "top_k": 3},
    {"temperature": 1.0, "top_k": 2},  # ids 1 and 3 tie
    {"temperature": 1.0, "top_k": 1},
    {"temperature": 1.0, "top_k": 100},
    {"temperature": 1.0, "top_p": 0.6},
    {"temperature": 1.0, "top_p": 1e-9},
    {"temperature": 1.0, "min_p": 0.2},
    {"temperature": 1.0, "min_p": 1.0},
    {"temperature": 0.7, "top_k": 5, "top_p": 0.8, "min_p": 0.5},
]


@pytest.mark.parametrize("values", SETTINGS, ids=str)
def test_distribution(values: dict[str, Any]) -> None:
    expected = brute_force(LOGITS, **values)
    ids, probabilities = distribution(LOGITS, request(**values))
    assert sorted(ids.tolist()) == sorted(expected)
    for token_id, probability in zip(ids.tolist(), probabilities, strict=True):
        assert probability == pytest.approx(expected[token_id], rel=1e-9)


@pytest.mark.parametrize("values", SETTINGS, ids=str)
def test_draws_follow_the_distribution(values: dict[str, Any]) -> None:
    expected = brute_force(LOGITS, **values)
    sampler = Sampler(request(**values, seed=11), len(LOGITS))
    counts = Counter(sampler.choose(LOGITS)[0] for _ in range(DRAWS))
    assert set(counts) <= set(expected)
    chi_square = sum((counts[i] - DRAWS * p) ** 2 / (DRAWS * p) for i, p in expected.items())
    freedom = len(expected) - 1
    # Mean plus five standard deviations of the chi-square distribution; the seed is fixed.
    assert chi_square <= freedom + 5 * math.sqrt(2 * freedom)


def test_the_order_matters_where_documented() -> None:
    """Temperature before top-p: a flat distribution needs more tokens for the same share."""
    cold, _ = distribution(LOGITS, request(temperature=0.1, top_p=0.6))
    hot, _ = distribution(LOGITS, request(temperature=10.0, top_p=0.6))
    assert len(cold) < len(hot)


def test_greedy_takes_the_lowest_of_equals_and_ignores_truncation() -> None:
    sampler = Sampler(request(top_k=3, top_p=0.1, min_p=0.9, seed=5), len(LOGITS))
    assert {sampler.choose(LOGITS)[0] for _ in range(5)} == {1}


def test_top_k_and_top_p_take_the_lowest_of_many_equals() -> None:
    logits = np.tile(np.array([0.0, 1.0], dtype=np.float32), 500)  # long enough for an unstable sort to show
    for values in ({"top_k": 5}, {"top_p": 0.0063}):
        ids, _ = distribution(logits, request(token_ids=(0,), temperature=1.0, **values))
        assert ids.tolist() == [1, 3, 5, 7, 9]


def test_repetition_penalty_over_prompt_and_generated_tokens() -> None:
    logits = np.array([2.0, 1.9, -1.0, -1.1, 0.5], dtype=np.float32)
    sampler = Sampler(request(token_ids=(0, 2), repetition_penalty=2.0), len(logits))
    np.testing.assert_allclose(sampler._penalised(logits), [1.0, 1.9, -2.0, -1.1, 0.5], rtol=1e-6)
    assert sampler.choose(logits)[0] == 1  # 0 was in the prompt
    assert sampler.choose(logits)[0] == 0  # now 1 has occurred too: 1.0 against 0.95
    np.testing.assert_allclose(sampler._penalised(logits), [1.0, 0.95, -2.0, -1.1, 0.5], rtol=1e-6)


def test_seed() -> None:
    def draw(seed: int) -> list[int]:
        sampler = Sampler(request(temperature=1.0, seed=seed), len(LOGITS))
        return [sampler.choose(LOGITS)[0] for _ in range(40)]

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)


def test_tiny_temperature_is_greedy_without_overflow(recwarn: pytest.WarningsRecorder) -> None:
    logits = np.array([500.0, 1.0, 499.0], dtype=np.float32)
    for temperature in (1e-300, 1e-308, 5e-324):
        sampler = Sampler(request(token_ids=(0,), temperature=temperature), 3)
        assert {sampler.choose(logits)[0] for _ in range(20)} == {0}
    assert not recwarn.list


def test_log_probability_is_that_of_the_raw_logits() -> None:
    sampler = Sampler(request(temperature=0.2, top_k=1, repetition_penalty=1.3, token_ids=(1,)), len(LOGITS))
    token_id, found = sampler.choose(LOGITS)
    assert token_id == 3  # 1 is penalised
    assert found == pytest.approx(math.log(brute_force(LOGITS, temperature=1.0)[3]), abs=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_logits_that_are_not_finite(bad: float) -> None:
    with pytest.raises(LaneformerError, match="logits are not finite"), np.errstate(invalid="ignore"):
        log_probability(np.array([1.0, bad], dtype=np.float32), 1)


@pytest.mark.parametrize("penalty", [0.001, 1000.0])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_largest_penalties_choose_from_finite_logits(
    penalty: float, temperature: float, recwarn: pytest.WarningsRecorder
) -> None:
    sampler = Sampler(request(token_ids=(0, 1), repetition_penalty=penalty, temperature=temperature), 3)
    logits = np.array([500.0, -500.0, 499.0], dtype=np.float32)
    assert np.isfinite(sampler._penalised(logits)).all()
    assert sampler.choose(logits)[0] == (0 if penalty < 1 else 2)
    assert not recwarn.list
