"""Preparation as a whole: the right tokens in the right shards, and clear words where it cannot work."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from tokenizers import models, pre_tokenizers

import train
import train.data.prepare as prepare_module
from laneformer.errors import DataError, TokenizerError
from laneformer.tokenizer import Tokenizer
from tests.train_data.made_up_data import MakeConfig, made_up_code
from train.data.documents import SPLITS, Selection
from train.data.prepare import prepare
from train.data.shards import TokenDataset
from train.data.sources import read_source


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_every_document_is_stored_whole_in_its_split(dataset: TokenDataset, make_config: MakeConfig) -> None:
    config = make_config(dataset.folder)
    selected = list(Selection(read_source(config), config))
    for name in SPLITS:
        split = dataset.split(name)
        expected = [document for document in selected if document.split == name]
        assert split.num_documents == len(expected) > 10
        assert split.document_bytes.tolist() == [document.num_bytes for document in expected]
        bounds = zip(split.document_starts, split.document_starts[1:], expected, strict=False)
        for start, stop, document in bounds:
            tokens = split.read(int(start), int(stop)).tolist()
            assert (tokens[0], tokens[-1]) == (dataset.tokenizer.bos_id, dataset.tokenizer.eos_id)
            assert dataset.tokenizer.decode(tokens[1:-1]) == document.text


def test_shards_are_full_and_hold_whole_documents(dataset: TokenDataset) -> None:
    shards = dataset.manifest.splits["train"]
    assert len(shards) > 3
    largest_document = int(np.diff(dataset.split("train").document_starts).max())
    assert all(4000 <= shard.tokens < 4000 + largest_document for shard in shards[:-1])
    bos, eos = dataset.tokenizer.bos_id, dataset.tokenizer.eos_id
    for shard in shards:
        tokens = np.fromfile(dataset.folder / f"{shard.name}.bin", "<u2")
        assert (tokens[0], tokens[-1]) == (bos, eos)
        assert (tokens == eos).sum() == shard.documents


def test_manifest_describes_the_data(dataset: TokenDataset) -> None:
    manifest = json.loads((dataset.folder / "manifest.json").read_text())
    assert (manifest["format_version"], manifest["complete"], manifest["dtype"]) == (1, True, "uint16")
    assert (manifest["vocab_size"], manifest["bos_id"], manifest["eos_id"]) == (400, 0, 1)
    assert manifest["tokenizer_fingerprint"] == dataset.tokenizer.fingerprint
    assert manifest["data_fingerprint"] == dataset.fingerprint
    assert manifest["document_counts"]["kept"] == 200
    assert manifest["settings"]["vocab_size"] == 400
    dataset.verify()


def test_same_settings_give_the_same_bytes(
    dataset: TokenDataset, make_config: MakeConfig, tmp_path: Path
) -> None:
    prepare(make_config(tmp_path / "a/b"), progress=False)
    assert contents(tmp_path / "a/b") == contents(dataset.folder)


def test_batches_of_encoding_change_nothing(
    dataset: TokenDataset, make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepare_module, "BATCH_BYTES", 1)
    prepare(make_config(tmp_path), progress=False)
    assert contents(tmp_path) == contents(dataset.folder)


def test_finished_folder_is_returned_without_reading_the_source(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config(tmp_path, max_documents=50)
    first = prepare(config, progress=False)
    monkeypatch.delattr(prepare_module, "read_source")
    assert prepare(config, progress=False).fingerprint == first.fingerprint


def test_finished_folder_with_other_settings_is_refused(
    dataset: TokenDataset, make_config: MakeConfig
) -> None:
    before = contents(dataset.folder)
    with pytest.raises(DataError, match=r"made with vocab_size 400 \(now 300\): choose another data.folder"):
        prepare(make_config(dataset.folder, vocab_size=300), progress=False)
    assert contents(dataset.folder) == before


def test_duplicates_are_dropped_and_counted(make_config: MakeConfig, corpus: Path, tmp_path: Path) -> None:
    copies = tmp_path / "copies.jsonl"
    lines = [json.dumps({"text": made_up_code(seed)}) for seed in range(200)]
    copies.write_text("\n".join([*lines, *lines[:7]]), encoding="utf-8")
    config = make_config(tmp_path / "data", paths=[str(corpus / "*.py"), str(copies)])
    prepared = prepare(config, progress=False)
    assert prepared.manifest.document_counts["kept"] == 200
    assert prepared.manifest.document_counts["duplicate"] == 207


def test_tokenizer_is_trained_on_the_training_split_only(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sample: list[str] = []
    train_tokenizer = prepare_module.train_tokenizer

    def spy(texts: list[str], vocab_size: int) -> Tokenizer:
        sample.extend(texts)
        return train_tokenizer(sample, vocab_size)

    monkeypatch.setattr(prepare_module, "train_tokenizer", spy)
    config = make_config(tmp_path, tokenizer_sample_bytes=40_000)
    prepare(config, progress=False)
    expected = [
        document.text for document in Selection(read_source(config), config) if document.split == "train"
    ]
    assert sample == expected[: len(sample)]
    sizes = [len(text.encode()) for text in sample]
    assert sum(sizes[:-1]) < 40_000 <= sum(sizes)


def test_given_tokenizer_is_used_and_saved(
    dataset: TokenDataset, make_config: MakeConfig, tmp_path: Path
) -> None:
    folder = prepare(make_config(tmp_path / "folder", tokenizer=str(dataset.folder)), progress=False)
    file = prepare(
        make_config(tmp_path / "file", tokenizer=str(dataset.folder / "tokenizer.json")), progress=False
    )
    assert folder.tokenizer.fingerprint == dataset.tokenizer.fingerprint
    assert folder.fingerprint == file.fingerprint == dataset.fingerprint


def word_tokenizer(path: Path, special: list[str], num_words: int = 10) -> str:
    """A tokenizer.json of whole words."""
    words = [*special, "?", *(f"word{number}" for number in range(num_words))]
    library_tokenizer = tokenizers.Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, "?"))
    library_tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    library_tokenizer.add_special_tokens(special)
    library_tokenizer.save(str(path))
    return str(path)


def test_tokenizer_without_eos_is_refused(make_config: MakeConfig, tmp_path: Path) -> None:
    tokenizer = word_tokenizer(tmp_path / "tokenizer.json", [])
    with pytest.raises(TokenizerError, match="no EOS token"):
        prepare(make_config(tmp_path / "data", tokenizer=tokenizer), progress=False)


def test_eos_opens_documents_where_there_is_no_bos(make_config: MakeConfig, tmp_path: Path) -> None:
    tokenizer = word_tokenizer(tmp_path / "tokenizer.json", ["<|endoftext|>"])
    prepared = prepare(make_config(tmp_path / "data", tokenizer=tokenizer), progress=False)
    split = prepared.split("train")
    assert (prepared.manifest.bos_id, prepared.manifest.eos_id) == (0, 0)
    assert split.read(0, split.num_tokens)[split.document_starts[:-1]].tolist() == [0] * split.num_documents


def test_large_vocabularies_take_four_bytes(make_config: MakeConfig, tmp_path: Path) -> None:
    tokenizer = word_tokenizer(tmp_path / "tokenizer.json", ["<|eos|>"], num_words=70_000)
    text = tmp_path / "words.jsonl"
    documents = [f"word69999 word{number} " + "word1 " * 20 for number in range(40)]
    text.write_text("\n".join(json.dumps({"text": document}) for document in documents))
    config = make_config(tmp_path / "data", tokenizer=tokenizer, paths=[str(text)])
    prepared = prepare(config, progress=False)
    assert prepared.manifest.dtype == "uint32"
    assert prepared.split("train").read(1, 2).tolist() == [2 + 69_999]


@pytest.mark.parametrize("tokenizer", [None, "given"])
def test_empty_source_says_why(
    dataset: TokenDataset, make_config: MakeConfig, tmp_path: Path, tokenizer: str | None
) -> None:
    given = str(dataset.folder) if tokenizer else None
    config = make_config(
        tmp_path / "data", min_document_bytes=50_000, max_document_bytes=60_000, tokenizer=given
    )
    with pytest.raises(DataError, match=r"no document .* \(0 kept, 0 duplicate, 200 too short"):
        prepare(config, progress=False)
    assert contents(tmp_path / "data") == {}


def test_split_without_documents_says_what_to_change(make_config: MakeConfig, tmp_path: Path) -> None:
    small = {"max_documents": 20, "vocab_size": 300}
    with pytest.raises(DataError, match=r"none of 20 documents .* validation split: raise"):
        prepare(make_config(tmp_path, held_out_fraction=1e-6, **small), progress=False)
    # The failed attempt leaves nothing that would stand against the corrected one.
    assert contents(tmp_path) == {}
    assert prepare(make_config(tmp_path, held_out_fraction=0.3, **small), progress=False)


@pytest.mark.parametrize("name", ["train-00000.bin", "tokenizer.json", "model.safetensors"])
def test_folder_of_another_program_is_left_alone(make_config: MakeConfig, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"precious")
    with pytest.raises(DataError, match=f"holds {name} but no manifest.json"):
        prepare(make_config(tmp_path), progress=False)
    assert contents(tmp_path) == {name: b"precious"}


def test_progress_is_shown_on_request(
    make_config: MakeConfig,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    prepare(make_config(tmp_path / "quiet", max_documents=50), progress=False)
    assert capfd.readouterr() == ("", "")
    prepare(make_config(tmp_path / "shown", max_documents=50), progress=True)
    assert "tokens from text" in capfd.readouterr().err


def test_processes_that_prepare_the_same_folder_take_turns(
    dataset: TokenDataset, make_config: MakeConfig, tmp_path: Path
) -> None:
    program = (
        "import json, sys\n"
        "from train.data.config import DataConfig\n"
        "from train.data.prepare import prepare\n"
        "prepare(DataConfig(**json.loads(sys.argv[1])), progress=False)\n"
    )
    command = [sys.executable, "-c", program, json.dumps(asdict(make_config(tmp_path)))]
    processes = [subprocess.Popen(command, cwd=Path(train.__file__).parents[1]) for _ in range(3)]
    assert [process.wait() for process in processes] == [0, 0, 0]
    assert contents(tmp_path) == contents(dataset.folder)


def test_data_needs_no_torch() -> None:
    code = "import sys, train.data.prepare, train.data.packing; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(train.__file__).parents[1])


def test_folders_that_cannot_be_used_are_told(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    for folder, reason in (
        (tmp_path / "file", "File exists"),
        (tmp_path / "file" / "below", "Not a directory"),
        (tmp_path / ("n" * 300), "File name too long"),
    ):
        with pytest.raises(DataError, match=f"{folder}: .*{reason}"):
            prepare(make_config(folder), progress=False)

    def refuse(path: object, *_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    for call in ("flock", "listing"):
        with monkeypatch.context() as patch, pytest.raises(DataError, match="Permission denied"):
            if call == "flock":
                patch.setattr("train.data.durable_files.fcntl.flock", refuse)
            else:
                patch.setattr(Path, "iterdir", refuse)
            prepare(make_config(tmp_path / call), progress=False)


def test_a_folder_that_cannot_be_written_is_told(make_config: MakeConfig, tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write into any folder")
    tmp_path.chmod(0o555)
    with pytest.raises(DataError, match=r"manifest\.json: cannot be written \(Permission denied\)"):
        prepare(make_config(tmp_path), progress=False)
