from __future__ import annotations

from itertools import combinations

import pytest

from evals.passk import mean_pass_at_k, pass_at_k
from laneformer.errors import EvaluationError


@pytest.mark.parametrize("samples", range(1, 8))
def test_equals_the_share_of_draws_that_hold_a_pass(samples: int) -> None:
    for passed in range(samples + 1):
        outcomes = [True] * passed + [False] * (samples - passed)
        for k in range(1, samples + 1):
            draws = list(combinations(outcomes, k))
            expected = sum(any(draw) for draw in draws) / len(draws)
            assert pass_at_k(samples, passed, k) == pytest.approx(expected, abs=1e-12)


def test_many_samples_do_not_overflow() -> None:
    assert pass_at_k(10_000, 1, 5_000) == pytest.approx(0.5, abs=1e-12)


@pytest.mark.parametrize(("samples", "passed", "k"), [(3, 3, 4), (0, 0, 1), (3, 1, 0), (3, 4, 1), (3, -1, 1)])
def test_refuses_what_has_no_estimate(samples: int, passed: int, k: int) -> None:
    with pytest.raises(EvaluationError):
        pass_at_k(samples, passed, k)


def test_mean_weighs_problems_equally() -> None:
    assert mean_pass_at_k([(2, 2), (10, 0)], 1) == 0.5
    with pytest.raises(EvaluationError):
        mean_pass_at_k([], 1)
    with pytest.raises(EvaluationError):
        mean_pass_at_k([(10, 10), (1, 1)], 2)
