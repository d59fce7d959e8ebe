"""What a back end is asked to do: one prompt, how many tokens, how to choose them, where to stop.

A :class:`Request` is checked when it is made, against the model by :meth:`Request.check_fits`; after
that a back end may trust every value in it.

    request = Request((1, 17, 4), max_new_tokens=32, temperature=0.7, seed=3)
    request.check_fits(config)
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from dataclasses import dataclass

from laneformer.config import LaneformerConfig
from laneformer.errors import RequestError

PENALTY_RANGE = (0.001, 1000.0)  # logits divided or multiplied by it stay finite in float32


@dataclass(frozen=True)
class Request:
    """One generation request in token ids.  Raises :class:`RequestError` for a value that makes no sense.

    ``temperature`` 0 takes the most probable token and makes ``top_k``, ``top_p`` and ``min_p`` idle.
    ``top_k`` 0, ``top_p`` 1, ``min_p`` 0 and ``repetition_penalty`` 1, from 0.001 to 1000, each mean "off".
    The back end ends after the first token that is in ``stop_token_ids``, which it still yields.
    """

    token_ids: tuple[int, ...]
    max_new_tokens: int
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0
    stop_token_ids: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        object.__setattr__(self, "token_ids", whole_numbers("token ids", self.token_ids))
        stop_token_ids = whole_numbers("stop token ids", self.stop_token_ids)
        object.__setattr__(self, "stop_token_ids", frozenset(stop_token_ids))
        if not self.token_ids:
            raise RequestError("the prompt is empty: give at least one token id")
        for name in ("max_new_tokens", "top_k", "seed"):
            value = _whole_number(name, getattr(self, name))
            if value < 0:
                raise RequestError(f"{name} must be 0 or more, found {value}")
            object.__setattr__(self, name, value)
        for name in ("temperature", "top_p", "min_p", "repetition_penalty"):
            object.__setattr__(self, name, _finite_number(name, getattr(self, name)))
        if self.temperature < 0:
            raise RequestError(f"temperature must be 0 (greedy) or more, found {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise RequestError(f"top_p must be above 0 and at most 1, found {self.top_p}")
        if not 0 <= self.min_p <= 1:
            raise RequestError(f"min_p must be between 0 and 1, found {self.min_p}")
        low, high = PENALTY_RANGE
        if not low <= self.repetition_penalty <= high:
            raise RequestError(
                f"repetition_penalty must be from {low} to {high}, found {self.repetition_penalty}"
            )

    def check_fits(self, config: LaneformerConfig) -> None:
        """:class:`RequestError` where the model's vocabulary or context cannot hold this request."""
        check_token_ids(self.token_ids, config)
        context = config.max_position_embeddings
        if self.max_new_tokens > 0 and len(self.token_ids) + 1 > context:
            raise RequestError(
                f"the prompt has {len(self.token_ids)} tokens and the context is {context}: no room for "
                f"a new token; shorten the prompt to at most {context - 1}"
            )

    def new_token_limit(self, config: LaneformerConfig) -> int:
        """Tokens that can be generated: ``max_new_tokens``, or fewer where the context fills before."""
        return min(self.max_new_tokens, config.max_position_embeddings - len(self.token_ids))


def check_token_ids(token_ids: tuple[int, ...], config: LaneformerConfig) -> None:
    """:class:`RequestError` for no ids, for ids outside the vocabulary or for more than the context holds."""
    if not token_ids:
        raise RequestError("the prompt is empty: give at least one token id")
    for position, token_id in enumerate(token_ids):
        if not 0 <= token_id < config.vocab_size:
            raise RequestError(
                f"token id {token_id} at position {position} is outside the vocabulary: "
                f"expected 0 to {config.vocab_size - 1}"
            )
    if len(token_ids) > config.max_position_embeddings:
        raise RequestError(
            f"{len(token_ids)} token ids exceed the context of {config.max_position_embeddings}: "
            "shorten the prompt"
        )


def check_unicode(name: str, text: str) -> None:
    """:class:`RequestError` for a text with surrogates, which no tokenizer takes and no answer holds."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise RequestError(
            f"{name}: {text!r} is not valid Unicode (at position {error.start}); give UTF-8 text"
        ) from None


def whole_numbers(name: str, values: Iterable[object]) -> tuple[int, ...]:
    """A tuple of plain ints from anything that yields whole numbers, numpy's included."""
    try:
        listed = list(values)
    except TypeError:
        raise RequestError(
            f"{name} must be a sequence of whole numbers, found {type(values).__name__}"
        ) from None
    return tuple(_whole_number(name, value) for value in listed)


def _whole_number(name: str, value: object) -> int:
    try:
        if isinstance(value, bool):  # an int to Python, never meant as one here
            raise TypeError
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise RequestError(f"{name}: expected whole numbers, found {value!r}") from None


def _finite_number(name: str, value: object) -> float:
    try:
        if isinstance(value, bool | str):
            raise TypeError
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        raise RequestError(f"{name} must be a number, found {value!r}") from None
    if not math.isfinite(number):
        raise RequestError(f"{name} must be a finite number, found {value!r}")
    return number
