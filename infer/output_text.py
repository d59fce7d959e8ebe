"""From generated ids to the text that a user sees: stop tokens, characters, stop strings, in this order."""

from __future__ import annotations

from collections.abc import Iterable

from infer.stop_matcher import StopMatcher
from infer.text_stream import TextStream
from laneformer.tokenizer import Tokenizer


class OutputText:
    """Text of one answer.  Without a tokenizer all text is empty, and only ids can stop.

    Text that may be the beginning of a stop sequence is held back; that of the sequence is never shown.
    """

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        stop_strings: Iterable[str],
        stop_sequences: Iterable[tuple[int, ...]],
    ) -> None:
        self._ids: StopMatcher[tuple[int, ...]] = StopMatcher(stop_sequences, nothing=())
        self._characters = TextStream(tokenizer) if tokenizer is not None else None
        self._strings: StopMatcher[str] = StopMatcher(stop_strings, nothing="")

    def push(self, token_id: int) -> tuple[str, bool]:
        """Text that can be shown after ``token_id``, and whether the answer ends here."""
        ids, stopped = self._ids.push((token_id,))
        text, found = self._strings.push(self._decoded(ids))
        if found or not stopped:
            return text, found
        rest, _ = self.finish()
        return text + rest, True

    def finish(self) -> tuple[str, bool]:
        """What was held back, when no more ids come, and whether a stop string turned up in it."""
        text = self._decoded(self._ids.flush())
        if self._characters is not None:
            text += self._characters.flush()
        text, found = self._strings.push(text)
        return (text, True) if found else (text + self._strings.flush(), False)

    def _decoded(self, ids: tuple[int, ...]) -> str:
        if self._characters is None:
            return ""
        return "".join(map(self._characters.push, ids))
