"""Follows Python source line by line, to know where top-level lines start.

A full tokenizer would have to start over at every new line of a growing text; this one keeps its
place.  It knows strings, comments, brackets and continued lines, which is all that decides whether
column zero of the next line is code.
"""

from __future__ import annotations

import re

# What can change the state within a line, outside of strings.
_MARKS = re.compile(r"\"\"\"|'''|[\"'#()\[\]{}]")


class LineTracker:
    """State after the lines fed so far."""

    def __init__(self) -> None:
        self.quote = ""
        """The open triple quote, or the single one when its line was continued."""
        self.depth = 0
        """Open brackets."""
        self._continued = False

    @property
    def in_statement(self) -> bool:
        """Whether the next line continues a string, a bracket or a statement."""
        return bool(self.quote) or self.depth > 0 or self._continued

    def feed(self, line: str) -> None:
        """Takes one line, without its newline."""
        self._continued = False
        position = 0
        while position < len(line):
            if self.quote:
                end = self._end_of_string(line, position)
                if end is None:
                    break
                self.quote = ""
                position = end
                continue
            mark = _MARKS.search(line, position)
            if mark is None or mark.group() == "#":
                position = len(line) if mark is None else mark.start()
                break
            position = mark.end()
            if mark.group() in "([{":
                self.depth += 1
            elif mark.group() in ")]}":
                self.depth = max(0, self.depth - 1)
            else:
                self.quote = mark.group()
        ends_in_backslash = (len(line) - len(line.rstrip("\\"))) % 2 == 1
        if len(self.quote) == 1 and not ends_in_backslash:
            self.quote = ""  # An unterminated string is an error, and ends with its line.
        if not self.quote and "#" not in line[position:]:
            self._continued = ends_in_backslash

    def _end_of_string(self, line: str, position: int) -> int | None:
        """Where the open string ends; None when not in this line."""
        while True:
            end = line.find(self.quote, position)
            if end < 0:
                return None
            backslash = line.find("\\", position, end)
            if backslash < 0:
                return end + len(self.quote)
            position = backslash + 2
