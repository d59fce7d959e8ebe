"""What a tree of processes uses: processor time and memory, read from a /proc.

    tree = ProcessTree(os.open("/proc", os.O_RDONLY))
    tree.memory_bytes()        # of everything below this process

A process that ends while it is read counts nothing.  Imports little: it runs in fresh interpreters.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
# In /proc/PID/stat after the command's name: state is field 0, then
_PARENT = 1
_TIMES = slice(11, 15)  # utime, stime, and the same of children that were waited for
_READ_BYTES = 1 << 16


class ProcessTree:
    """The processes below ``root`` (default: the caller), as the /proc open at ``proc`` shows them.

    That /proc may belong to an outer process namespace: ids are those that it shows.
    """

    def __init__(self, proc: int, root: int | None = None) -> None:
        self._proc = proc
        self.root = int(os.readlink("self", dir_fd=proc)) if root is None else root

    def processes(self) -> list[int]:
        """All below ``root``, without it; ended ones that nobody has waited for are among them."""
        children: dict[int, list[int]] = {}
        for name in os.listdir(self._proc):
            if name.isdigit():
                fields = self._fields(int(name))
                if fields:
                    children.setdefault(int(fields[_PARENT]), []).append(int(name))
        found: list[int] = []
        pending = [self.root]
        while pending:
            below = children.get(pending.pop(), [])
            found += below
            pending += below
        return found

    def processor_seconds(self, processes: Iterable[int]) -> float:
        """User and system time of ``processes`` and of their children that were waited for."""
        ticks = 0
        for process in processes:
            ticks += sum(int(field) for field in self._fields(process)[_TIMES])
        return ticks / _TICKS_PER_SECOND

    def resident_bytes(self, processes: Iterable[int]) -> int:
        """Resident memory of ``processes``; a page that two of them share counts twice."""
        pages = 0
        for process in processes:
            fields = self._read(f"{process}/statm").split()
            pages += int(fields[1]) if fields else 0
        return pages * _PAGE_BYTES

    def memory_bytes(self, processes: Iterable[int]) -> int:
        """As :meth:`resident_bytes`, with a shared page divided among those that share it.

        Where the kernel does not let this process see that of another, its resident memory counts.
        """
        total = 0
        for process in processes:
            lines = self._read(f"{process}/smaps_rollup").splitlines()
            shares = [int(line.split()[1]) << 10 for line in lines if line.startswith(b"Pss:")]
            total += shares[0] if shares else self.resident_bytes([process])
        return total

    def _fields(self, process: int) -> list[bytes]:
        # The command's name, in parentheses, may hold spaces and parentheses itself.
        return self._read(f"{process}/stat").rpartition(b")")[2].split()

    def _read(self, name: str) -> bytes:
        try:
            descriptor = os.open(name, os.O_RDONLY, dir_fd=self._proc)
        except OSError:
            return b""
        try:
            return os.read(descriptor, _READ_BYTES)
        except OSError:  # ESRCH: it has ended since; EACCES: another user's
            return b""
        finally:
            os.close(descriptor)
