"""What this machine has left for programs: processors and memory, limits of its containers included.

processors()            # 16
free_memory_bytes()     # 52_613_349_376
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path("/")


def processors(root: Path = _ROOT) -> int:
    """Processors that this process may use: its affinity, within the quota of its control groups."""
    if not hasattr(os, "sched_getaffinity"):  # not Linux
        return os.cpu_count() or 1
    count = len(os.sched_getaffinity(0))
    for folder in _groups(root, "cpu"):
        quota, period = (
            _numbers(folder / "cpu.max")
            or (
                *_numbers(folder / "cpu.cfs_quota_us"),
                *_numbers(folder / "cpu.cfs_period_us"),
            )
            or (-1, 0)
        )
        if quota > 0 and period > 0:
            count = min(count, max(1, math.floor(quota / period)))
    return count


def free_memory_bytes(root: Path = _ROOT) -> int:
    """Memory that can be had without swapping: the machine's, and what its control groups leave."""
    free = 0
    for line in (root / "proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            free = int(line.split()[1]) << 10
    for folder in _groups(root, "memory"):
        for limit_name, used_name, cache_name in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            limit, used = _numbers(folder / limit_name), _numbers(folder / used_name)
            if limit and used:  # what only caches files can be had too
                free = min(free, limit[0] - used[0] + _statistic(folder / "memory.stat", cache_name))
    return max(0, free)


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """The folders of this process's control groups, of both versions, from the inside out."""
    mounted = root / "sys/fs/cgroup"
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        top = mounted / controllers if controllers else mounted
        # In a container the path may be that of the host, which is not there; its own group is at the top.
        inner = Path(path.lstrip("/"))
        for part in (inner, *inner.parents):
            if (top / part).is_dir():
                yield top / part


def _numbers(path: Path) -> tuple[int, ...]:
    """The whole numbers in a file; none where there is no such file, or it says "max"."""
    try:
        return tuple(int(word) for word in path.read_text(encoding="ascii").split())
    except (OSError, ValueError):
        return ()


def _statistic(path: Path, name: str) -> int:
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.split()[0] == name), 0)
