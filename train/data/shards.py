"""Read a prepared folder: token shards as one stream per split.

    dataset = TokenDataset("data/python")
    train = dataset.split("train")
    train.read(0, 1024)                # tokens, across shard borders
    train.document_starts[:3]          # array([   0,  812, 2077])

Opening checks that every file is there and has its size; :meth:`TokenDataset.verify` reads them all.
"""

from __future__ import annotations

import hashlib
from functools import cached_property
from pathlib import Path
from typing import NoReturn

import numpy as np

from laneformer.errors import DataError
from laneformer.tokenizer import Tokenizer
from train.data.documents import SPLITS
from train.data.manifest import MANIFEST_FILE, Manifest, ShardRecord
from train.data.shard_writer import DOCUMENTS_SUFFIX, TOKENS_SUFFIX


class TokenDataset:
    """A finished data folder.

    Raises :class:`DataError` where there is no finished data set, or where a shard is missing, truncated or
    otherwise not what the manifest says.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        manifest = Manifest.read(self.folder)
        if manifest is None:
            raise DataError(f"{self.folder}: no {MANIFEST_FILE}; prepare the data first")
        if not manifest.complete:
            raise DataError(f"{self.folder}: preparation was interrupted; run it again to resume")
        self.manifest = manifest
        self._splits = {split: TokenSplit(self.folder, split, manifest) for split in SPLITS}

    @property
    def fingerprint(self) -> str:
        """SHA-256, in hex: equal means the same tokens in the same order, made by the same tokenizer."""
        return self.manifest.fingerprint_of_data()

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer that made the tokens.  :class:`DataError` where the saved one is another."""
        tokenizer = Tokenizer.from_folder(self.folder)
        if tokenizer.fingerprint != self.manifest.tokenizer_fingerprint:
            raise DataError(
                f"{self.folder}: its tokenizer is not the one that made the tokens; "
                "restore it or remove the folder to prepare it anew"
            )
        return tokenizer

    def split(self, name: str) -> TokenSplit:
        """``"train"`` or ``"validation"``."""
        if name not in self._splits:
            raise DataError(f"there is no split {name!r}; expected one of {', '.join(SPLITS)}")
        return self._splits[name]

    def verify(self) -> None:
        """Read every shard.  :class:`DataError` for the first whose SHA-256 differs from the manifest's."""
        for shard in (shard for split in SPLITS for shard in self.manifest.splits[split]):
            for suffix, expected in (
                (TOKENS_SUFFIX, shard.sha256),
                (DOCUMENTS_SUFFIX, shard.documents_sha256),
            ):
                path = self.folder / (shard.name + suffix)
                try:
                    with path.open("rb") as file:
                        found = hashlib.file_digest(file, "sha256").hexdigest()
                except OSError as error:
                    raise _unreadable(path, error) from None
                if found != expected:
                    raise _damaged(path, f"SHA-256 {found}", expected)


class TokenSplit:
    """The tokens of one split as one stream, memory-mapped; documents follow each other in it.

    ``document_starts``, int64 [num_documents + 1], is where each document begins in the stream, and its
    length last; ``document_bytes``, int64 [num_documents], is the UTF-8 size of the original texts.
    """

    def __init__(self, folder: Path, name: str, manifest: Manifest) -> None:
        self.name = name
        self.bos_id = manifest.bos_id
        self.eos_id = manifest.eos_id
        self._dtype = np.dtype(manifest.dtype).newbyteorder("<")
        self._vocab_size = manifest.vocab_size
        self._folder = folder
        self._records = records = manifest.splits[name]
        self._shards = [_map_tokens(folder, shard, self._dtype) for shard in records]
        self._shard_starts = np.cumsum([0, *(shard.tokens for shard in records)], dtype=np.int64)
        sizes = np.concatenate(
            [np.zeros((0, 2), np.int64), *(_read_sizes(folder, shard) for shard in records)], dtype=np.int64
        )
        self.document_starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes[:, 0])])
        self.document_bytes = np.ascontiguousarray(sizes[:, 1])

    @property
    def num_tokens(self) -> int:
        """Tokens of all documents, BOS and EOS included."""
        return int(self._shard_starts[-1])

    @property
    def num_documents(self) -> int:
        return len(self.document_bytes)

    def read(self, start: int, stop: int) -> np.ndarray:
        """Tokens ``start`` to ``stop`` of the stream, uint16 or uint32 [stop - start].

        Raises IndexError for a range outside of the stream and :class:`DataError`, naming the shard, for an
        id beyond the vocabulary, for which a model has no embedding.
        """
        if not 0 <= start <= stop <= self.num_tokens:
            raise IndexError(f"tokens {start}:{stop} of a stream of {self.num_tokens}")
        tokens = np.empty(stop - start, dtype=self._dtype.newbyteorder("="))
        shard = int(np.searchsorted(self._shard_starts, start, side="right")) - 1
        position = start
        while position < stop:
            begin = int(self._shard_starts[shard])
            end = min(stop, int(self._shard_starts[shard + 1]))
            piece = tokens[position - start : end - start]
            piece[:] = self._shards[shard][position - begin : end - begin]
            if piece.max() >= self._vocab_size:
                self._refuse_id(shard, position - begin, piece)
            position = end
            shard += 1
        return tokens

    def _refuse_id(self, shard: int, start: int, piece: np.ndarray) -> NoReturn:
        place = int(np.argmax(piece >= self._vocab_size))
        path = self._folder / (self._records[shard].name + TOKENS_SUFFIX)
        raise _damaged(path, f"token id {piece[place]} at {start + place}", f"below {self._vocab_size}")


def _map_tokens(folder: Path, shard: ShardRecord, dtype: np.dtype) -> np.ndarray:
    path = folder / (shard.name + TOKENS_SUFFIX)
    expected = shard.tokens * dtype.itemsize
    try:
        found = path.stat().st_size
        if found != expected:
            raise _damaged(path, f"{found} bytes", f"{expected} bytes")
        return np.memmap(path, dtype=dtype, mode="r")
    except OSError as error:
        raise _unreadable(path, error) from None


def _read_sizes(folder: Path, shard: ShardRecord) -> np.ndarray:
    """Tokens and bytes of each document, int64 [documents, 2]."""
    path = folder / (shard.name + DOCUMENTS_SUFFIX)
    try:
        sizes: np.ndarray = np.load(path)
    except OSError as error:
        raise _unreadable(path, error) from None
    except Exception as error:  # the header is read as Python and says how much memory to take
        raise _damaged(path, str(error), f"{shard.documents} documents") from None
    shape = (shard.documents, 2)
    if not isinstance(sizes, np.ndarray) or sizes.shape != shape or sizes.dtype != np.dtype("<i8"):
        found = f"{getattr(sizes, 'dtype', type(sizes).__name__)} {getattr(sizes, 'shape', '')}"
        raise _damaged(path, found, f"int64 {shape}")
    if sizes.min() < 0 or sizes.sum(axis=0).tolist() != [shard.tokens, shard.bytes]:
        found = f"tokens, bytes {sizes.sum(axis=0).tolist()}, smallest {sizes.min()}"
        raise _damaged(path, found, f"{[shard.tokens, shard.bytes]}, smallest 0")
    return sizes


def _damaged(path: Path, found: str, expected: str) -> DataError:
    return DataError(
        f"{path}: damaged: found {found}, expected {expected}; "
        "restore it or remove the folder to prepare it anew"
    )


def _unreadable(path: Path, error: OSError) -> DataError:
    return DataError(
        f"{path}: cannot be read ({error.strerror}); restore it or remove the folder to prepare it anew"
    )
