"""Comparison with a trusted reference: tolerances, several right answers, and what JSON could not say."""

from __future__ import annotations

from typing import Any

import pytest

from evals.sandbox import reference
from evals.sandbox.reference import check_outputs, typed


def _right(
    found: Any, expected: Any, *, atol: float = 0.0, oracle: str = "equal", arguments: Any = ()
) -> bool:
    try:
        check_outputs(
            lambda *_: found, lambda *_: expected, [list(arguments)], types=[], atol=atol, oracle=oracle
        )
    except AssertionError:
        return False
    return True


@pytest.mark.parametrize(
    ("found", "expected", "atol", "right"),
    [
        (2, 2, 0, True),
        (2.0, 2, 0, True),
        ("a", "b", 0, False),
        (0.1 + 0.2, 0.3, 0, True),  # floats have 1e-6 where the problem names nothing
        (0.30001, 0.3, 0, False),
        (0.30005, 0.3, 1e-4, True),
        (1e9 + 50, 1e9, 0, True),  # and 1e-7 of the value
        (1e9 + 200, 1e9, 0, False),
        ([0.1, 0.2 + 1e-9], [0.1, 0.2], 0, True),
        ((0.1, 0.2 + 1e-9), [0.1, 0.2], 0, False),
        ([0.1], [0.1, 0.2], 0, False),
        ([[]], [0.5], 0, False),  # nothing, which broadcasts to anything
        ([[1.0, 2.0], [1.0, 2.0]], [1.0, 2.0], 0, False),
        ([[1.0], [1.0, 2.0]], [1.0, 2.0], 0, False),
        ([1, 2.5 + 1e-9], [1, 2.5], 0, False),  # not all floats
        ([1, 2.5 + 1e-9], [1, 2.5], 1e-6, True),
        (1 + 1e-9, 1, 1e-6, False),  # another type
        (float("nan"), 1.0, 0, False),
    ],
)
def test_tolerances(found: Any, expected: Any, atol: float, right: bool) -> None:
    assert _right(found, expected, atol=atol) is right


@pytest.mark.parametrize(
    ("oracle", "arguments", "found", "expected", "right"),
    [
        ("same set", (), [3, 1], (1, 3), True),
        ("same set", (), [3], (1, 3), False),
        ("truth of not None", (), "yes", "match", True),
        ("truth of not None", (), True, "match", True),
        ("truth of not None", (), False, "match", False),
        ("truth of not None", (), None, None, True),
        ("truth of not None", (), "yes", None, False),
        ("anything", (), 1, 2, True),
        ("or zero", (7,), 0, 1, True),
        ("or zero", (7,), 2, 1, False),
        ("root of the polynomial", ([-4, 0, 1],), -2.0, 2.0, True),
        ("root of the polynomial", ([-4, 0, 1],), 1.9, 2.0, False),
        ("or by perpendicular height", (6, 4), 96, 84, True),  # slant height 5
        ("or by perpendicular height", (6, 4), 84, 84, True),
        ("or by perpendicular height", (6, 4), 90, 84, False),
        ("or padded with zeros", (1, 256), 12, 9, True),  # 2 + 5 + 5
        ("or padded with zeros", (1, 256), 11, 9, False),
    ],
)
def test_problems_with_several_right_answers(
    oracle: str, arguments: Any, found: Any, expected: Any, right: bool
) -> None:
    assert _right(found, expected, oracle=oracle, arguments=arguments) is right


def test_neither_side_sees_what_the_other_did_to_the_arguments() -> None:
    def emptying(items: list[int]) -> int:
        count = len(items)
        items.clear()
        return count

    check_outputs(emptying, emptying, [[[1, 2]], [[3]]], types=[], atol=0, oracle="equal")
    with pytest.raises(AssertionError, match=r"input 2 of 2, \(\[3\]\): expected 1, found 2"):
        check_outputs(lambda items: 2, emptying, [[[1, 2]], [[3]]], types=[], atol=0, oracle="equal")


def test_an_answer_that_no_program_could_hand_in_is_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference.wire, "MAX_NODES", 10)
    asked = []

    def candidate(count: int) -> list[tuple[int, int]]:
        asked.append(count)
        return [(0, 0)] * count

    def right(count: int) -> list[tuple[int, int]]:
        return [(0, 0)] * count

    check_outputs(candidate, right, [[3], [4], [100]], types=[], atol=0, oracle="equal")
    assert asked == [3]


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        ([1, [2]], None, [1, [2]]),
        ([1, [2]], ("tuple", None), (1, [2])),
        ([[1], [2]], ("list", ("tuple", None)), [(1,), (2,)]),
        ([1, [2, [3]]], ("nested tuples", None), (1, (2, (3,)))),
        ({"a": [1]}, ("dict", ("tuple", None)), {"a": (1,)}),
        ("(1+2j)", ("complex", None), 1 + 2j),
        ("5", ("float", None), 5.0),
        ([[1, 2], [], {"a": 1}], ("list", ("set or empty dict", None)), [{1, 2}, {}, {}]),
        (7, ("tuple", None), 7),
    ],
)
def test_types_that_json_does_not_have(value: Any, kind: Any, expected: Any) -> None:
    found = typed(value, kind)
    assert found == expected and repr(found) == repr(expected)
