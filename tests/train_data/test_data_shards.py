"""Reading shards: one stream across files, and words for every kind of damage."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from laneformer.errors import DataError
from tests.train_data.made_up_data import BOS, EOS, write_split
from train.data.manifest import Manifest, ShardRecord
from train.data.packing import HeldOutBatches, PackedSequences
from train.data.shards import TokenDataset


@pytest.fixture
def copy(dataset: TokenDataset, tmp_path: Path) -> Path:
    """A copy of the prepared corpus, to be damaged."""
    return Path(shutil.copytree(dataset.folder, tmp_path / "copy"))


def test_any_range_reads_as_from_one_array(tmp_path_factory: pytest.TempPathFactory) -> None:
    documents = [[100 + number] * (number % 5) for number in range(30)]
    split = write_split(tmp_path_factory.mktemp("split"), documents, shard_tokens=8)
    stream = np.array([token for document in documents for token in (BOS, *document, EOS)])
    assert split.num_tokens == len(stream) and split.num_documents == 30
    assert split.document_starts.dtype == split.document_bytes.dtype == np.int64
    assert np.array_equal(split.document_starts, np.flatnonzero(np.append(stream == BOS, True)))
    assert split.document_bytes.tolist() == [3 * len(document) for document in documents]

    @given(st.integers(0, len(stream)), st.integers(0, len(stream)))
    def check(one: int, other: int) -> None:
        start, stop = sorted((one, other))
        tokens = split.read(start, stop)
        assert tokens.dtype == np.uint16 and np.array_equal(tokens, stream[start:stop])

    check()
    for start, stop in ((-1, 3), (3, 2), (0, len(stream) + 1)):
        with pytest.raises(IndexError):
            split.read(start, stop)


def test_reading_does_not_write(dataset: TokenDataset) -> None:
    before = dataset.split("train").read(0, 10)
    dataset.split("train").read(0, 10)[:] = 7
    assert np.array_equal(dataset.split("train").read(0, 10), before)


def test_unknown_split_is_named(dataset: TokenDataset) -> None:
    with pytest.raises(DataError, match="no split 'test'; expected one of train, validation"):
        dataset.split("test")


@pytest.mark.parametrize("name", ["train-00001.bin", "validation-00000.documents.npy"])
@pytest.mark.parametrize("change", ["missing", "truncated", "empty", "longer"])
def test_damaged_shard_is_named(copy: Path, name: str, change: str) -> None:
    path = copy / name
    content = path.read_bytes()
    path.write_bytes({"truncated": content[:-2], "empty": b"", "longer": content + b"xx"}.get(change, b""))
    if change == "missing":
        path.unlink()
    if change == "longer" and name.endswith(".npy"):
        # The array in front is whole; only the hash sees what follows it.
        with pytest.raises(DataError, match=name):
            TokenDataset(copy).verify()
        return
    with pytest.raises(DataError, match=name):
        TokenDataset(copy)


def test_document_sizes_that_do_not_fit_are_noticed(copy: Path) -> None:
    path = copy / "train-00000.documents.npy"
    sizes = np.load(path)
    negative = sizes.copy()
    negative[:2, 1] += [10**6, -(10**6)]  # the sums are right
    structured = np.array([("a", 1)], dtype=[("x", "S1"), ("y", int)])
    other_types = [sizes.astype(kind) for kind in ("f8", "S9", "<i4")]
    other_shapes = [sizes[:-1], sizes[:, 0], sizes[None], np.array(5)]
    for wrong in (sizes + 1, negative, structured, *other_types, *other_shapes):
        np.save(path, wrong)
        with pytest.raises(DataError, match=r"train-00000\.documents\.npy: damaged"):
            TokenDataset(copy)


def test_document_sizes_in_another_container_are_noticed(copy: Path) -> None:
    path = copy / "train-00000.documents.npy"
    sizes = np.load(path)
    archive = io.BytesIO()
    np.savez(archive, sizes)
    head = b"\x93NUMPY\x01\x00"
    nested = b"(" * 9000
    for content in (archive.getvalue(), b"PK\x03\x04junk", head + len(nested).to_bytes(2, "little") + nested):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"train-00000\.documents\.npy: damaged"):
            TokenDataset(copy)


def test_ids_beyond_the_vocabulary_are_refused_when_read(copy: Path) -> None:
    vocab_size = TokenDataset(copy).manifest.vocab_size
    tokens = np.memmap(copy / "train-00001.bin", dtype="<u2", mode="r+")
    tokens[10] = vocab_size - 1
    split = TokenDataset(copy).split("train")
    everything = split.read(0, split.num_tokens)
    tokens[10] = vocab_size
    tokens.flush()
    split = TokenDataset(copy).split("train")  # the size is right
    first = len(np.fromfile(copy / "train-00000.bin", "<u2"))
    assert np.array_equal(split.read(0, first + 10), everything[: first + 10])
    complaint = rf"train-00001\.bin: damaged: found token id {vocab_size} at 10, expected below {vocab_size}"
    for start, stop in ((0, split.num_tokens), (first + 10, first + 11)):
        with pytest.raises(DataError, match=complaint):
            split.read(start, stop)
    with pytest.raises(DataError, match=complaint):
        sequences = PackedSequences(split, 64, seed=0)
        sequences.batch(0, sequences.num_sequences)
    with pytest.raises(DataError, match=complaint):
        list(HeldOutBatches(split, 64, batch_size=4, max_tokens=split.num_tokens))


def test_verify_names_a_file_that_is_gone(copy: Path) -> None:
    prepared = TokenDataset(copy)
    (copy / "train-00001.bin").unlink()
    with pytest.raises(DataError, match=r"train-00001\.bin: cannot be read"):
        prepared.verify()


def test_verify_finds_a_changed_token(copy: Path) -> None:
    path = copy / "train-00002.bin"
    content = bytearray(path.read_bytes())
    content[10] ^= 1
    path.write_bytes(content)
    prepared = TokenDataset(copy)  # the size is right
    with pytest.raises(DataError, match=r"train-00002\.bin: damaged: found SHA-256"):
        prepared.verify()


def test_folder_without_data_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no manifest\.json"):
        TokenDataset(tmp_path / "absent")


def change_version(manifest: dict[str, Any]) -> None:
    manifest["format_version"] = 2


def drop_split(manifest: dict[str, Any]) -> None:
    del manifest["splits"]["train"]


def drop_hash(manifest: dict[str, Any]) -> None:
    del manifest["splits"]["train"][0]["sha256"]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (change_version, "format version 2, this program reads 1"),
        (drop_split, "damaged"),
        (drop_hash, "damaged"),
    ],
)
def test_manifest_that_does_not_fit(
    copy: Path, change: Callable[[dict[str, Any]], None], complaint: str
) -> None:
    path = copy / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))
    with pytest.raises(DataError, match=complaint):
        TokenDataset(copy)


WRONG_VALUES = (None, 5, -1, 1.5, True, "foo", [], {}, [5], {"a": 5}, float("nan"), 10**30)


@pytest.mark.parametrize("key", [field.name for field in fields(Manifest)])
def test_wrong_values_in_the_manifest_are_damage(copy: Path, key: str) -> None:
    path = copy / "manifest.json"
    manifest = json.loads(path.read_text())
    # What could stand there as well, as far as the manifest alone tells.
    fitting: dict[str, list[Any]] = {"vocab_size": [5], "bos_id": [5], "eos_id": [5], "complete": [True]}
    fitting |= {"document_counts": [{}, {"a": 5}]}
    fitting |= {"tokenizer_fingerprint": ["foo"], "data_fingerprint": ["foo"]}
    for wrong in WRONG_VALUES:
        if json.dumps(wrong) in map(json.dumps, fitting.get(key, [])):
            continue
        path.write_text(json.dumps(manifest | {key: wrong}))
        with pytest.raises(DataError, match=r"manifest\.json: (damaged|format version)"):
            TokenDataset(copy)


@pytest.mark.parametrize("key", [field.name for field in fields(ShardRecord)])
def test_wrong_values_of_a_shard_are_damage(copy: Path, key: str) -> None:
    path = copy / "manifest.json"
    manifest = json.loads(path.read_text())
    record = manifest["splits"]["train"][1]
    right = record[key]
    for wrong in (None, [], {}, 1.5, True, -1, 0, "" if isinstance(right, int) else 5, 10**30):
        if key == "bytes" and wrong == 0:
            continue  # for the sizes of the documents to refuse
        record[key] = wrong
        path.write_text(json.dumps(manifest))
        with pytest.raises(DataError, match=r"manifest\.json: damaged"):
            TokenDataset(copy)


def test_a_shard_cannot_be_named_out_of_the_folder(copy: Path) -> None:
    path = copy / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["splits"]["train"][0]["name"] = "../copy/train-00000"
    path.write_text(json.dumps(manifest))
    with pytest.raises(DataError, match=r"manifest\.json: damaged \(name of a shard"):
        TokenDataset(copy)


@pytest.mark.parametrize("text", ["", "{", "[]", "[" * 100_000, '{"format_version": ' + "1" * 5000 + "}"])
def test_manifest_that_is_no_manifest(copy: Path, text: str) -> None:
    (copy / "manifest.json").write_text(text)
    with pytest.raises(DataError, match=r"manifest\.json"):
        TokenDataset(copy)


def test_another_tokenizer_is_noticed(copy: Path) -> None:
    path = copy / "tokenizer.json"
    values = json.loads(path.read_text())
    values["model"]["merges"].pop()
    path.write_text(json.dumps(values))
    with pytest.raises(DataError, match="not the one that made the tokens"):
        _ = TokenDataset(copy).tokenizer
