"""Text from files: plain text, JSON lines and Parquet.

The kind follows from the name: ``.jsonl`` and ``.jsonl.gz`` hold one document a line, ``.parquet`` one a
row, and any other file is one document.  Files are read in the order of their paths.
"""

from __future__ import annotations

import glob
import gzip
import json
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from laneformer.errors import DataError
from train.data.documents import Document

PARQUET_ROWS = 256  # read at a time: rows may be large


def read_files(patterns: Sequence[str], text_field: str) -> Iterator[Document]:
    """Documents of all files that match; ``text_field`` names the field or column with the text.

    ``**`` matches folders of any depth and ``~`` the home folder; a file that matches twice is read once.
    Raises :class:`DataError` for a pattern without a file and for a malformed line, naming file and line.
    """
    for path in matching_files(patterns):
        if path.name.endswith((".jsonl", ".jsonl.gz")):
            yield from _read_json_lines(path, text_field)
        elif path.suffix == ".parquet":
            yield from _read_parquet(path, text_field)
        else:
            yield Document(str(path), _read_text(path))


def matching_files(patterns: Sequence[str]) -> list[Path]:
    """Files that match any pattern, sorted by path.  :class:`DataError` for a pattern without one."""
    found: set[Path] = set()
    for pattern in patterns:
        try:
            expanded = Path(pattern).expanduser()
        except RuntimeError as error:
            raise DataError(f"data.paths: {pattern!r} names no home folder ({error})") from None
        matches = glob.glob(str(expanded), recursive=True)
        files = {path for path in map(Path, matches) if path.is_file()}
        if not files:
            raise DataError(f"data.paths: no file matches {pattern!r} (working folder {Path.cwd()})")
        found |= files
    return sorted(found)


def _read_text(path: Path) -> str | None:
    try:
        # Line breaks stay as they are; a byte order mark is no text.
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError:
        return None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None
    return None if "\0" in text else text


def _read_json_lines(path: Path, text_field: str) -> Iterator[Document]:
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    name = f"{path}:{number}"
                    yield Document(name, _text_of_line(line, text_field, name))
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read ({error}); is the file complete?") from None


def _text_of_line(line: bytes, text_field: str, name: str) -> str:
    try:
        values = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{name}: not a line of JSON ({error})") from None
    if not isinstance(values, dict):
        raise DataError(f"{name}: expected a JSON object, found {type(values).__name__}")
    if text_field not in values:
        raise DataError(f"{name}: no field {text_field!r}, found {_listed(values)}; set data.text_field")
    text = values[text_field]
    if not isinstance(text, str):
        raise DataError(f"{name}: field {text_field!r} is {type(text).__name__}, expected text")
    return text


def _read_parquet(path: Path, text_field: str) -> Iterator[Document]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise DataError(f"{path}: Parquet needs pyarrow: pip install 'laneformer[train]'") from None
    try:
        with parquet.ParquetFile(path) as file:
            columns = file.schema_arrow.names
            if text_field not in columns:
                raise DataError(
                    f"{path}: no column {text_field!r}, found {_listed(columns)}; set data.text_field"
                )
            row = 0
            for batch in file.iter_batches(batch_size=PARQUET_ROWS, columns=[text_field]):
                for text in batch.column(0).to_pylist():
                    yield Document(f"{path}:{row}", text if isinstance(text, str) else None)
                    row += 1
    except (OSError, ArrowException) as error:
        raise DataError(f"{path}: cannot be read as Parquet ({error})") from None


def _listed(names: Any) -> str:
    return ", ".join(sorted(names)) or "none"
