"""Write the documents of one split into shards, one shard at a time.

A shard is two files, ``train-00000.bin`` with the tokens and ``train-00000.documents.npy`` with the size of
each document.  It is collected in memory, written durably when full, and then announced; a shard that was
not announced is written again by the next run.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from laneformer.errors import DataError
from train.data.documents import KeptDocument
from train.data.durable_files import write_durably
from train.data.manifest import ShardRecord, shard_name

TOKENS_SUFFIX = ".bin"
DOCUMENTS_SUFFIX = ".documents.npy"


class ShardWriter:
    """Appends shards of one split to ``records``, the finished ones, and calls ``announce`` after each.

    A shard is closed once it holds ``shard_tokens`` tokens: a document is never split, so shards are larger
    by up to one document.
    """

    def __init__(
        self,
        folder: Path,
        split: str,
        records: list[ShardRecord],
        dtype: npt.DTypeLike,
        shard_tokens: int,
        announce: Callable[[], None],
    ) -> None:
        self._folder = folder
        self._split = split
        self._records = records
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self._shard_tokens = shard_tokens
        self._announce = announce
        self._to_skip = list(records)
        self._start_shard()

    def skip(self, document: KeptDocument) -> bool:
        """True where a finished shard already holds ``document``, the next one of the source.

        Raises :class:`DataError` where that shard was made of other documents.
        """
        if not self._to_skip:
            return False
        self._content.update(document.digest)
        self._skipped += 1
        shard = self._to_skip[0]
        if self._skipped == shard.documents:
            if self._content.hexdigest() != shard.content_sha256:
                raise self._source_changed(shard)
            del self._to_skip[0]
            self._start_shard()
        return True

    def add(self, document: KeptDocument, tokens: list[int]) -> None:
        """Append one document; ``tokens`` include BOS and EOS."""
        self._tokens.append(np.array(tokens, dtype=self._dtype))
        self._sizes.append((len(tokens), document.num_bytes))
        self._content.update(document.digest)
        self._num_tokens += len(tokens)
        if self._num_tokens >= self._shard_tokens:
            self._finish_shard()

    def close(self) -> None:
        """Write the last shard, however small."""
        if self._to_skip:
            raise self._source_changed(self._to_skip[0])
        if self._sizes:
            self._finish_shard()

    def _start_shard(self) -> None:
        self._tokens: list[np.ndarray] = []
        self._sizes: list[tuple[int, int]] = []
        self._num_tokens = 0
        self._skipped = 0
        self._content = hashlib.sha256()

    def _finish_shard(self) -> None:
        name = shard_name(self._split, len(self._records))
        tokens = np.concatenate(self._tokens).tobytes()
        sizes = np.array(self._sizes, dtype="<i8")
        documents = io.BytesIO()
        np.save(documents, sizes)
        write_durably(self._folder / (name + TOKENS_SUFFIX), tokens)
        write_durably(self._folder / (name + DOCUMENTS_SUFFIX), documents.getvalue())
        self._records.append(
            ShardRecord(
                name=name,
                tokens=self._num_tokens,
                documents=len(sizes),
                bytes=int(sizes[:, 1].sum()),
                sha256=hashlib.sha256(tokens).hexdigest(),
                documents_sha256=hashlib.sha256(documents.getvalue()).hexdigest(),
                content_sha256=self._content.hexdigest(),
            )
        )
        self._start_shard()
        self._announce()

    def _source_changed(self, shard: ShardRecord) -> DataError:
        return DataError(
            f"{self._folder}: the source has changed since shard {shard.name} was written, so that the "
            "preparation cannot be resumed; remove the folder to start again"
        )
