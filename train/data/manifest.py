"""``manifest.json``: what a data folder holds and how far its preparation has come.

While shards are being written the manifest says ``"complete": false``; a shard exists once it is listed.
"""

from __future__ import annotations

import hashlib
import json
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
        except (OSError, ValueError) as error:
            raise DataError(
                f"{path}: cannot be read ({error}); remove the folder to prepare it anew"
            ) from None
        version = values.get("format_version") if isinstance(values, dict) else None
        if version != FORMAT_VERSION:
            raise DataError(
                f"{path}: format version {version}, this program reads {FORMAT_VERSION}; "
                "prepare the data in another folder"
            )
        try:
            splits = {split: [ShardRecord(**shard) for shard in values["splits"][split]] for split in SPLITS}
            return cls(**{**values, "splits": splits})
        except (KeyError, TypeError) as error:
            raise DataError(f"{path}: damaged ({error}); remove the folder to prepare it anew") from None

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
