"""Removes a folder that an untrusted program has written to."""

from __future__ import annotations

import contextlib
import os
import stat


def remove_tree(folder: str) -> None:
    """Removes ``folder`` with all that is in it; nothing happens when it does not exist.

    Something else in its place, which a program may have put there, is unlinked.  Raises OSError where the
    kernel refuses, as it does for what belongs to somebody else.

    Subfolders are moved up to the top before they are emptied.  So depth costs neither recursion nor
    long paths, and no symbolic link is followed.  Folders that their owner closed are opened first.
    """
    try:
        if not stat.S_ISDIR(os.lstat(folder).st_mode):
            os.unlink(folder)
            return
        os.chmod(folder, 0o700)
        top = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return
    try:
        pending = _empty(top, top, 0)
        moved = len(pending)
        while pending:
            name = pending.pop()
            inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=top)
            try:
                found = _empty(inner, top, moved)
            finally:
                os.close(inner)
            os.rmdir(name, dir_fd=top)
            pending += found
            moved += len(found)
    finally:
        os.close(top)
    with contextlib.suppress(FileNotFoundError):
        os.rmdir(folder)


def _empty(inner: int, top: int, number: int) -> list[str]:
    """Unlinks the files in ``inner`` and moves its folders to ``top``; returns their new names."""
    found: list[str] = []
    with os.scandir(inner) as entries:
        listed = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_folder in listed:
        if not is_folder:
            os.unlink(name, dir_fd=inner)
            continue
        os.chmod(name, 0o700, dir_fd=inner)
        # A name that the program cannot have chosen, so that no move meets an existing one.
        unique = f"{os.urandom(16).hex()}-{number + len(found)}"
        os.rename(name, unique, src_dir_fd=inner, dst_dir_fd=top)
        found.append(unique)
    return found
