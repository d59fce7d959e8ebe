"""Packing: every target once, none across documents, and an order given by seed and number alone."""

from __future__ import annotations

import tempfile
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laneformer.errors import DataError
from tests.train_data.made_up_data import BOS, EOS, write_split
from train.data.packing import Batch, HeldOutBatches, PackedSequences
from train.data.shards import TokenDataset, TokenSplit

# Tokens of a document all carry its number and their place, so that any mixture shows.
document_lengths = st.lists(st.integers(0, 12), min_size=1, max_size=12)


def split_of_lengths(folder: str, lengths: list[int]) -> TokenSplit:
    documents = [
        [2 + 100 * number + place for place in range(length)] for number, length in enumerate(lengths)
    ]
    return write_split(Path(folder), documents, shard_tokens=20)


def all_targets(lengths: list[int]) -> Counter[tuple[int, int, int]]:
    """(document, token, next token) for every token that has a next one in its document."""
    pairs: Counter[tuple[int, int, int]] = Counter()
    for number, length in enumerate(lengths):
        tokens = [BOS, *(2 + 100 * number + place for place in range(length)), EOS]
        pairs.update((number, *pair) for pair in pairwise(tokens))
    return pairs


def targets(batch: Batch) -> Counter[tuple[int, int, int]]:
    counted = batch.labels != -100
    columns = (batch.document_ids[counted], batch.input_ids[counted], batch.labels[counted])
    return Counter(zip(*(column.tolist() for column in columns), strict=True))


@settings(deadline=None, max_examples=60)
@given(document_lengths, st.integers(1, 9), st.integers(0, 2**32), st.integers(0, 3))
def test_every_token_is_a_target_once_an_epoch(
    lengths: list[int], length: int, seed: int, epoch: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        split = split_of_lengths(folder, lengths)
        if split.num_tokens < length:
            return
        sequences = PackedSequences(split, length, seed)
        count = sequences.num_sequences
        assert targets(sequences.batch(epoch * count, count)) == all_targets(lengths)


@settings(deadline=None, max_examples=60)
@given(document_lengths, st.integers(1, 9), st.integers(1, 4), st.integers(1, 60))
def test_held_out_covers_whole_documents_once(
    lengths: list[int], length: int, batch_size: int, max_tokens: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        held_out = HeldOutBatches(split_of_lengths(folder, lengths), length, batch_size, max_tokens)
        batches = list(held_out)
    covered = lengths[: held_out.num_documents]
    sizes = np.cumsum([size + 2 for size in lengths])
    assert held_out.num_documents == max(1, int((sizes <= max_tokens).sum()))
    found = sum((targets(batch) for batch in batches), Counter())
    assert found == all_targets(covered)
    assert held_out.num_targets == found.total()
    assert held_out.num_bytes == 3 * sum(covered)
    assert len(held_out) == len(batches)
    assert all(batch.input_ids.shape == (batch_size, length) for batch in batches)


def test_a_batch_by_hand(tmp_path: Path) -> None:
    split = write_split(tmp_path, [[10, 11], [20], [30, 31]], shard_tokens=5)
    sequences = PackedSequences(split, sequence_length=4, seed=0)
    assert sequences.num_sequences == 3  # of 11 tokens
    batch = sequences.batch(0, 3)
    assert (batch.input_ids.dtype, batch.labels.dtype, batch.document_ids.dtype) == (
        np.int64,
        np.int64,
        np.int32,
    )
    order = np.argsort(batch.document_ids[:, 0])
    assert batch.input_ids[order].tolist() == [[0, 10, 11, 1], [0, 20, 1, 0], [30, 31, 1, 1]]
    assert batch.labels[order].tolist() == [[10, 11, 1, -100], [20, 1, -100, 30], [31, 1, -100, -100]]
    assert batch.document_ids[order].tolist() == [[0, 0, 0, 0], [1, 1, 1, 2], [2, 2, 2, -1]]


def test_order_is_given_by_seed_and_number_alone(dataset: TokenDataset) -> None:
    split = dataset.split("train")
    sequences = PackedSequences(split, 32, seed=5)
    count = sequences.num_sequences
    straight = sequences.batch(0, 2 * count).input_ids
    rng = np.random.default_rng(0)
    for first in rng.integers(0, 2 * count - 7, size=20):
        for asked in (sequences, PackedSequences(split, 32, seed=5)):  # used before, and fresh
            assert np.array_equal(asked.batch(int(first), 7).input_ids, straight[first : first + 7])
    assert not np.array_equal(straight[:count], straight[count:])  # epochs differ
    assert not np.array_equal(PackedSequences(split, 32, seed=6).batch(0, count).input_ids, straight[:count])
    in_stream = np.stack([split.read(32 * number, 32 * number + 32) for number in range(count - 1)])
    assert not np.array_equal(in_stream[:20], straight[:20])  # the order is not the stream's


def test_order_is_what_it_always_was(tmp_path: Path) -> None:
    """Resuming a run with a newer program must not change its data."""
    split = write_split(tmp_path, [[number] for number in range(2, 12)], shard_tokens=100)
    sequences = PackedSequences(split, sequence_length=3, seed=1234)
    assert sequences.batch(0, 20).input_ids[:, 1].tolist() == [
        *(10, 11, 7, 2, 4, 8, 6, 9, 3, 5),
        *(3, 6, 2, 7, 4, 10, 11, 9, 8, 5),
    ]


def test_split_shorter_than_one_sequence_is_refused(tmp_path: Path) -> None:
    split = write_split(tmp_path, [[5, 6]], shard_tokens=100)
    assert PackedSequences(split, sequence_length=4, seed=0).num_sequences == 1
    with pytest.raises(DataError, match="validation split has 4 tokens, fewer than one sequence of 5"):
        PackedSequences(split, sequence_length=5, seed=0)


@pytest.mark.parametrize(("length", "seed"), [(0, 0), (4, -1)])
def test_senseless_arguments_are_refused(tmp_path: Path, length: int, seed: int) -> None:
    split = write_split(tmp_path, [[5, 6]], shard_tokens=100)
    with pytest.raises(DataError, match=f"sequence length {length} and seed {seed}"):
        PackedSequences(split, sequence_length=length, seed=seed)
