"""Puts the keeper's process into namespaces of its own, as far as the kernel permits.

Everything here is done by trusted code before the program starts.  What the kernel refuses is left
out, and :class:`Isolation` says so; only a program that could not even read its interpreter is an
error (:class:`IsolationError`).
"""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from evals.sandbox import linux

# The unprivileged users that programs run as when the evaluation runs as root: a range that
# distributions leave free.  Process ids spread concurrent programs over it.
PROGRAM_USERS = range(60000, 61000)
# Mapped as a file, it is the anonymous shared memory that the filter of system calls refuses.
_ZEROS = "/dev/zero"
# Contents of the program's folder, and files in it.
_FOLDER_OPTIONS = "size=256m,nr_inodes=16k,mode=0755"


class IsolationError(Exception):
    """The program cannot be run here at all."""


def describe(error: BaseException) -> str:
    """The text of an :class:`IsolationError`; of anything else also its type."""
    return str(error) if isinstance(error, IsolationError) else f"{type(error).__name__}: {error}"


@dataclass
class Isolation:
    """Which kinds of isolation are active for one program."""

    network: bool = False
    """Its own network namespace: no interface but an unconfigured loopback."""
    processes: bool = False
    """Its own process ids: it sees and reaches no other process, and none of its own outlives it."""
    read_only_files: bool = False
    """The whole file system is read-only, but for its folder, which has a size limit."""
    unprivileged_user: bool = False
    """It runs as a user of its own; otherwise as the user who evaluates, without capabilities."""
    system_calls: bool = False
    """System calls that no solution needs are refused: see :mod:`evals.sandbox.system_calls`."""


def require(isolation: Isolation, kinds: list[str]) -> None:
    """:class:`IsolationError` where one of ``kinds``, names of the fields of ``isolation``, is not active."""
    missing = [kind for kind in kinds if not getattr(isolation, kind)]
    if missing:
        raise IsolationError(
            f"this program would have run without {', '.join(missing)}, which the first program had; "
            "see what the machine ran out of (memory, namespaces, mounts), then give the same command again"
        )


def enter_namespaces(isolation: Isolation) -> bool:
    """Unshares what the kernel permits; True when there are private mounts to set up.

    The process ids take effect for the next child.
    """
    user, group = os.getuid(), os.getgid()
    if user != 0:
        try:
            linux.unshare(linux.CLONE_NEWUSER)
            Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
            Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
        except OSError:
            return False
    try:
        linux.unshare(linux.CLONE_NEWNET | linux.CLONE_NEWIPC)
        isolation.network = True
    except OSError:
        pass
    try:
        linux.unshare(linux.CLONE_NEWPID)
        isolation.processes = True
    except OSError:
        pass
    try:
        linux.unshare(linux.CLONE_NEWNS)
    except OSError:
        return False
    return True


def set_up_mounts(isolation: Isolation, folder: str, hidden: list[str]) -> None:
    """Mounts an empty, bounded ``folder``, covers ``hidden`` and /dev/zero and makes all the rest read-only.

    Paths in ``hidden`` that do not exist, or no longer, are left out.
    Called in the first process of the new process namespace, so that /proc shows only that one.
    """
    try:
        linux.mount(None, "/", None, linux.MS_REC | linux.MS_PRIVATE)
        linux.mount("tmpfs", folder, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, _FOLDER_OPTIONS)
        for path in (*hidden, _ZEROS):
            _cover(path)
        if os.getuid() == 0:
            _require_reachable(folder)
            _uncover([sys.base_prefix, sys.prefix], spare=Path(folder))
    except OSError:
        return
    if isolation.processes:
        try:
            linux.mount("proc", "/proc", "proc", linux.MS_NOSUID | linux.MS_NODEV)
        except OSError:
            # Containers may forbid it.  The old /proc shows environments of the user's processes.
            with contextlib.suppress(OSError):
                linux.mount("tmpfs", "/proc", "tmpfs", 0, "size=4k,mode=0755")
    try:
        linux.set_read_only("/", True, recursive=True)
        linux.set_read_only(folder, False, recursive=False)
        isolation.read_only_files = True
    except OSError:
        pass


def _cover(path: str) -> None:
    try:
        if os.path.isdir(path):
            linux.mount("tmpfs", path, "tmpfs", 0, "size=4k,mode=0755")
        else:
            linux.mount(os.devnull, path, None, linux.MS_BIND)
    except OSError:
        # Asked afterwards, for it may vanish at any time.  One that stays visible is not passed over.
        if os.path.exists(path):
            raise


def _closed_ancestor(path: Path) -> Path | None:
    """The first folder on the way to ``path`` that users other than its owner cannot pass."""
    for ancestor in reversed(path.parents):
        if not ancestor.stat().st_mode & 0o001:
            return ancestor
    return None


def _require_reachable(needed: str) -> None:
    closed = _closed_ancestor(Path(needed).resolve())
    if closed is not None:
        raise IsolationError(
            f"programs run as an unprivileged user, who cannot enter {closed} to reach {needed}: "
            "evaluate as an ordinary user, or with a Python and a TMPDIR that every user can read"
        )


def _uncover(prefixes: list[str], spare: Path) -> None:
    """Makes interpreters under closed folders (/root, say) readable for the unprivileged user.

    A closed folder is covered by an empty one that holds nothing but the way to the interpreter.
    """
    closed_paths: dict[Path, Path] = {}
    for prefix in prefixes:
        path = Path(prefix).resolve()
        closed = _closed_ancestor(path)
        if closed is not None:
            closed_paths[path] = closed
    # All are parked before any is covered: they may lie under the same folder.
    parked = {path: spare / str(number) for number, path in enumerate(closed_paths)}
    for path, parking in parked.items():
        parking.mkdir()
        linux.mount(str(path), str(parking), None, linux.MS_BIND | linux.MS_REC)
    for closed in set(closed_paths.values()):
        linux.mount("tmpfs", str(closed), "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "size=64k,mode=0755")
    for path, parking in parked.items():
        path.mkdir(parents=True, exist_ok=True)
        linux.mount(str(parking), str(path), None, linux.MS_BIND | linux.MS_REC)
        linux.unmount(str(parking))
        parking.rmdir()


def become_unprivileged(isolation: Isolation, folder: str, number: int) -> None:
    """Gives ``folder`` to an unprivileged user and becomes that user, when run by root.

    Different ``number`` give different users, so that limits on processes are counted apart.
    """
    if os.getuid() == 0:
        for needed in (os.path.join(sys.base_prefix, "lib"), os.path.join(sys.prefix, "lib"), folder):
            _require_reachable(needed)
        user = PROGRAM_USERS[number % len(PROGRAM_USERS)]
        os.chown(folder, user, user)
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
        isolation.unprivileged_user = True
    linux.drop_privileges()
