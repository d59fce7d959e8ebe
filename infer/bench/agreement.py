"""Whether one back end's greedy tokens are another's, wherever rounding cannot decide.

The reference reads prompt and answer in one go, so each token is compared given those before it, and an
answer of hundreds of tokens costs the reference one prompt.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from infer.backends.base import Backend
from infer.request import Request


@dataclass(frozen=True)
class Agreement:
    """One greedy answer against the reference.

    A choice is clear where the reference's two best logits differ by more than twice the error that was
    measured.  ``differing`` are places in the answer at which the reference has another best token,
    ``wrong`` the clear ones among them.
    """

    tokens: int
    clear: int
    differing: tuple[int, ...]
    wrong: tuple[int, ...]
    logit_error: float  # largest, over all positions, tokens read one by one
    log_probability_error: float  # largest, of the chosen tokens; what a prompt in chunks adds shows here
    largest_logit: float

    @property
    def clear_share(self) -> float:
        """Part of the tokens whose choice is clear; where it is small, the comparison says little."""
        return self.clear / self.tokens


def greedy_agreement(backend: Backend, reference: Backend, request: Request) -> Agreement:
    """Answer ``request``, which must be greedy, without penalty and of a token or more, and compare."""
    found = list(backend.decode(request))
    tokens = np.array([token for token, _ in found])
    ids = [*request.token_ids, *tokens.tolist()][:-1]
    exact = reference.logits(ids)
    logit_error = float(np.abs(backend.logits(ids) - exact).max())
    answer = exact[len(request.token_ids) - 1 :]
    best = answer.max(-1)
    totals = best + np.log(np.exp(answer - best[:, None]).sum(-1))
    log_probabilities = np.array([log_probability for _, log_probability in found])
    chosen = answer[np.arange(len(tokens)), tokens]
    log_probability_error = float(np.abs(log_probabilities - (chosen - totals)).max())
    second = np.partition(answer, -2)[:, -2]
    clear = best - second > 2 * max(logit_error, log_probability_error)
    differing = answer.argmax(-1) != tokens
    return Agreement(
        tokens=len(tokens),
        clear=int(clear.sum()),
        differing=tuple(np.flatnonzero(differing).tolist()),
        wrong=tuple(np.flatnonzero(differing & clear).tolist()),
        logit_error=logit_error,
        log_probability_error=log_probability_error,
        largest_logit=float(np.abs(exact).max()),
    )
