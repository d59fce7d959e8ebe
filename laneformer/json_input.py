"""Reading JSON that others wrote: whatever is wrong with it is one error that names the file.

values = read_json("checkpoint/config.json", ConfigError)
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from laneformer.errors import LaneformerError


def read_json(path: str | Path, error_type: type[LaneformerError]) -> dict[str, Any]:
    """The JSON object in a file.  Raises ``error_type`` naming the file, as :func:`parse_json` does."""
    try:
        data = Path(path).read_bytes()
    except FileNotFoundError:
        raise error_type(f"{path}: no such file") from None
    except (OSError, ValueError) as error:
        raise error_type(f"{path}: cannot be read ({error})") from None
    return parse_json(data, path, error_type)


def parse_json(data: str | bytes, source: object, error_type: type[LaneformerError]) -> dict[str, Any]:
    """The JSON object in ``data``, which came from ``source``.

    Raises ``error_type`` for text that is not JSON, is nested too deep or has a number of thousands of
    digits, for anything but an object, and for a key given twice, of which one would be lost unseen.
    """
    try:
        text = data if isinstance(data, str) else data.decode("utf-8")
        values = json.loads(text, object_pairs_hook=_without_duplicates)
    except RecursionError:
        raise error_type(f"{source}: cannot be read as JSON: nested too deep") from None
    except ValueError as error:
        raise error_type(f"{source}: cannot be read as JSON: {error}") from None
    if not isinstance(values, dict):
        raise error_type(f"{source}: expected a JSON object, found {type(values).__name__}")
    return values


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in pairs:
        if name in values:
            raise ValueError(f"key {name!r} is given twice")
        values[name] = value
    return values
