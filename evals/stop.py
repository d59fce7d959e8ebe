"""When to stop sampling.

    rule = StopRule(problem.prompt, problem.entry_point)
    while not rule.finished(completion):
        completion += next(pieces)

:class:`StopRule` is for prompts that a completion continues: it ends when the completed function is whole
and something else begins; :class:`MarkerRule` ends at a text that was agreed upon, :class:`FenceRule` at the
end of a code block.

Helpers, classes, imports, decorators, constants and comments may follow the function and belong to
the program.  The rule errs to the side of going on: too much text costs time, and extraction cuts
it; too little would cut a right program.
"""

from __future__ import annotations

import keyword
import re
from typing import Protocol

from evals.lines import LineTracker

_DEFINITION = re.compile(r"(async\s+)?def\s+(\w+)|class\b|@|import\b|from\b|#")
# Names, attributes and items, perhaps annotated, and an assignment (not a comparison).
_TARGET = r"\*?[A-Za-z_]\w*(?:\.\w+|\[[^\]]*\])*"
_ASSIGNMENT = re.compile(
    rf"[(\[]?\s*{_TARGET}(?:\s*,\s*{_TARGET})*\s*,?\s*[)\]]?\s*(?::[^=]+)?"
    r"(?:=|[-+*/%&|^@]=|//=|\*\*=|>>=|<<=)(?!=)"
)
_STRING = re.compile(r"[rRuUbB]{0,2}(\"|')")
_FENCE = "```"


class Rule(Protocol):
    """Tells when a growing completion has come to its end."""

    def finished(self, completion: str) -> bool:
        """Whether ``completion``, all text so far, needs no more."""
        ...


class NoRule:
    """Leaves the end to the model."""

    def finished(self, completion: str) -> bool:
        """See :class:`Rule`."""
        return False


class MarkerRule:
    """Ends when ``marker`` has been written."""

    def __init__(self, marker: str) -> None:
        self._marker = marker

    def finished(self, completion: str) -> bool:
        """See :class:`Rule`."""
        return self._marker in completion


class FenceRule:
    """Ends at the fence that closes the code block in which the completion begins.

    Backticks count at the beginning of a line, indented or not, and not inside of a string in triple quotes.
    """

    def finished(self, completion: str) -> bool:
        """See :class:`Rule`."""
        if _FENCE not in completion:
            return False
        tracker = LineTracker()
        for line in completion.split("\n"):
            if line.lstrip().startswith(_FENCE) and not tracker.quote:
                return True
            tracker.feed(line)
        return False


class StopRule:
    """Tells whether a growing completion has gone past the program.

    Keeps its place between calls, so that a call costs no more than the lines that are new.
    """

    def __init__(self, prompt: str, entry_point: str) -> None:
        self._prompt = prompt
        self._entry_point = entry_point
        self._start()

    def _start(self) -> None:
        self._read = ""
        self._tracker = LineTracker()
        self._in_target = False
        self._body_begun = False
        self._finished = False
        *lines, self._partial = self._prompt.split("\n")
        for line in lines:
            self._take(line)
        # The prompt may hold examples of anything; only the completion can finish.
        self._finished = False

    def finished(self, completion: str) -> bool:
        """Whether a complete line of ``completion``, all text so far, begins something else.

        A line that is not complete decides nothing.
        """
        if not completion.startswith(self._read):
            self._start()
        text = self._partial + completion[len(self._read) :]
        self._read = completion
        *lines, self._partial = text.split("\n")
        for line in lines:
            if self._finished:
                break
            self._take(line)
        return self._finished

    def _take(self, line: str) -> None:
        # Backticks are no Python, so a fence ends what prose seemed to open; in a string it is text.
        if line.startswith(_FENCE) and not self._tracker.quote:
            self._tracker = LineTracker()
        starts_statement = not self._tracker.in_statement and bool(line.strip())
        if starts_statement and line[0].isspace():
            self._take_indented(line.strip())
        elif starts_statement:
            self._take_top_level(line)
        self._tracker.feed(line)

    def _take_indented(self, text: str) -> None:
        # A docstring is no body yet, and neither is a comment.
        if self._in_target and not text.startswith("#") and not _STRING.match(text):
            self._body_begun = True

    def _take_top_level(self, line: str) -> None:
        definition = _DEFINITION.match(line)
        if definition is None and not _is_assignment(line):
            self._finished = self._body_begun
            self._in_target = False
        elif definition is not None and definition.group(2) == self._entry_point:
            self._finished = self._body_begun
            self._in_target = True
            self._body_begun = self._body_begun or _has_inline_body(line)
        elif not line.startswith("#"):  # A comment at column zero may stand inside of a function.
            self._in_target = False


def _is_assignment(line: str) -> bool:
    assignment = _ASSIGNMENT.match(line)
    # ``else: x = 1`` would read as an annotated assignment to else.
    return assignment is not None and not keyword.iskeyword(re.split(r"\W", line, maxsplit=1)[0])


def _has_inline_body(line: str) -> bool:
    """Whether ``def f(x): return x`` is all on this line."""
    return bool(re.search(r"\)\s*(->[^:]*)?:\s*[^\s#]", line))
