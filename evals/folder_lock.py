"""One writer at a time for a run's folder: two would write each sample twice."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from pathlib import Path

from laneformer.errors import EvaluationError


class FolderLock:
    """Held from here to :meth:`close`, or to the end of the process, however it ends.

    Raises EvaluationError where another evaluation holds it.  File systems without locks are used without.
    """

    def __init__(self, folder: Path) -> None:
        self._descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                self.close()
                raise EvaluationError(f"another evaluation is writing to {folder}") from None

    def close(self) -> None:
        """Lets go; more than once is fine."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError, OSError):  # it was never opened
            self.close()
