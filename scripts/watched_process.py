"""Runs a command and sees what it takes and leaves: memory of all its processes, processes, files.

watched = watch(["python", "work.py"])
watched.peak_bytes, watched.left_processes, watched.left_files
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from evals.sandbox import linux
from evals.sandbox.usage import ProcessTree

_EVERY_SECONDS = 0.1
_SHARED_FOLDERS = (Path("/dev/shm"), Path("/var/tmp"))


@dataclass(frozen=True)
class Watched:
    """How a command went."""

    code: int
    output: bytes
    seconds: float
    peak_bytes: int
    """Most memory of all its processes at one time, shared pages counted once, seen every 0.1 s."""
    most_processes: int
    left_processes: list[str]
    """Command lines of what was still there when it had ended."""
    left_files: list[str]
    """What stood in its temporary folder, and was new in /dev/shm and /var/tmp."""


def watch(command: list[str], environment: dict[str, str] | None = None) -> Watched:
    """Runs ``command`` to its end, with a temporary folder of its own."""
    linux.adopt_orphans()  # what it leaves running becomes a child of this process
    folder = Path(tempfile.mkdtemp(prefix="watched-"))
    folder.chmod(0o755)  # programs of the evaluation may run as other users
    tree = ProcessTree(os.open("/proc", os.O_RDONLY))
    before = _shared()
    start = time.monotonic()
    peak = most = 0
    try:
        with tempfile.TemporaryFile() as output:
            process = subprocess.Popen(
                command, stdout=output, env={**os.environ, **(environment or {}), "TMPDIR": str(folder)}
            )
            while process.poll() is None:
                below = tree.processes()
                peak = max(peak, tree.memory_bytes(below))
                most = max(most, len(below))
                time.sleep(_EVERY_SECONDS)
            seconds = time.monotonic() - start
            left = tree.processes()
            commands = [_described(process_id) for process_id in left]
            for process_id in left:
                os.kill(process_id, signal.SIGKILL)
            while tree.processes():
                os.waitpid(-1, 0)
            output.seek(0)
            text = output.read()
        files = [str(path.relative_to(folder)) for path in folder.rglob("*")]
        files += sorted(str(path) for path in _shared() - before)
    finally:
        shutil.rmtree(folder)
    return Watched(process.returncode, text, seconds, peak, most, commands, files)


def _described(process: int) -> str:
    command = Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return command or "ended, and nobody waited for it"


def _shared() -> set[Path]:
    return {path for folder in _SHARED_FOLDERS if folder.is_dir() for path in folder.iterdir()}
