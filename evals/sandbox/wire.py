"""The encoding in which arguments and results cross between the judge and the candidate.

Only plain values cross: None, bool, int, float, complex, str, bytes, list, tuple, dict, set,
frozenset, range, the types of all these, and the standard library's deque, Decimal and Fraction.
Subclasses (Counter, OrderedDict, defaultdict, named tuples, IntEnum, ...) cross as the builtin that they
extend, bytearray as bytes, iterators of all kinds and views of a dict as an iterator over their items, numpy
scalars and arrays through ``item`` and ``tolist``, and a match of a regular expression as one of the same
text at the same place, without groups.
Whatever :func:`loads` returns was built here out of trusted types, so comparing it is honest no
matter what the sender did.

A value is JSON.  None, bool, float, str and small int are themselves; everything else is a pair
``[tag, payload]``.  A frame is a four-byte big-endian length and that many bytes: a value, or a token and a
value.
"""

from __future__ import annotations

import json
import re
import socket
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from fractions import Fraction
from typing import Any

MAX_DEPTH = 100
MAX_NODES = 1_000_000
MAX_FRAME_BYTES = 32 * 1024 * 1024  # of a value
TOKEN_BYTES = 16
# Larger integers travel in hexadecimal: CPython refuses to read or print long decimal ones.
_SMALL_INT = 1 << 63

# Lazy values that are no iterators, and that a test may consume with list(), tuple(), sorted() or a loop.
_VIEWS: tuple[type, ...] = (type({}.keys()), type({}.values()), type({}.items()))


class WireError(Exception):
    """A value that cannot cross, or bytes that are not a value."""


def _require_bounded(depth: int, nodes: int) -> None:
    if depth > MAX_DEPTH:
        raise WireError(f"a value nested deeper than {MAX_DEPTH} levels")
    if nodes > MAX_NODES:
        raise WireError(f"a value of more than {MAX_NODES} items")


class _Encoder:
    def __init__(self) -> None:
        self.nodes = 0

    def encode(self, value: Any, depth: int = 0) -> Any:
        self.nodes += 1
        _require_bounded(depth, self.nodes)
        kind = type(value)
        if value is None or kind is bool or kind is str or kind is float:
            return value
        if isinstance(value, int):
            number = int.__index__(value)
            return number if -_SMALL_INT < number < _SMALL_INT else ["int", hex(number)]
        if isinstance(value, float):
            return float.__float__(value)
        if isinstance(value, str):
            return str.__str__(value)
        if isinstance(value, complex):
            return ["complex", [complex.real.__get__(value), complex.imag.__get__(value)]]
        if isinstance(value, (bytes, bytearray)):
            return ["bytes", bytes(value).hex()]
        if isinstance(value, dict):
            pairs = [[self.encode(k, depth + 1), self.encode(v, depth + 1)] for k, v in dict.items(value)]
            return ["dict", pairs]
        for tag, base in _SEQUENCES.items():
            if isinstance(value, base):
                return [tag, self._items(base.__iter__(value), depth)]
        if kind is range:
            return ["range", [self.encode(part, depth + 1) for part in (value.start, value.stop, value.step)]]
        if kind is type and value in _TYPES.values():
            return ["type", value.__name__]
        if kind is re.Match and type(value.string) is str:
            return ["match", [value.string, *value.span()]]
        if kind is Decimal:
            return ["decimal", str(value)]
        if kind is Fraction:
            return ["fraction", [hex(value.numerator), hex(value.denominator)]]
        if kind in _VIEWS or isinstance(value, Iterator):
            return ["iterator", self._items(value, depth)]
        if kind.__module__ == "numpy":
            return self.encode(
                value.tolist() if hasattr(value, "shape") and value.shape else value.item(), depth
            )
        raise WireError(f"a value of type {kind.__name__}")

    def _items(self, values: Iterable[Any], depth: int) -> list[Any]:
        return [self.encode(item, depth + 1) for item in values]


