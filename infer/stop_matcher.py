"""Finding stop sequences in something that arrives in pieces: text, or token ids.

matcher = StopMatcher(["\\n\\n"])
matcher.push("a\\n")     # ("a", False): the line break may be the beginning of a stop string
matcher.push("\\nb")     # ("", True)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Generic, TypeVar

Piece = TypeVar("Piece", str, tuple[int, ...])


class StopMatcher(Generic[Piece]):
    """Lets through everything before the first stop sequence, as early as it can be told apart from one.

    ``stops`` and pieces are all strings or all tuples of token ids; no stop may be empty.
    """

    def __init__(self, stops: Iterable[Piece], nothing: Piece) -> None:
        self._stops: list[Piece] = list(stops)
        self._nothing: Piece = nothing
        self._held: Piece = nothing

    def push(self, piece: Piece) -> tuple[Piece, bool]:
        """What can be let through now, and whether a stop sequence has been found."""
        held = self._held + piece
        found = [
            (start + len(stop), start) for stop in self._stops if (start := _find(held, stop)) is not None
        ]
        if found:
            # The one that ends first, as if the input had come one by one; of those, the longest.
            self._held = self._nothing
            return held[: min(found)[1]], True
        keep = max((_overlap(held, stop) for stop in self._stops), default=0)
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep], False

    def flush(self) -> Piece:
        """What was held back, when nothing more comes."""
        held, self._held = self._held, self._nothing
        return held


def _find(text: Sequence[object], stop: Sequence[object]) -> int | None:
    """Where ``stop`` first occurs in ``text``."""
    return next((i for i in range(len(text) - len(stop) + 1) if text[i : i + len(stop)] == stop), None)


def _overlap(text: Sequence[object], stop: Sequence[object]) -> int:
    """Length of the longest end of ``text`` that ``stop`` begins with, ``stop`` as a whole left out."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text[len(text) - n :] == stop[:n]), 0)
