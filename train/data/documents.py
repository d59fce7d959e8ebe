"""Which documents of a source are kept, and in which split each belongs.

Both decisions look at a document's content only.  The split in particular is a function of the content's
SHA-256, so a text stays held out when the order, the limits or the source around it change.

    selection = Selection(read_source(config), config)
    for document in selection: ...
    selection.counts["duplicate"]
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from train.data.config import DataConfig

SPLITS = ("train", "validation")


class Document(NamedTuple):
    """One text of a source.  ``text`` is None where what was found is not text."""

    name: str
    text: str | None


@dataclass(frozen=True)
class KeptDocument:
    """A text that goes into the data set: ``num_bytes`` in UTF-8, ``digest`` the SHA-256 of those bytes."""

    name: str
    text: str
    num_bytes: int
    digest: bytes
    split: str


class Selection:
    """Iterates over the documents to keep, in the order of the source; counts the others by reason.

    A document is dropped where it is not text, shorter or longer than the limits, or equal to an earlier
    one.  The iteration ends before the first document that would exceed ``max_documents`` or ``max_bytes``.
    """

    def __init__(self, source: Iterable[Document], config: DataConfig) -> None:
        self._source = source
        self._config = config
        self.num_bytes = 0
        self.counts = {"kept": 0, "duplicate": 0, "too_short": 0, "too_long": 0, "unreadable": 0}

    def __iter__(self) -> Iterator[KeptDocument]:
        config = self._config
        seen: set[bytes] = set()
        for name, text in self._source:
            content = _utf8(text)
            if text is None or content is None:
                self.counts["unreadable"] += 1
                continue
            if len(content) < config.min_document_bytes:
                self.counts["too_short"] += 1
                continue
            if len(content) > config.max_document_bytes:
                self.counts["too_long"] += 1
                continue
            digest = hashlib.sha256(content).digest()
            if digest in seen:
                self.counts["duplicate"] += 1
                continue
            if self.counts["kept"] == config.max_documents:
                return
            if config.max_bytes is not None and self.num_bytes + len(content) > config.max_bytes:
                return
            seen.add(digest)
            self.counts["kept"] += 1
            self.num_bytes += len(content)
            yield KeptDocument(name, text, len(content), digest, split_of(digest, config.held_out_fraction))

    def describe(self) -> str:
        """Counts in words, for messages: ``0 kept, 3 duplicate, ...``."""
        return ", ".join(f"{count} {reason.replace('_', ' ')}" for reason, count in self.counts.items())


def split_of(digest: bytes, held_out_fraction: float) -> str:
    """Split of the document with this SHA-256, read as a fraction between 0 and 1."""
    held_out = int.from_bytes(digest[:8], "big") < held_out_fraction * 2**64
    return "validation" if held_out else "train"


def _utf8(text: str | None) -> bytes | None:
    """None also for half of a surrogate pair, which JSON can spell and UTF-8 cannot."""
    try:
        return None if text is None else text.encode("utf-8")
    except UnicodeEncodeError:
        return None
