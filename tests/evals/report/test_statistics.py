"""Intervals and tests against closed forms and enumeration."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evals.report.statistics import bootstrap_interval, mcnemar_p_value, sign_flip_p_value


def test_the_bootstrap_of_zeros_and_ones_has_binomial_quantiles() -> None:
    # The resampled mean of n zeros and ones with share p is Binomial(n, p) / n.
    problems, share = 164, 0.25
    values = [1.0] * 41 + [0.0] * 123
    low, high = bootstrap_interval(values, resamples=100_000, seed=3)
    chances = [
        math.comb(problems, count) * share**count * (1 - share) ** (problems - count)
        for count in range(problems + 1)
    ]
    cumulative = np.cumsum(chances)
    expected_low, expected_high = (int(np.searchsorted(cumulative, tail)) for tail in (0.025, 0.975))
    # 100,000 draws place a quantile to within one problem.
    assert abs(low * problems - expected_low) <= 1
    assert abs(high * problems - expected_high) <= 1


def test_the_bootstrap_is_seeded_and_knows_no_width_where_there_is_none() -> None:
    values = [0.0, 0.5, 1.0, 1.0]
    assert bootstrap_interval(values, seed=1) == bootstrap_interval(values, seed=1)
    assert bootstrap_interval(values, seed=1, resamples=37) != bootstrap_interval(
        values, seed=2, resamples=37
    )
    assert bootstrap_interval([0.25] * 9) == (0.25, 0.25)
    with pytest.raises(ValueError, match="0 values"):
        bootstrap_interval([])
    with pytest.raises(ValueError, match="0 resamples"):
        bootstrap_interval(values, resamples=0)


@pytest.mark.parametrize(
    ("only_first", "only_second", "expected"),
    [
        (0, 0, 1.0),
        (1, 0, 1.0),
        (5, 0, 2 / 32),
        (0, 6, 2 / 64),
        (1, 7, 2 * (1 + 8) / 256),
        (3, 3, 1.0),
        (2, 10, 2 * (1 + 12 + 66) / 4096),
    ],
)
def test_mcnemar_is_the_binomial_tail(only_first: int, only_second: int, expected: float) -> None:
    assert mcnemar_p_value(only_first, only_second) == expected


def test_mcnemar_takes_more_pairs_than_a_float_has_powers_of_two() -> None:
    assert 0 < mcnemar_p_value(900, 1100) < 1e-4
    with pytest.raises(ValueError, match="no counts"):
        mcnemar_p_value(-1, 2)


@given(st.lists(st.integers(-5, 5), max_size=9))
def test_sign_flips_equal_the_enumeration_of_all_signs(differences: list[int]) -> None:
    signs = list(itertools.product((-1, 1), repeat=len(differences)))
    sums = [sum(sign * abs(d) for sign, d in zip(choice, differences, strict=True)) for choice in signs]
    expected = sum(abs(total) >= abs(sum(differences)) for total in sums) / len(signs)
    assert sign_flip_p_value(differences) == pytest.approx(expected, rel=1e-12)


@given(st.integers(0, 60), st.integers(0, 60))
def test_sign_flips_of_single_samples_are_mcnemar(only_first: int, only_second: int) -> None:
    differences = [-1] * only_first + [1] * only_second + [0] * 5
    assert sign_flip_p_value(differences) == pytest.approx(mcnemar_p_value(only_first, only_second), rel=1e-9)


def test_sign_flips_of_many_problems_stay_exact() -> None:
    # 974 problems of 20 samples, all better by 3: only all signs alike are as far out.
    assert sign_flip_p_value([3] * 974) == pytest.approx(2.0 * 0.5**974, rel=1e-9)
