"""Turn a source of text into a folder of token shards.

    dataset = prepare(DataConfig(source="python", folder="data/python", max_bytes=60_000_000))

The steps:

1. Look into the folder.  A finished data set with the same settings is returned at once, one with other
   settings is an error, an unfinished one is resumed.
2. Read the source (:mod:`train.data.sources`) and select documents (:mod:`train.data.documents`): drop
   what is too short, too long, not text or a duplicate; send each to its split by the hash of its content.
3. Load the given tokenizer, or train one on the first documents of the training split
   (:mod:`train.data.tokenizer_training`), and save it in the folder.
4. Encode the documents, read once more, in batches: ``BOS tokens EOS`` each.
5. Append them to shards (:mod:`train.data.shard_writer`); a shard is on the disk, whole, before the
   manifest lists it.
6. Mark the manifest complete, with a fingerprint of all shards.

A run that was stopped, at whatever moment, leaves finished shards and perhaps unlisted files.  The next run
removes the latter, reads the source again, passes over the documents of finished shards and continues at
the first unfinished one; every file comes out as if nothing had happened.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tqdm import tqdm

from laneformer.errors import DataError, TokenizerError
from laneformer.tokenizer import SETTINGS_FILE, TOKENIZER_FILE, Tokenizer
from train.data.config import DataConfig, settings_fingerprint
from train.data.documents import SPLITS, KeptDocument, Selection
from train.data.durable_files import exclusive, write_durably
from train.data.leftovers import discard, remove_unlisted_files, require_empty
from train.data.manifest import LARGEST_VOCABULARY, Manifest
from train.data.shard_writer import ShardWriter
from train.data.shards import TokenDataset
from train.data.sources import read_source
from train.data.tokenizer_training import train_tokenizer

# Text that is encoded together, on all cores. Measured on 2 cores: 0.25 MB takes a third longer, 8 MB no
# less time but 150 MB more memory.
BATCH_BYTES = 2_000_000


def prepare(config: DataConfig, *, progress: bool = True) -> TokenDataset:
    """The data set that ``config`` describes, prepared now where ``config.folder`` does not hold it yet.

    Processes that prepare the same folder take turns, so all but the first find it finished.
    Raises :class:`DataError` for settings, sources and folders that do not work, a full disk among them,
    and :class:`TokenizerError` for a given tokenizer that does not.
    """
    config.validate()
    given = _given_tokenizer(config)
    settings = config.settings(given.fingerprint if given else None)
    folder = Path(config.folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(
            f"{folder}: cannot be made into a folder ({error.strerror}); set data.folder"
        ) from None
    try:
        _prepare_folder(config, folder, settings, given, progress)
    except OSError as error:  # to lock, list or clean the folder; reading and writing have words of their own
        raise DataError(f"{error.filename or folder}: {error.strerror or error}; check data.folder") from None
    return TokenDataset(folder)


def _prepare_folder(
    config: DataConfig, folder: Path, settings: dict[str, Any], given: Tokenizer | None, progress: bool
) -> None:
    with exclusive(folder):
        manifest = Manifest.read(folder)
        if manifest is None:
            require_empty(folder)
        else:
            manifest.require_settings(settings, folder)
        if manifest is None or not any(manifest.splits.values()):
            manifest = _begin(config, folder, given, progress)
        if not manifest.complete:
            remove_unlisted_files(folder, manifest)
            _write_shards(config, folder, manifest, progress)


def _given_tokenizer(config: DataConfig) -> Tokenizer | None:
    if config.tokenizer is None:
        return None
    path = Path(config.tokenizer)
    tokenizer = Tokenizer.from_folder(path) if path.is_dir() else Tokenizer.from_file(path)
    if tokenizer.eos_id is None:
        raise TokenizerError(f"{path}: no EOS token, which separates documents; name one in {SETTINGS_FILE}")
    return tokenizer


def _begin(config: DataConfig, folder: Path, given: Tokenizer | None, progress: bool) -> Manifest:
    """Save a manifest without shards, which claims the folder, and the tokenizer.

    A run that is stopped before the first shard begins here again.
    """
    tokenizer = given or train_tokenizer(_tokenizer_sample(config, progress), config.vocab_size)
    assert tokenizer.eos_id is not None
    settings = config.settings(given.fingerprint if given else None)
    manifest = Manifest(
        dtype="uint16" if tokenizer.vocab_size <= LARGEST_VOCABULARY["uint16"] else "uint32",
        vocab_size=tokenizer.vocab_size,
        # Without a BOS of its own, EOS opens a document too: the first token of the text then has something
        # that it is predicted from, and the loss covers every byte.
        bos_id=tokenizer.eos_id if tokenizer.bos_id is None else tokenizer.bos_id,
        eos_id=tokenizer.eos_id,
        tokenizer_fingerprint=tokenizer.fingerprint,
        settings=settings,
        settings_fingerprint=settings_fingerprint(settings),
    )
    manifest.write(folder)
    # As Tokenizer.save, but known to be on the disk before any shard relies on it.
    write_durably(folder / TOKENIZER_FILE, tokenizer.to_text().encode())
    write_durably(folder / SETTINGS_FILE, tokenizer.settings_text().encode())
    return manifest


def _tokenizer_sample(config: DataConfig, progress: bool) -> Iterator[str]:
    selection = Selection(read_source(config), config)
    left = config.tokenizer_sample_bytes
    with _bar("tokenizer sample", left, progress) as bar:
        for document in selection:
            if document.split == "train":
                yield document.text
                bar.update(document.num_bytes)
                left -= document.num_bytes
                if left <= 0:
                    return
    _require_documents(selection)


def _write_shards(config: DataConfig, folder: Path, manifest: Manifest, progress: bool) -> None:
    tokenizer = _saved_tokenizer(folder, manifest)
    writers = {
        split: ShardWriter(
            folder,
            split,
            manifest.splits[split],
            manifest.dtype,
            config.shard_tokens,
            announce=lambda: manifest.write(folder),
        )
        for split in SPLITS
    }
    selection = Selection(read_source(config), config)
    with _bar("tokens from text", config.max_bytes, progress) as bar:
        for batch in _batches(selection):
            missing = [document for document in batch if not writers[document.split].skip(document)]
            encoded = tokenizer.encode_plain([document.text for document in missing])
            for document, ids in zip(missing, encoded, strict=True):
                writers[document.split].add(document, [manifest.bos_id, *ids, manifest.eos_id])
            bar.update(sum(document.num_bytes for document in batch))
    for writer in writers.values():
        writer.close()
    try:
        _require_documents(selection)
        _require_both_splits(manifest, selection)
    except DataError:
        # There is nothing to resume, and the settings have to change.
        discard(folder, manifest)
        raise
    manifest.document_counts = selection.counts
    manifest.data_fingerprint = manifest.fingerprint_of_data()
    manifest.complete = True
    manifest.write(folder)


def _saved_tokenizer(folder: Path, manifest: Manifest) -> Tokenizer:
    tokenizer = Tokenizer.from_folder(folder)
    if tokenizer.fingerprint != manifest.tokenizer_fingerprint:
        raise DataError(f"{folder}: its tokenizer was changed; remove the folder to start again")
    return tokenizer


def _batches(documents: Iterable[KeptDocument]) -> Iterator[list[KeptDocument]]:
    batch: list[KeptDocument] = []
    num_bytes = 0
    for document in documents:
        batch.append(document)
        num_bytes += document.num_bytes
        if num_bytes >= BATCH_BYTES:
            yield batch
            batch, num_bytes = [], 0
    if batch:
        yield batch


def _require_documents(selection: Selection) -> None:
    if selection.counts["kept"] == 0:
        raise DataError(
            f"no document of the source can be used ({selection.describe()}): check the source and "
            "data.min_document_bytes, data.max_document_bytes, data.max_bytes"
        )


def _require_both_splits(manifest: Manifest, selection: Selection) -> None:
    for split, change in (("validation", "raise"), ("train", "lower")):
        if not manifest.splits[split]:
            fraction = manifest.settings["held_out_fraction"]
            raise DataError(
                f"none of {selection.counts['kept']} documents falls into the {split} split: "
                f"{change} data.held_out_fraction (now {fraction}) or give more documents"
            )


def _bar(description: str, total: int | None, progress: bool) -> tqdm:
    on_terminal = sys.stderr.isatty()
    return tqdm(
        desc=description,
        total=total,
        unit="B",
        unit_scale=True,
        disable=not progress,
        dynamic_ncols=True,
        delay=0.0 if on_terminal else 10.0,  # into a log only what takes long, and seldom
        mininterval=0.1 if on_terminal else 10.0,
    )
