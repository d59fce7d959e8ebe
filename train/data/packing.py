"""Cut a split's stream of tokens into sequences for training and for held-out loss.

The sequences of a step follow from the seed and the step alone: there is no iterator whose state a
checkpoint would have to keep, and any number of processes can each ask for their own rows.

    sequences = PackedSequences(dataset.split("train"), sequence_length=1024, seed=0)
    batch = sequences.batch(first_sequence=step * 32, batch_size=32)

    held_out = HeldOutBatches(dataset.split("validation"), 1024, batch_size=32, max_tokens=1_000_000)
    nats = sum(loss_sum(batch) for batch in held_out)
    bits_per_byte = nats / math.log(2) / held_out.num_bytes
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from laneformer.errors import DataError
from train.data.shards import TokenSplit

IGNORED_LABEL = -100
PADDING_DOCUMENT = -1


@dataclass(frozen=True)
class Batch:
    """Sequences of tokens, B of length S.

    ``labels`` are the next tokens, or -100 where the next token belongs to another document: BOS is never a
    target, EOS always is.  ``document_ids`` number the documents of the split, for attention that stays
    within a document.  Padding has EOS as input, -100 as label and -1 as document.
    """

    input_ids: np.ndarray  # int64 [B, S]
    labels: np.ndarray  # int64 [B, S]
    document_ids: np.ndarray  # int32 [B, S]


class PackedSequences:
    """Sequences of a split in a new order every epoch, numbered from the first step on without end.

    An epoch covers the stream in ``num_sequences`` adjoining pieces, the last padded: in it every token but
    BOS is a target exactly once.  Raises :class:`DataError` where the split is shorter than one sequence.
    """

    def __init__(self, split: TokenSplit, sequence_length: int, seed: int) -> None:
        if sequence_length < 1 or seed < 0:
            raise DataError(f"sequence length {sequence_length} and seed {seed}: expected at least 1 and 0")
        if split.num_tokens < sequence_length:
            raise DataError(
                f"the {split.name} split has {split.num_tokens} tokens, fewer than one sequence of "
                f"{sequence_length}: prepare more data or shorten the sequences"
            )
        self._split = split
        self._sequence_length = sequence_length
        self._seed = seed
        self._order = np.zeros(0, dtype=np.int64)
        self._order_epoch = -1
        self.num_sequences = -(-split.num_tokens // sequence_length)

    def batch(self, first_sequence: int, batch_size: int) -> Batch:
        """``batch_size`` sequences from ``first_sequence`` on, which counts from the first of epoch 0."""
        numbers = range(first_sequence, first_sequence + batch_size)
        starts = [self._place(number) * self._sequence_length for number in numbers]
        return _cut(self._split, starts, self._sequence_length, self._split.num_tokens)

    def _place(self, number: int) -> int:
        """Which piece of the stream is sequence ``number``."""
        epoch, position = divmod(number, self.num_sequences)
        if epoch != self._order_epoch:
            self._order = np.random.default_rng((self._seed, epoch)).permutation(self.num_sequences)
            self._order_epoch = epoch
        return int(self._order[position])


class HeldOutBatches:
    """The first documents of a split, whole and in stream order, with at most ``max_tokens`` tokens.

    The first document is always there, however long.  Each of their tokens but BOS is a target exactly
    once, ``num_targets`` in all, and ``num_bytes`` is the UTF-8 size of exactly their texts, so summed loss
    over bytes is exact.  A document that continues in the next sequence does so without what came before:
    the figure holds for this ``sequence_length``.
    All batches have ``batch_size`` rows; the last are padded.
    """

    def __init__(self, split: TokenSplit, sequence_length: int, batch_size: int, max_tokens: int) -> None:
        if split.num_documents == 0:
            raise DataError(f"the {split.name} split has no documents; prepare more data")
        fitting = int(np.searchsorted(split.document_starts, max_tokens, side="right")) - 1
        self.num_documents = max(1, fitting)
        self.num_bytes = int(split.document_bytes[: self.num_documents].sum())
        self._end = int(split.document_starts[self.num_documents])
        self.num_targets = self._end - self.num_documents
        self._split = split
        self._sequence_length = sequence_length
        self._batch_size = batch_size

    def __len__(self) -> int:
        return -(-self._end // (self._batch_size * self._sequence_length))

    def __iter__(self) -> Iterator[Batch]:
        tokens_per_batch = self._batch_size * self._sequence_length
        for first in range(0, self._end, tokens_per_batch):
            starts = range(first, first + tokens_per_batch, self._sequence_length)
            yield _cut(self._split, starts, self._sequence_length, self._end)


def _cut(split: TokenSplit, starts: Sequence[int], length: int, end: int) -> Batch:
    """Sequences that begin at ``starts``, as if the stream ended at ``end``, where a document ends."""
    shape = (len(starts), length)
    input_ids = np.full(shape, split.eos_id, dtype=np.int64)
    labels = np.full(shape, IGNORED_LABEL, dtype=np.int64)
    document_ids = np.full(shape, PADDING_DOCUMENT, dtype=np.int32)
    for row, start in enumerate(starts):
        if start >= end:
            continue
        stop = min(start + length, end)
        # One more token, the label of the last; signed, since labels are.
        tokens = split.read(start, min(stop + 1, end)).astype(np.int64)
        documents = _documents_of(split, start, len(tokens))
        size = stop - start
        input_ids[row, :size] = tokens[:size]
        document_ids[row, :size] = documents[:size]
        same_document = documents[1:] == documents[:-1]
        labels[row, : len(tokens) - 1] = np.where(same_document, tokens[1:].astype(np.int64), IGNORED_LABEL)
    return Batch(input_ids, labels, document_ids)


def _documents_of(split: TokenSplit, start: int, count: int) -> np.ndarray:
    """Number of the document of each of ``count`` tokens from ``start`` on, int64 [count]."""
    return np.searchsorted(split.document_starts, np.arange(start, start + count), side="right") - 1
