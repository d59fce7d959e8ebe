"""A model by its path and the name of what runs it."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from laneformer.errors import EvaluationError

TORCH = "torch"


def open_engine(path: str | Path, backend: str) -> Any:
    """An ``infer.Engine`` for a checkpoint folder or an engine file.

    ``backend`` is a name that the engine knows, or "torch": the PyTorch model, which reads checkpoint
    folders.  Raises the errors of :class:`infer.Engine`, and EvaluationError for a file that cannot be read
    or where PyTorch is not installed.
    """
    try:
        if backend == TORCH:
            return _open_torch(path)
        from infer import Engine

        return Engine(path, backend=backend)
    except OSError as error:  # no permission, a name that is too long, a disk that fails
        raise EvaluationError(f"the model {path} cannot be read: {error}") from None


def _open_torch(path: str | Path) -> Any:
    # By name: this package must work where torch is not installed.
    try:
        module = importlib.import_module("train.torch_backend")
    except ModuleNotFoundError as error:
        raise EvaluationError(
            f"--backend torch needs {error.name}, which is not installed: pip install 'laneformer[train]'"
        ) from None
    return module.open_engine(path)
