"""What a request refuses, and that it says what was found and what was expected."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from infer.request import Request
from laneformer.errors import RequestError
from tests.tiny_models import tiny_config


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"token_ids": ()}, "prompt is empty"),
        ({"token_ids": 5}, "token ids must be a sequence of whole numbers, found int"),
        ({"token_ids": (1, 2.0)}, r"token ids: expected whole numbers, found 2\.0"),
        ({"token_ids": ("1",)}, "token ids: expected whole numbers, found '1'"),
        ({"token_ids": (True,)}, "token ids: expected whole numbers, found True"),
        ({"stop_token_ids": (1.5,)}, "stop token ids: expected whole numbers, found 1.5"),
        ({"max_new_tokens": -1}, "max_new_tokens must be 0 or more, found -1"),
        ({"max_new_tokens": 1.5}, "max_new_tokens: expected whole numbers, found 1.5"),
        ({"top_k": -2}, "top_k must be 0 or more, found -2"),
        ({"seed": -3}, "seed must be 0 or more, found -3"),
        ({"seed": "x"}, "seed: expected whole numbers, found 'x'"),
        ({"temperature": -0.1}, "temperature must be 0 .* found -0.1"),
        ({"temperature": float("nan")}, "temperature must be a finite number, found nan"),
        ({"temperature": "hot"}, "temperature must be a number, found 'hot'"),
        ({"temperature": None}, "temperature must be a number, found None"),
        ({"top_p": 0.0}, "top_p must be above 0 and at most 1, found 0.0"),
        ({"top_p": 1.01}, "top_p must be above 0 and at most 1, found 1.01"),
        ({"min_p": -0.5}, "min_p must be between 0 and 1, found -0.5"),
        ({"min_p": 2}, "min_p must be between 0 and 1, found 2.0"),
        ({"repetition_penalty": 0}, "repetition_penalty must be from 0.001 to 1000.0, found 0.0"),
        ({"repetition_penalty": 1e300}, "repetition_penalty must be from 0.001 to 1000.0, found 1e.300"),
        ({"repetition_penalty": 1e-300}, "repetition_penalty must be from 0.001 to 1000.0, found 1e-300"),
        ({"repetition_penalty": float("inf")}, "repetition_penalty must be a finite number, found inf"),
    ],
)
def test_bad_values(values: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        Request(**({"token_ids": (1,), "max_new_tokens": 1} | values))


def test_numpy_numbers_become_plain_ones() -> None:
    request = Request(
        np.array([3, 4]), np.int64(2), temperature=np.float32(0.5), stop_token_ids=[np.int32(7)]
    )  # type: ignore[arg-type]
    assert request.token_ids == (3, 4)
    assert all(type(token_id) is int for token_id in request.token_ids)
    assert type(request.max_new_tokens) is int
    assert type(request.temperature) is float
    assert request.stop_token_ids == frozenset({7})


@pytest.mark.parametrize("token_id", [-1, 320, 10**12])
def test_ids_outside_the_vocabulary_are_named(token_id: int) -> None:
    with pytest.raises(RequestError, match=f"token id {token_id} at position 1 .* expected 0 to 319"):
        Request((0, token_id), max_new_tokens=1).check_fits(tiny_config())


def test_context() -> None:
    config = tiny_config(max_position_embeddings=8)
    with pytest.raises(RequestError, match="9 token ids exceed the context of 8"):
        Request((1,) * 9, max_new_tokens=0).check_fits(config)
    with pytest.raises(RequestError, match=r"8 tokens and the context is 8: .* at most 7"):
        Request((1,) * 8, max_new_tokens=1).check_fits(config)
    Request((1,) * 8, max_new_tokens=0).check_fits(config)
    Request((1,) * 7, max_new_tokens=1).check_fits(config)
    assert Request((1,) * 5, max_new_tokens=9).new_token_limit(config) == 3
    assert Request((1,) * 5, max_new_tokens=2).new_token_limit(config) == 2
