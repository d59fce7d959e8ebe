"""On what a number was measured: processor, versions, commit, memory.  What is not known is "n/a" or None."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
UNKNOWN = "n/a"


def host_cpu() -> str:
    """Name of the processor, or "n/a"."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass  # not Linux
    return platform.processor() or UNKNOWN


def usable_cores() -> int | None:
    """Cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        return os.cpu_count()


def commit() -> str:
    """Commit of this software where it runs from its checkout, "+changes" where files differ; else "n/a"."""
    # Installed into an environment inside some other repository, git would tell that one's commit.
    if _git("rev-parse", "--show-toplevel") != str(ROOT):
        return UNKNOWN
    found = _git("rev-parse", "HEAD")
    if found is None:
        return UNKNOWN
    return found + ("+changes" if _git("status", "--porcelain", "--untracked-files=no") else "")


def versions(packages: Sequence[str]) -> dict[str, str]:
    """Version of each package, "n/a" where it is not installed."""
    found = {}
    for name in packages:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = UNKNOWN
    return found


def peak_resident_bytes() -> int | None:
    """Most memory that this process has had resident, mapped files among it; None where it is not told."""
    try:
        # On Linux not getrusage: its peak begins with that of the process that started this one.
        for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass  # not Linux
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _git(*arguments: str) -> str | None:
    command = ["git", "-C", str(ROOT), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
