"""Text from a data set of the Hugging Face hub, streamed: rows are read as they are needed.

The ``datasets`` library is imported when the first row is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from laneformer.errors import DataError
from train.data.documents import Document


def read_huggingface(dataset: str, subset: str | None, split: str, text_field: str) -> Iterator[Document]:
    """Rows of one split in their stored order; ``dataset`` is a name on the hub or a local folder.

    Raises :class:`DataError` where the name, subset, split or field does not exist, or the connection fails.
    """
    rows = _open(dataset, subset, split)
    row_number = 0
    while True:
        # Any library from the file system to the decoder may fail here; each has its own exceptions.
        try:
            row = next(rows, None)
        except Exception as error:
            raise DataError(
                f"data set {dataset!r}: reading failed at row {row_number} ({_first_line(error)}); "
                "run again to resume"
            ) from None
        if row is None:
            return
        if text_field not in row:
            raise DataError(
                f"data set {dataset!r}: no field {text_field!r}, found {', '.join(row)}; set data.text_field"
            )
        text = row[text_field]
        yield Document(f"{dataset}:{split}:{row_number}", text if isinstance(text, str) else None)
        row_number += 1


def _open(dataset: str, subset: str | None, split: str) -> Iterator[dict[str, Any]]:
    try:
        from datasets import load_dataset
    except ImportError:
        raise DataError("source 'huggingface' needs datasets: pip install 'laneformer[train]'") from None
    try:
        return iter(load_dataset(dataset, subset, split=split, streaming=True))
    except Exception as error:
        wanted = f"data set {dataset!r}, subset {subset or 'default'!r}, split {split!r}"
        raise DataError(
            f"{wanted} cannot be opened ({_first_line(error)}); check these names and the network"
        ) from None


def _first_line(error: Exception) -> str:
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__
