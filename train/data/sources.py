"""Where text comes from: one function for each value of ``data.source``.

A source yields its documents in an order that depends on its contents only, so that reading it twice gives
the same documents; resuming an interrupted preparation relies on that.
"""

from __future__ import annotations

from collections.abc import Iterator

from laneformer.errors import DataError
from train.data.config import DataConfig
from train.data.documents import Document
from train.data.file_source import read_files
from train.data.huggingface_source import read_huggingface
from train.data.python_source import read_python


def read_source(config: DataConfig) -> Iterator[Document]:
    """All documents of the configured source.  Raises :class:`DataError` where it cannot be read."""
    if config.source == "python":
        return read_python()
    if config.source == "files":
        return read_files(config.paths, config.text_field)
    if config.source == "huggingface" and config.dataset is not None:
        return read_huggingface(config.dataset, config.subset, config.split, config.text_field)
    raise DataError(f"data.source {config.source!r} cannot be read with these settings")
