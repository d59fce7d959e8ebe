"""Settings of a data set: what to read, how to cut it into tokens, where to keep the shards.

A plain dataclass, so that it also serves as a structured configuration: ``configs/data/*.yaml`` hold the
values for each kind of source.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from laneformer.errors import DataError
from train.data.tokenizer_training import SMALLEST_VOCABULARY

SOURCE_FIELDS: dict[str, tuple[str, ...]] = {
    "python": (),
    "files": ("paths", "text_field"),
    "huggingface": ("dataset", "subset", "split", "text_field"),
}


@dataclass
class DataConfig:
    """Everything that decides the contents of a data set; sizes of text are in UTF-8 bytes.

    ``max_bytes`` and ``max_documents`` count kept documents of both splits; None means no limit.
    ``tokenizer`` is a tokenizer.json or a folder with one; where None, one of ``vocab_size`` tokens is
    trained on the first ``tokenizer_sample_bytes`` of the training split.
    ``held_out_fraction`` is the share of documents (not of bytes) that goes to the validation split.
    """

    folder: str = "data/python"
    source: str = "python"

    paths: list[str] = field(default_factory=list)
    text_field: str = "text"
    dataset: str | None = None
    subset: str | None = None
    split: str = "train"

    max_bytes: int | None = None
    max_documents: int | None = None
    min_document_bytes: int = 64
    max_document_bytes: int = 1_000_000
    held_out_fraction: float = 0.02

    tokenizer: str | None = None
    vocab_size: int = 4096
    tokenizer_sample_bytes: int = 20_000_000

    shard_tokens: int = 10_000_000

    def validate(self) -> None:
        """Raise :class:`DataError` for the first setting that does not make sense."""
        if self.source not in SOURCE_FIELDS:
            raise DataError(f"data.source is {self.source!r}; expected one of {', '.join(SOURCE_FIELDS)}")
        if not self.folder:
            raise DataError("data.folder is empty; give the folder where the shards shall go")
        if self.source == "files" and not self.paths:
            raise DataError("data.paths is empty; source 'files' needs at least one path or glob")
        if self.source == "huggingface" and not self.dataset:
            raise DataError("data.dataset is not set; source 'huggingface' needs the name of a data set")
        if not 0.0 < self.held_out_fraction < 1.0:
            raise DataError(f"data.held_out_fraction is {self.held_out_fraction}; expected between 0 and 1")
        for name in ("max_bytes", "max_documents"):
            if getattr(self, name) is not None:
                self._require_at_least(name, 1)
        for name in ("min_document_bytes", "tokenizer_sample_bytes", "shard_tokens"):
            self._require_at_least(name, 1)
        self._require_at_least("max_document_bytes", self.min_document_bytes)
        if self.tokenizer is None:
            self._require_at_least("vocab_size", SMALLEST_VOCABULARY)

    def settings(self, tokenizer_fingerprint: str | None) -> dict[str, Any]:
        """The settings that decide the shards, ready for JSON; the others are left out.

        A tokenizer that was given, not trained, counts by its ``tokenizer_fingerprint``: its path may change.
        """
        left_out = {"folder"}
        left_out.update(name for names in SOURCE_FIELDS.values() for name in names)
        left_out.difference_update(SOURCE_FIELDS[self.source])
        if tokenizer_fingerprint is not None:
            left_out.update(("vocab_size", "tokenizer_sample_bytes"))
        values = {name: value for name, value in asdict(self).items() if name not in left_out}
        values["tokenizer"] = tokenizer_fingerprint
        return values

    def _require_at_least(self, name: str, least: int) -> None:
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise DataError(f"data.{name} is {value!r}; expected a whole number of at least {least}")


def settings_fingerprint(settings: Mapping[str, Any]) -> str:
    """SHA-256, in hex, of the values of :meth:`DataConfig.settings`."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