# Tag -> type, for the containers that are written as the list of their items.
_SEQUENCES: dict[str, Any] = {
    "list": list,
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "deque": deque,
}


# Tests of MBPP pass such types as arguments.
_TYPES: dict[str, type] = {
    kind.__name__: kind
    for kind in (bool, int, float, complex, str, bytes, list, tuple, dict, set, frozenset, range)
}


def _match(payload: list[Any]) -> re.Match[str]:
    text, start, end = payload
    if not 0 <= start <= end <= len(text):
        raise ValueError("a match outside of its text")
    found = re.compile(f"(?s:.{{{end - start:d}}})").match(text, start)
    assert found is not None
    return found


def _fraction(payload: list[str]) -> Fraction:
    numerator, denominator = payload
    return Fraction(int(numerator, 16), int(denominator, 16))


_SCALARS: dict[str, Callable[[Any], Any]] = {
    "int": lambda payload: int(payload, 16),
    "complex": lambda payload: complex(float(payload[0]), float(payload[1])),
    "bytes": bytes.fromhex,
    "type": _TYPES.__getitem__,
    "match": _match,
    "decimal": Decimal,
    "fraction": _fraction,
}


class _Decoder:
    """Undoes what :class:`_Encoder` does, within the same bounds."""

    def __init__(self) -> None:
        self.nodes = 0

    def decode(self, node: Any, depth: int = 0) -> Any:
        self.nodes += 1
        _require_bounded(depth, self.nodes)
        if not isinstance(node, list):
            return node
        tag, payload = node
        if tag in _SEQUENCES:
            return _SEQUENCES[tag](self._items(payload, depth))
        if tag == "dict":
            return {self.decode(key, depth + 1): self.decode(value, depth + 1) for key, value in payload}
        if tag == "iterator":
            return iter(self._items(payload, depth))
        if tag == "range":
            return range(*self._items(payload, depth))
        return _SCALARS[tag](payload)

    def _items(self, nodes: Iterable[Any], depth: int) -> list[Any]:
        return [self.decode(node, depth + 1) for node in nodes]


def dumps(value: Any) -> bytes:
    """Encodes ``value``; :class:`WireError` when it, or anything inside it, is not a plain value."""
    data = json.dumps(_Encoder().encode(value), separators=(",", ":")).encode("ascii")
    if len(data) > MAX_FRAME_BYTES:
        raise WireError(f"a value of more than {MAX_FRAME_BYTES} encoded bytes")
    return data


def loads(data: bytes) -> Any:
    """Decodes bytes from an untrusted sender; :class:`WireError` when they are no value within the bounds."""
    try:
        return _Decoder().decode(_refuse_objects(json.loads(data)))
    except (ValueError, TypeError, LookupError, ArithmeticError, RecursionError, AttributeError) as error:
        raise WireError(f"a malformed message ({type(error).__name__})") from None


def _refuse_objects(node: Any) -> Any:
    # JSON objects are never written; one inside a list would otherwise pass through as a dict.
    pending = [node]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            raise ValueError("an object")
        if isinstance(item, list):
            pending.extend(item)
    return node


def send(channel: socket.socket, data: bytes) -> None:
    """Writes one frame."""
    channel.sendall(len(data).to_bytes(4, "big") + data)


def receive(channel: socket.socket) -> bytes:
    """Reads one frame; EOFError when the other side is gone, :class:`WireError` when it is too long."""
    length = int.from_bytes(_read_exactly(channel, 4), "big")
    if length > TOKEN_BYTES + MAX_FRAME_BYTES:
        raise WireError(f"a message of more than {MAX_FRAME_BYTES} bytes")
    return _read_exactly(channel, length)


def _read_exactly(channel: socket.socket, length: int) -> bytes:
    parts = bytearray()
    while len(parts) < length:
        part = channel.recv(min(length - len(parts), 1 << 20))
        if not part:
            raise EOFError
        parts += part
    return bytes(parts)
