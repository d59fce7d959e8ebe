"""Choosing the next token from logits.

The order is the one that the field's generation libraries share; every step sees only the tokens and
the probabilities that the step before it left:

1. repetition penalty: the logit of each token of the prompt or generated so far is divided by the
   penalty where positive, multiplied where negative (Keskar et al. 2019, "CTRL");
2. temperature 0: the largest logit, ties to the lowest id, and nothing of what follows;
3. temperature: logits are divided by it;
4. top-k: the k largest logits, ties to the lowest id;
5. top-p: the smallest set of most probable tokens whose probabilities add up to at least p
   (Holtzman et al. 2020);
6. min-p: tokens at least ``min_p`` times as probable as the most probable one (Nguyen et al. 2024);
7. one uniform number per token, from numpy's ``default_rng(seed)``, picks by the cumulative
   distribution of what is left, most probable first where step 4 or 5 sorted it, else by id.

One number per token means that a back end can be given all of them before it starts.
"""

from __future__ import annotations

import numpy as np

from infer.request import Request
from laneformer.errors import LaneformerError


class Sampler:
    """State of one request's choices: its random numbers and which tokens have occurred."""

    def __init__(self, request: Request, vocab_size: int) -> None:
        self._request = request
        self._random = np.random.default_rng(request.seed)
        self._occurred = np.zeros(vocab_size, dtype=bool)
        self._occurred[list(request.token_ids)] = True

    def choose(self, logits: np.ndarray) -> tuple[int, float]:
        """Next token from float32 ``[vocab]`` logits, and its log-probability (nats) under those logits.

        The log-probability is that of the model: taken before penalty, temperature and truncation.
        """
        token_id = self._pick(self._penalised(logits))
        self._occurred[token_id] = True
        return token_id, log_probability(logits, token_id)

    def _pick(self, logits: np.ndarray) -> int:
        if self._request.temperature == 0:
            return int(np.argmax(logits))
        ids, probabilities = distribution(logits, self._request)
        cumulative = np.cumsum(probabilities)
        place = np.searchsorted(cumulative, self._random.random() * cumulative[-1], side="right")
        return int(ids[min(place, len(ids) - 1)])  # the product can round up to the total

    def _penalised(self, logits: np.ndarray) -> np.ndarray:
        penalty = self._request.repetition_penalty
        if penalty == 1.0:
            return logits
        changed = np.where(logits > 0, logits / np.float32(penalty), logits * np.float32(penalty))
        return np.where(self._occurred, changed, logits)


def distribution(logits: np.ndarray, request: Request) -> tuple[np.ndarray, np.ndarray]:
    """Token ids that stay after steps 3 to 6 and their probabilities, float64, adding up to 1."""
    scaled = logits.astype(np.float64)
    # The largest first goes to 0, so that a tiny temperature gives minus infinity and never overflows up.
    with np.errstate(over="ignore"):
        scaled = (scaled - scaled.max()) / request.temperature
    ids = np.arange(len(scaled))
    if request.top_k > 0 or request.top_p < 1:
        ids = np.argsort(-scaled, kind="stable")  # stable: equal logits stay in order of id
    if request.top_k > 0:
        ids = ids[: request.top_k]
    probabilities = _normalised(np.exp(scaled[ids]))
    if request.top_p < 1:
        before = np.cumsum(probabilities) - probabilities  # what the more probable ones already cover
        keep = before < request.top_p
        ids, probabilities = ids[keep], _normalised(probabilities[keep])
    if request.min_p > 0:
        keep = probabilities >= request.min_p * probabilities.max()
        ids, probabilities = ids[keep], _normalised(probabilities[keep])
    return ids, probabilities


def log_probability(logits: np.ndarray, token_id: int) -> float:
    """Log-softmax of float32 ``[vocab]`` logits at one token, in nats."""
    shifted = logits - logits.max()
    value = float(shifted[token_id]) - float(np.log(np.exp(shifted).sum(dtype=np.float64)))
    if not np.isfinite(value):
        raise LaneformerError("the model's logits are not finite: its weights are too large for float32")
    return value


def _normalised(weights: np.ndarray) -> np.ndarray:
    return weights / weights.sum()
