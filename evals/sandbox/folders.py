"""Temporary folders of programs, of which none stays: not even when the evaluation is killed.

    with program_folder() as folder:
        ...                        # a fresh, empty folder
    remove_abandoned()             # those whose evaluation is no more

The folder lies in another one, which belongs to the evaluation's user: so a program that runs as somebody
else can neither rename it nor put something else in its place.

Whoever uses a folder holds a lock on it, which the kernel lets go when that process ends, however it ends.
So a folder without a lock belongs to nobody, whatever the process ids say.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from evals.sandbox.removal import remove_tree
from laneformer.errors import EvaluationError

_PREFIX = "evaluate-"
_INNER = "program"
_SOURCE_ROOT = Path(__file__).resolve().parents[2]


def hideable(folder: Path) -> Path:
    """``folder``, made if need be, which programs must not see: it holds tests and others' solutions.

    Raises EvaluationError where it cannot be made, or holds something that programs need.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EvaluationError(f"the output folder {folder} cannot be used: {error}") from None
    place = folder.resolve()
    for needed in (sys.prefix, sys.base_prefix, tempfile.gettempdir(), _SOURCE_ROOT):
        if Path(needed).resolve().is_relative_to(place):
            raise EvaluationError(
                f"the output folder {folder} is hidden from programs, and holds {needed}, which they need: "
                "use another one"
            )
    return folder


@contextlib.contextmanager
def program_folder() -> Iterator[str]:
    """A new folder below the folder for temporary files, removed at the end with all that is in it.

    Raises EvaluationError where none can be made, or where it cannot be removed.
    """
    try:
        outer, lock = _make()
    except OSError as error:
        raise EvaluationError(f"the sandbox needs a temporary folder: {error}") from None
    try:
        yield os.path.join(outer, _INNER)
    finally:
        try:
            remove_tree(outer)
        except OSError as error:
            raise EvaluationError(f"cannot remove {outer}, where a program ran: {error}") from None
        finally:
            os.close(lock)


def _make() -> tuple[str, int]:
    while True:
        folder = tempfile.mkdtemp(prefix=_PREFIX)
        # remove_abandoned() of another evaluation may come between any two of these lines.
        with contextlib.suppress(FileNotFoundError):
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(lock, fcntl.LOCK_EX)
            if os.path.exists(folder):
                os.mkdir(os.path.join(folder, _INNER), 0o700)
                os.fchmod(lock, 0o711)  # to be passed by a program's user, and neither read nor written
                return folder, lock
            os.close(lock)


def remove_abandoned() -> None:
    """Removes the folders of evaluations that ended without doing so."""
    try:
        with os.scandir(tempfile.gettempdir()) as entries:
            paths = [entry.path for entry in entries if entry.name.startswith(_PREFIX)]
    except OSError:
        return  # No program can run either, and its error says why.
    for path in paths:
        # Another evaluation may remove it at the same time, and it may belong to another user.
        with contextlib.suppress(OSError):
            _remove_if_abandoned(path)


def _remove_if_abandoned(path: str) -> None:
    lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(lock).st_uid == os.getuid():
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove_tree(path)
    finally:
        os.close(lock)
