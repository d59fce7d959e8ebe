"""Text from a run folder, made fit for a terminal."""

from __future__ import annotations


def printable(text: str) -> str:
    """``text`` with control characters, halves of surrogate pairs and the like spelt as escapes.

    A task id or a model's name with an ANSI escape in it must not move the reader's cursor.
    """
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )
