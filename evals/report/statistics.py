"""Intervals and paired tests, over problems.

Problems are what is drawn: two samples of one problem are no two observations of a model.  All
resampling is seeded, so the same run folder gives the same numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import comb

import numpy as np

from laneformer.errors import EvaluationError

CONFIDENCE = 0.95
DEFAULT_RESAMPLES = 10_000
_MOST_RESAMPLES = 10_000_000
_ROWS_AT_ONCE = 256  # 256 resamples of 974 problems are 2 MB; part of what a seed means, so fixed


def bootstrap_interval(
    values: Sequence[float],
    *,
    resamples: int = DEFAULT_RESAMPLES,
    seed: int = 0,
    confidence: float = CONFIDENCE,
) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean (Efron & Tibshirani 1993, chapter 13).

    ``values`` are one number per problem; each resample draws as many problems with replacement.  The
    bounds are the (1 -+ confidence) / 2 quantiles of the resampled means.  Where all values are the same,
    both bounds are that value: resampling cannot show what was not seen.  ValueError for no values or
    fewer than 1 resample.
    """
    if not len(values) or resamples < 1:
        raise ValueError(f"{len(values)} values and {resamples} resamples have no interval")
    array = np.asarray(values, dtype=np.float64)  # [problems]
    random = np.random.default_rng(seed)
    means = np.empty(resamples)
    for start in range(0, resamples, _ROWS_AT_ONCE):
        rows = min(_ROWS_AT_ONCE, resamples - start)
        drawn = random.integers(0, array.size, size=(rows, array.size))  # [resamples, problems]
        means[start : start + rows] = array[drawn].mean(axis=1)
    tail = (1 - confidence) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return float(low), float(high)


def check_resampling(resamples: int, seed: int) -> None:
    """EvaluationError for numbers from the command line that no bootstrap takes."""
    if not 1 <= resamples <= _MOST_RESAMPLES:
        raise EvaluationError(f"resamples must be 1 to {_MOST_RESAMPLES}, found {resamples}")
    if seed < 0:
        raise EvaluationError(f"seed must be 0 or more, found {seed}")


def mcnemar_p_value(only_first: int, only_second: int) -> float:
    """Two-sided p-value of McNemar's test, exact: binomial over the discordant pairs (McNemar 1947).

    ``only_first`` and ``only_second`` count the problems that only one of the two passed.  No discordant
    pair is no evidence: 1.
    """
    if min(only_first, only_second) < 0:
        raise ValueError(f"{only_first} and {only_second} are no counts")
    discordant = only_first + only_second
    tail = sum(comb(discordant, count) for count in range(min(only_first, only_second) + 1))
    # Integers until the last division: 2 ** 1100 is no float.
    return min(1.0, 2 * tail / 2**discordant)


def sign_flip_p_value(differences: Sequence[int]) -> float:
    """Two-sided p-value of the paired permutation test (Fisher 1935), exact for any number of problems.

    ``differences`` are whole numbers, one per problem: how many more samples the second run passed.  If
    the runs are alike, each difference could as well have had the other sign; the p-value is the share of
    all sign choices whose sum is at least as far from zero.  That share follows from the distribution of
    the sum, built up one problem at a time, so nothing is sampled.  For one sample per problem this is
    McNemar's test.
    """
    sizes = [abs(int(difference)) for difference in differences if difference]
    reach = sum(sizes)
    # chance[reach + s] is the chance of the sum s.
    chance = np.zeros(2 * reach + 1)
    chance[reach] = 1.0
    for size in sizes:
        added = np.zeros_like(chance)
        added[size:] += chance[: chance.size - size]
        added[: chance.size - size] += chance[size:]
        chance = added / 2
    observed = abs(int(sum(differences)))
    sums = np.abs(np.arange(-reach, reach + 1))
    return min(1.0, float(chance[sums >= observed].sum()))
