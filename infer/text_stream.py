"""Text of a growing list of token ids, piece by piece, without ever showing half a character.

The pieces joined are exactly ``tokenizer.decode(all ids)``, for any ids.

A token's text depends on its neighbours in three ways.  Byte-level tokens may end inside a character,
which shows as U+FFFD at the end of the text.  A byte-fallback tokenizer (Llama 2) turns a *run* of byte
tokens into text if the whole run is UTF-8, and into one U+FFFD per byte if not, so the run's first
characters are unknown until it has ended.  And the space before the very first word is dropped.  So text
is held back while it ends in U+FFFD or in a byte token, and new ids are decoded behind one id of context.
(``tokenizers``' own ``DecodeStream`` shows a run's characters before the run has ended, raises when the
run then breaks, and has no flush.)
"""

from __future__ import annotations

import re

from laneformer.tokenizer import Tokenizer

_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")
_REPLACEMENT = "\ufffd"


class TextStream:
    """Feed ids to :meth:`push`; at the end, :meth:`flush`."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        library = tokenizer.library_tokenizer
        added = library.get_added_tokens_decoder()
        self._skipped = {token_id for token_id, token in added.items() if token.special}
        self._context: list[int] = []  # the last id whose text has been shown
        self._pending: list[int] = []  # ids whose text has not

    def push(self, token_id: int) -> str:
        """Text that ``token_id`` completes, possibly none."""
        token = self._tokenizer.library_tokenizer.id_to_token(token_id)
        if token is None or token_id in self._skipped:  # decodes to nothing and separates nothing
            return ""
        self._pending.append(token_id)
        if _BYTE_TOKEN.fullmatch(token):
            return ""
        text = self._pending_text()
        return "" if text.endswith(_REPLACEMENT) else self._show(text)

    def flush(self) -> str:
        """What is still held back, broken characters as U+FFFD."""
        return self._show(self._pending_text())

    def _pending_text(self) -> str:
        shown = self._tokenizer.decode(self._context)
        return self._tokenizer.decode(self._context + self._pending)[len(shown) :]

    def _show(self, text: str) -> str:
        self._context = self._pending[-1:] or self._context
        self._pending = []
        return text
