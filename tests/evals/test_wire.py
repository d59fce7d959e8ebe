from __future__ import annotations

import itertools
import json
import re
import socket
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from decimal import Decimal
from enum import IntEnum
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evals.sandbox import wire

_scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.complex_numbers(allow_nan=False)
    | st.text(st.characters())
    | st.binary()
    | st.fractions()
    | st.decimals(allow_nan=False)
)
_keys = st.recursive(
    _scalars, lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3), max_leaves=4
)
_values = st.recursive(
    _keys,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.lists(inner, max_size=4).map(deque)
        | st.dictionaries(_keys, inner, max_size=4)
        | st.sets(_keys, max_size=4)
    ),
    max_leaves=15,
)


def _same(left: Any, right: Any) -> bool:
    """Equal, and of the same types all the way down: 1, 1.0 and True differ."""
    if type(left) is not type(right) or left != right:
        return False
    if isinstance(left, (list, tuple, deque)):
        return all(map(_same, left, right))
    if isinstance(left, dict):
        return all(map(_same, left.values(), right.values())) and all(map(_same, left, right))
    if isinstance(left, float):
        return str(left) == str(right)  # The sign of zero too.
    return True


@given(_values)
@settings(max_examples=300, deadline=None)
def test_plain_values_arrive_unchanged(value: Any) -> None:
    assert _same(wire.loads(wire.dumps(value)), value)


def test_not_a_number_and_infinities_arrive() -> None:
    nan, positive, negative = wire.loads(wire.dumps((float("nan"), float("inf"), float("-inf"))))
    assert nan != nan and positive == float("inf") and negative == float("-inf")


@pytest.mark.parametrize(
    "value", [10**5000, -(10**5000), 2**63, -(2**63), "\ud800", range(2, 10, 3)], ids=range(6)
)
def test_values_that_json_alone_would_lose(value: Any) -> None:
    assert _same(wire.loads(wire.dumps(value)), value)


Point = namedtuple("Point", "x y")


class Color(IntEnum):
    RED = 3


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Counter("aab"), {"a": 2, "b": 1}),
        (OrderedDict(b=1, a=2), {"b": 1, "a": 2}),
        (defaultdict(list, a=[1]), {"a": [1]}),
        (Point(1, 2), (1, 2)),
        (Color.RED, 3),
        (deque([1, 2], maxlen=2), deque([1, 2])),
        (bytearray(b"ab"), b"ab"),
        (Decimal("1.50"), Decimal("1.50")),
        (Fraction(1, 3), Fraction(1, 3)),
    ],
)
def test_standard_types_cross_as_what_they_extend(value: Any, expected: Any) -> None:
    assert _same(wire.loads(wire.dumps(value)), expected)


class _Count:
    def __init__(self) -> None:
        self._next = 0

    def __iter__(self) -> _Count:
        return self

    def __next__(self) -> int:
        if self._next == 3:
            raise StopIteration
        self._next += 1
        return self._next


@pytest.mark.parametrize(
    ("value", "items"),
    [
        (itertools.chain([1], [2]), [1, 2]),
        (itertools.islice(itertools.count(), 2), [0, 1]),
        (itertools.accumulate([1, 2]), [1, 3]),
        (iter(b"ab"), [97, 98]),
        (iter("é"), ["é"]),
        (_Count(), [1, 2, 3]),
    ],
)
def test_iterators_of_all_kinds_cross(value: Any, items: list[Any]) -> None:
    assert list(wire.loads(wire.dumps(value))) == items


def test_iterators_stay_iterators() -> None:
    arrived = wire.loads(wire.dumps(x * x for x in range(3)))
    assert arrived != [0, 1, 4]
    assert list(arrived) == [0, 1, 4]
    assert list(wire.loads(wire.dumps({"a": 1}.items()))) == [("a", 1)]


def test_numpy_values_cross_as_plain_ones() -> None:
    numpy = pytest.importorskip("numpy")
    value = (numpy.int64(3), numpy.float32(0.5), numpy.bool_(True), numpy.array([[1, 2]]), numpy.array(4))
    assert _same(wire.loads(wire.dumps(value)), (3, 0.5, True, [[1, 2]], 4))


class AlwaysEqual:
    def __eq__(self, other: object) -> bool:
        return True


class LyingInteger(int):
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = int.__hash__


def test_objects_do_not_cross_and_lying_subclasses_lose_their_lie() -> None:
    with pytest.raises(wire.WireError, match="AlwaysEqual"):
        wire.dumps([AlwaysEqual()])
    assert wire.loads(wire.dumps(LyingInteger(7))) != 8


