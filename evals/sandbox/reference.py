"""Tests by comparison: a program must answer as the trusted reference does.

Used by the tests of suites that give inputs and no answers (:mod:`evals.suites.evalplus`).  Runs in the
judge; the tolerances and the rules for problems with several right answers are those of EvalPlus 0.3.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any

from evals.sandbox import wire

# Relative, added to the absolute tolerance wherever that one counts.
_RTOL = 1e-7
# For answers that are floats where the problem names no tolerance.
_FLOAT_ATOL = 1e-6


def check_outputs(
    candidate: Callable[..., Any],
    reference: Callable[..., Any],
    inputs: Sequence[Sequence[Any]],
    *,
    types: Sequence[Any],
    atol: float,
    oracle: str,
) -> None:
    """AssertionError at the first of ``inputs``, lists of arguments, that ``candidate`` answers wrongly.

    Inputs whose right answer is too large to come from the program's process are left out.
    ``types`` says what JSON could not of each argument (see :func:`typed`); ``oracle`` is a key of
    :data:`ORACLES`.
    """
    judge = ORACLES[oracle]
    for number, values in enumerate(inputs, start=1):
        arguments = [typed(value, types[place] if place < len(types) else None)
                     for place, value in enumerate(values)]  # fmt: skip
        expected = reference(*copy.deepcopy(arguments))
        if _count(expected, wire.MAX_NODES) > wire.MAX_NODES:
            continue  # No program could hand in such an answer, so none is asked for it.
        found = candidate(*copy.deepcopy(arguments))
        right = judge(found, expected, arguments, atol)
        if right is None:
            right = found == expected
            # Once floats are expected, the tolerance stays for the inputs that follow.
            if atol == 0 and _is_floats(expected):
                atol = _FLOAT_ATOL
            if not right and atol != 0:
                right = _is_close(found, expected, atol)
        if not right:
            shown = ", ".join(map(_short, arguments))
            answers = f"expected {_short(expected)}, found {_short(found)}"
            raise AssertionError(f"input {number} of {len(inputs)}, ({shown}): {answers}")


def typed(value: Any, kind: Any) -> Any:
    """``value`` as read from JSON, as what it stood for: ``kind`` is None or (name, type of the items)."""
    if kind is None:
        return value
    name, items = kind
    if name == "complex":
        return complex(value)
    if name == "float":
        return float(value)
    if name == "set or empty dict":
        return set(value) if isinstance(value, list) and value else {}
    if name == "nested tuples":
        return tuple(typed(item, kind) for item in value) if isinstance(value, list) else value
    if isinstance(value, dict):
        return {key: typed(item, items) for key, item in value.items()}
    if isinstance(value, list):
        listed = [typed(item, items) for item in value]
        return tuple(listed) if name == "tuple" else listed
    return value


def _count(value: Any, most: int) -> int:
    """How many values ``value`` is made of, itself included; not counted further where more than ``most``."""
    count = 0
    pending = [value]
    while pending and count <= most:
        item = pending.pop()
        count += 1
        if isinstance(item, (list, tuple, set, frozenset)):
            if len(item) > most:
                return len(item)
            pending.extend(item)
        elif isinstance(item, dict):
            pending.extend(item.keys())
            pending.extend(item.values())
    return count


def _is_floats(value: Any) -> bool:
    if isinstance(value, (list, tuple)) and value:
        return all(isinstance(item, float) for item in value)
    return isinstance(value, float)


def _is_close(found: Any, expected: Any, atol: float) -> bool:
    """Whether two numbers, or arrays of the same kind and length, are equal up to the tolerances."""
    if type(found) is not type(expected):
        return False
    if isinstance(expected, (list, tuple)) and len(found) != len(expected):
        return False
    import numpy as np  # only here: most problems never need it, and every judge is a fresh interpreter

    try:
        if np.shape(found) != np.shape(expected):  # or an empty list would be broadcast, and equal anything
            return False
    except ValueError:  # lists of several lengths are no array
        return False
    return bool(np.allclose(found, expected, rtol=_RTOL, atol=atol))


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _root(found: Any, expected: Any, arguments: Sequence[Any], atol: float) -> bool:
    (coefficients,) = arguments
    value = sum(factor * math.pow(found, power) for power, factor in enumerate(coefficients))
    return abs(value) <= atol


def _same_set(found: Any, expected: Any, arguments: Sequence[Any], atol: float) -> bool | None:
    return set(found) == set(expected) or None


def _not_none(found: Any, expected: Any, arguments: Sequence[Any], atol: float) -> bool:
    """The reference answers a match or None; a program may also answer with a truth value."""
    return (found if isinstance(found, bool) else found is not None) == (expected is not None)


def _pyramid(found: Any, expected: Any, arguments: Sequence[Any], atol: float) -> bool | None:
    """The surface of a square pyramid, its height taken to the base instead of along a side."""
    edge, height = arguments
    slant = math.hypot(edge / 2, height)
    return abs(found - round(edge**2 + 2 * edge * slant)) <= atol or None


def _padded_digits(found: Any, expected: Any, arguments: Sequence[Any], atol: float) -> bool | None:
    """The distance of two numbers' digits, the shorter one filled up with zeros."""
    first, second = map(str, arguments)
    width = max(len(first), len(second))
    pairs = zip(first.zfill(width), second.zfill(width), strict=True)
    return found == sum(abs(int(a) - int(b)) for a, b in pairs) or None


# True or False decide; None leaves it to the comparison with the reference.
ORACLES: dict[str, Callable[[Any, Any, Sequence[Any], float], bool | None]] = {
    "equal": lambda found, expected, arguments, atol: None,
    "anything": lambda found, expected, arguments, atol: True,
    "or zero": lambda found, expected, arguments, atol: found == 0 or None,
    "root of the polynomial": _root,
    "same set": _same_set,
    "truth of not None": _not_none,
    "or by perpendicular height": _pyramid,
    "or padded with zeros": _padded_digits,
}
