"""Tests marked ``gpu`` or ``multi_gpu`` are skipped, saying why, where the devices are missing."""

from __future__ import annotations

import pytest


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
