"""Back ends by name.

:func:`select_backend` gives the function that builds one from weights.  A name means that back end or
an error: nothing falls back in silence to something slower.
"""

from __future__ import annotations

from collections.abc import Callable

from infer.backends.base import Backend
from infer.backends.stepwise import StepwiseBackend
from infer.weights import Weights
from laneformer.errors import RequestError

__all__ = ["Backend", "StepwiseBackend", "backend_names", "select_backend"]

AUTO = "auto"


def _numpy(weights: Weights) -> Backend:
    from infer.backends.numpy_backend import NumpyBackend

    return NumpyBackend(weights)


_BACKENDS: dict[str, Callable[[Weights], Backend]] = {"numpy": _numpy}


def backend_names() -> list[str]:
    """Names that :func:`select_backend` knows."""
    return [AUTO, *_BACKENDS]


def select_backend(name: str) -> Callable[[Weights], Backend]:
    """What builds the back end called ``name`` from weights; ``auto`` is the fastest that runs here.

    :class:`RequestError` for a name that is not known.
    """
    if name == AUTO:
        name = "numpy"
    if name not in _BACKENDS:
        raise RequestError(f"unknown backend {name!r}: expected one of {', '.join(backend_names())}")
    return _BACKENDS[name]
