"""The unbiased estimate of pass@k.

The chance that at least one of k samples passes, estimated from n >= k samples of which c passed:
one minus the chance that k of them, drawn without replacement, all fail (Chen et al. 2021,
"Evaluating Large Language Models Trained on Code", equation 1).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import comb

from laneformer.errors import EvaluationError


def pass_at_k(samples: int, passed: int, k: int) -> float:
    """pass@k of one problem, in [0, 1], from ``passed`` of ``samples`` samples.

    Raises EvaluationError when there are fewer than ``k`` samples, for then no estimate exists.
    """
    if k < 1:
        raise EvaluationError(f"pass@{k} has no meaning: k must be at least 1")
    if not 0 <= passed <= samples:
        raise EvaluationError(f"{passed} of {samples} samples cannot have passed")
    if samples < k:
        raise EvaluationError(f"pass@{k} needs at least {k} samples of every problem, found {samples}")
    # Exact integers: n choose k overflows a float for the n that people use.
    return 1.0 - comb(samples - passed, k) / comb(samples, k)


def mean_pass_at_k(counts: Sequence[tuple[int, int]], k: int) -> float:
    """Mean pass@k over problems, each given as (samples, passed)."""
    if not counts:
        raise EvaluationError(f"pass@{k} of no problems has no meaning")
    return sum(pass_at_k(samples, passed, k) for samples, passed in counts) / len(counts)
