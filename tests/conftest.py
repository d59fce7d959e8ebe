"""Tests marked ``gpu`` or ``multi_gpu`` are skipped, saying why, where the devices are missing.

Compiled back ends and tapes go to a folder in the checkout that git ignores, not to the user's cache; it
stays from one run to the next, since compiling for some twenty shapes takes a minute.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

CACHE = Path(__file__).parents[1] / ".pytest_cache" / "laneformer"


def pytest_configure() -> None:
    os.environ.setdefault("LANEFORMER_CACHE", str(CACHE))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    needed = {item: 2 if item.get_closest_marker("multi_gpu") else 1 for item in items if _wants_gpu(item)}
    if not needed:
        return
    import torch

    found = torch.cuda.device_count()
    for item, count in needed.items():
        if found < count:
            item.add_marker(pytest.mark.skip(reason=f"needs {count} CUDA device(s), torch finds {found}"))


def _wants_gpu(item: pytest.Item) -> bool:
    return any(item.get_closest_marker(name) for name in ("gpu", "multi_gpu"))
