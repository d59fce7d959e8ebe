"""Reads the records of a problem set: from a file, or from a Hugging Face data set.

Records come as they are, one object a problem; the suites check and understand them.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import logging
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from laneformer.errors import EvaluationError

FILE_ENDINGS = (".jsonl", ".jsonl.gz", ".json")


def read_records(source: str | Path, *, split: str | None = None) -> tuple[Iterator[Any], str]:
    """The records of ``source``, and what to call it in messages.

    A file holds one JSON object a line (.jsonl, .jsonl.gz) or one array of them (.json).  What is no
    file is a Hugging Face data set's name or folder, ``NAME`` or ``NAME:CONFIGURATION``, of which
    ``split`` is read, or all splits.  Raises EvaluationError, here or while records are read, naming
    the source and what is wrong with it.
    """
    path = Path(source)
    try:
        is_file = path.is_file()
    except OSError as error:  # no permission to look, or a name that is too long
        raise EvaluationError(f"{path} cannot be read: {error.strerror}") from None
    if is_file:
        return file_records(path), str(path)
    if path.name.endswith(FILE_ENDINGS):
        raise EvaluationError(f"the problem file {path} does not exist")
    return _dataset_records(str(source), split), f"the data set {source}"


def file_records(path: Path) -> Iterator[Any]:
    """The records of a file, see :func:`read_records`."""
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8") as file:
            if path.suffix == ".json":
                yield from _array(file.read(), str(path))
                return
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield _json(line, f"{path}, line {number}")
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise EvaluationError(f"{path} cannot be read: {error}") from None


def _array(text: str, where: str) -> list[Any]:
    records = _json(text, where)
    if not isinstance(records, list):
        raise EvaluationError(f"{where} is {type(records).__name__}, expected an array of problems")
    return records


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:  # also a number of thousands of digits, deep nesting
        raise EvaluationError(f"{where} is not JSON: {error}") from None


def _dataset_records(name: str, split: str | None) -> Iterator[Any]:
    try:
        import datasets
    except ImportError:
        raise EvaluationError(
            f"no file is called {name}, and loading a data set of that name needs: pip install datasets"
        ) from None
    path, _, configuration = name.partition(":")
    options = {"name": configuration} if configuration else {}
    # Any library from the network to the decoder may fail here; each has its own exceptions.
    try:
        with _quiet(datasets):
            found = datasets.load_dataset(path, split=split, **options)
        for part in [found] if split is not None else list(found.values()):
            yield from part
    except Exception as error:
        reason = " ".join(f"{error}, {error.__cause__ or ''}".split()).rstrip(", ")
        raise EvaluationError(
            f"neither a file nor a data set that can be loaded: {name} ({reason})"
        ) from None


@contextlib.contextmanager
def _quiet(datasets: Any) -> Iterator[None]:
    """Without the libraries' log and progress bars: what they warn of comes once more, as an exception."""
    disabled = logging.root.manager.disable
    progress = datasets.is_progress_bar_enabled()
    logging.disable(logging.CRITICAL)
    datasets.disable_progress_bars()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)
        if progress:
            datasets.enable_progress_bars()
