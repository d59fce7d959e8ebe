"""``manifest.json``: what a data folder holds and how far its preparation has come.

While shards are being written the manifest says ``"complete": false``; a shard exists once it is listed.
"""

from __future__ import annotations

import hashlib
import json
import reprlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from laneformer.errors import DataError
from train.data.config import settings_fingerprint
from train.data.documents import SPLITS
from train.data.durable_files import write_durably

MANIFEST_FILE = "manifest.json"
FORMAT_VERSION = 1
# The largest vocabulary whose ids fit into each type of token.
LARGEST_VOCABULARY = {"uint16": 2**16, "uint32": 2**32}
LARGEST_COUNT = 2**48  # of a shard: sums over shards and sizes in bytes stay within int64


@dataclass(frozen=True)
class ShardRecord:
    """One shard: its size, and SHA-256, in hex, of its two files.

    ``bytes`` counts the UTF-8 text that the shard was made of; ``content_sha256`` is over the SHA-256 of its
    documents and lets a resumed preparation see that the source is still the same.
    """

    name: str
    tokens: int
    documents: int
    bytes: int
    sha256: str
    documents_sha256: str
    content_sha256: str

    def check(self, name: str) -> None:
        """ValueError for a value that does not belong in the record of shard ``name``."""
        _require(self.name == name, "name of a shard", self.name, name)
        for key in ("tokens", "documents"):
            _require_whole(f"{name}.{key}", getattr(self, key), 1, LARGEST_COUNT)
        _require_whole(f"{name}.bytes", self.bytes, 0, LARGEST_COUNT)
        for key in ("sha256", "documents_sha256", "content_sha256"):
            _require_text(f"{name}.{key}", getattr(self, key))


@dataclass
class Manifest:
    """Contents of manifest.json.  ``dtype`` is ``uint16`` or ``uint32``, stored little-endian.

    ``data_fingerprint`` is set once ``complete``; ``document_counts`` says how many documents of the source
    were kept, and how many were dropped for which reason.
    """

    dtype: str
    vocab_size: int
    bos_id: int
    eos_id: int
    tokenizer_fingerprint: str
    settings: dict[str, Any]
    settings_fingerprint: str
    splits: dict[str, list[ShardRecord]] = field(default_factory=lambda: {split: [] for split in SPLITS})
    document_counts: dict[str, int] = field(default_factory=dict)
    data_fingerprint: str | None = None
    complete: bool = False
    format_version: int = FORMAT_VERSION

    @classmethod
    def read(cls, folder: Path) -> Manifest | None:
        """Manifest of a folder, None where it has none.  :class:`DataError` where it cannot be used."""
        path = folder / MANIFEST_FILE
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            raise DataError(
                f"{path}: cannot be read ({error}); remove the folder to prepare it anew"
            ) from None
        version = values.get("format_version") if isinstance(values, dict) else None
        if type(version) is not int or version != FORMAT_VERSION:
            raise DataError(
                f"{path}: format version {version}, this program reads {FORMAT_VERSION}; "
                "prepare the data in another folder"
            )
        try:
            splits = {split: [ShardRecord(**shard) for shard in values["splits"][split]] for split in SPLITS}
            manifest = cls(**{**values, "splits": splits})
            manifest.check()
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"{path}: damaged ({error}); remove the folder to prepare it anew") from None
        return manifest

    def check(self) -> None:
        """ValueError for a value that :func:`~train.data.prepare.prepare` does not write."""
        largest = LARGEST_VOCABULARY.get(self.dtype if isinstance(self.dtype, str) else "", 0)
        _require(largest > 0, "dtype", self.dtype, f"one of {', '.join(LARGEST_VOCABULARY)}")
        _require_whole("vocab_size", self.vocab_size, 1, largest)
        _require_whole("bos_id", self.bos_id, 0, self.vocab_size - 1)
        _require_whole("eos_id", self.eos_id, 0, self.vocab_size - 1)
        _require_text("tokenizer_fingerprint", self.tokenizer_fingerprint)
        _require(isinstance(self.settings, dict), "settings", self.settings, "an object")
        found = settings_fingerprint(self.settings)
        _require(self.settings_fingerprint == found, "settings_fingerprint", self.settings_fingerprint, found)
        _require(isinstance(self.document_counts, dict), "document_counts", self.document_counts, "an object")
        for reason, count in self.document_counts.items():
            _require_whole(f"document_counts.{reason}", count, 0)
        _require(isinstance(self.complete, bool), "complete", self.complete, "true or false")
        if self.data_fingerprint is not None or self.complete:
            _require_text("data_fingerprint", self.data_fingerprint)
        for split, shards in self.splits.items():
            for number, shard in enumerate(shards):
                shard.check(shard_name(split, number))

    def write(self, folder: Path) -> None:
        """Replace the folder's manifest in one step."""
        text = json.dumps(asdict(self), indent=1, sort_keys=True) + "\n"
        write_durably(folder / MANIFEST_FILE, text.encode())

    def require_settings(self, settings: Mapping[str, Any], folder: Path) -> None:
        """:class:`DataError` where the folder was prepared, or begun, with other settings."""
        if self.settings_fingerprint == settings_fingerprint(settings):
            return
        names = sorted(self.settings.keys() | settings.keys())
        differences = [
            f"{name} {self.settings.get(name)!r} (now {settings.get(name)!r})"
            for name in names
            if self.settings.get(name) != settings.get(name)
        ]
        state = "a data set" if self.complete else "an unfinished data set"
        raise DataError(
            f"{folder} holds {state} made with {', '.join(differences)}: "
            "choose another data.folder or remove this one"
        )

    def fingerprint_of_data(self) -> str:
        """SHA-256, in hex, over the tokenizer and the hashes of all shards: equal means the same tokens."""
        shards = {
            split: [[shard.sha256, shard.documents_sha256] for shard in self.splits[split]]
            for split in SPLITS
        }
        values = [self.format_version, self.dtype, self.tokenizer_fingerprint, shards]
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def shard_name(split: str, number: int) -> str:
    """Name of both files of a shard, without their suffixes: ``train-00000``."""
    return f"{split}-{number:05d}"


def _require(holds: bool, name: str, found: object, expected: str) -> None:
    if not holds:
        raise ValueError(f"{name} is {reprlib.repr(found)}, expected {expected}")


def _require_whole(name: str, found: object, least: int, most: int | None = None) -> None:
    holds = type(found) is int and found >= least and (most is None or found <= most)
    expected = f"of at least {least}" if most is None else f"from {least} to {most}"
    _require(holds, name, found, f"a whole number {expected}")


def _require_text(name: str, found: object) -> None:
    _require(isinstance(found, str), name, found, "text")