def test_depth_and_size_are_bounded() -> None:
    nested: list[Any] = []
    nested.append(nested)
    with pytest.raises(wire.WireError, match="deeper"):
        wire.dumps(nested)
    with pytest.raises(wire.WireError, match="items"):
        wire.dumps(0 for _ in iter(int, 1))
    with pytest.raises(wire.WireError, match="bytes"):
        wire.dumps("x" * (wire.MAX_FRAME_BYTES + 1))


def _nested(levels: int) -> bytes:
    return b'["list",[' * levels + b"]]" * levels


def test_depth_and_size_of_what_arrives_are_bounded_alike() -> None:
    deepest = wire.loads(_nested(wire.MAX_DEPTH + 1))  # the innermost is at the last depth
    assert wire.dumps(deepest) == _nested(wire.MAX_DEPTH + 1)
    for levels in (wire.MAX_DEPTH + 2, 300, 20_000):
        with pytest.raises(wire.WireError, match=r"deeper|RecursionError"):
            wire.loads(_nested(levels))
    in_dicts = b'["dict",[[1,' * (wire.MAX_DEPTH + 1) + b"1" + b"]]]" * (wire.MAX_DEPTH + 1)
    with pytest.raises(wire.WireError, match="deeper"):
        wire.loads(in_dicts)
    most = b'["tuple",[' + b"0," * (wire.MAX_NODES - 2) + b"0]]"
    assert wire.dumps(wire.loads(most)) == most
    with pytest.raises(wire.WireError, match="items"):
        wire.loads(most.replace(b"[0,", b"[0,0,", 1))


_junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=3), inner, max_size=2)
        | st.tuples(st.sampled_from(["int", "dict", "set", "range", "bytes", "decimal", "fraction"]), inner)
    ),
    max_leaves=8,
)


@given(st.binary(max_size=40) | _junk.map(lambda node: json.dumps(node).encode()))
@settings(max_examples=400, deadline=None)
def test_hostile_bytes_give_a_plain_value_or_an_error(data: bytes) -> None:
    try:
        value = wire.loads(data)
    except wire.WireError:
        return
    wire.dumps(value)  # Plain enough to be sent on.


@pytest.mark.parametrize(
    "data", [b"{}", b'["list",[{}]]', b'["nothing",1]', b"[1]", b"[" * 100_000, b'"\\ud8']
)
def test_malformed_messages_are_refused(data: bytes) -> None:
    with pytest.raises(wire.WireError):
        wire.loads(data)


def test_frames_survive_fragmentation_and_end_cleanly() -> None:
    left, right = socket.socketpair()
    with left, right:
        frame = (5).to_bytes(4, "big") + b"hello"
        left.sendall(frame[:2])
        left.sendall(frame[2:])
        assert wire.receive(right) == b"hello"
        left.sendall(b"\xff\xff\xff\xff")
        with pytest.raises(wire.WireError):
            wire.receive(right)
        left.sendall(frame[:6])
        left.close()
        with pytest.raises(EOFError):
            wire.receive(right)


@pytest.mark.parametrize(
    "kind", [bool, int, float, complex, str, bytes, list, tuple, dict, set, frozenset, range]
)
def test_builtin_types_cross_as_themselves(kind: type) -> None:
    assert wire.loads(wire.dumps([kind])) == [kind]


def test_other_types_do_not_cross() -> None:
    class Own(int):
        pass

    for kind in (Own, type, object, Exception, re.Match):
        with pytest.raises(wire.WireError):
            wire.dumps(kind)
    with pytest.raises(wire.WireError):
        wire.loads(b'["type", "object"]')


@pytest.mark.parametrize(
    ("pattern", "text"), [("b+", "abbc"), ("$", "ab"), (".*(?s:.)b", "a\nb\n"), ("x{0}", "")]
)
def test_a_match_arrives_at_its_place(pattern: str, text: str) -> None:
    found = re.search(pattern, text)
    assert found is not None
    arrived = wire.loads(wire.dumps(found))
    assert isinstance(arrived, re.Match)
    assert (arrived.span(), arrived.group(), arrived.string) == (found.span(), found.group(), text)


@pytest.mark.parametrize(
    "payload",
    [
        '["ab", 1, 3]',
        '["ab", -1, 1]',
        '["ab", 2, 1]',
        '["ab", "0", "1"]',
        "[5, 0, 0]",
        '["ab"]',
        '["ab", 0, 1.0]',
    ],
)
def test_matches_that_are_none_are_refused(payload: str) -> None:
    with pytest.raises(wire.WireError):
        wire.loads(f'["match", {payload}]'.encode())
