"""Back ends by name.

:func:`select_backend` gives the function that builds one from weights.  A name means that back end or
an error: nothing falls back in silence to something slower.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

from infer.backends.base import Backend
from infer.backends.stepwise import StepwiseBackend
from infer.weights import Weights
from laneformer.errors import LaneformerError, RequestError
from laneformer.nvidia_driver import find_driver

__all__ = ["Backend", "StepwiseBackend", "backend_names", "select_backend"]

AUTO = "auto"


def _numpy(weights: Weights) -> Backend:
    from infer.backends.numpy_backend import NumpyBackend

    return NumpyBackend(weights)


def _cpu(weights: Weights) -> Backend:
    from infer.backends.cpu_backend import CpuBackend

    return CpuBackend(weights)


def _cuda(weights: Weights) -> Backend:
    from infer.backends.cuda_backend import CudaBackend

    return CudaBackend(weights)


def _auto(weights: Weights) -> Backend:
    """The GPU, else the compiled back end, else numpy; a warning says why not, where it could have been."""
    driver = find_driver()
    if driver is not None and driver.gpus:
        try:
            return _cuda(weights)
        except LaneformerError as error:
            warnings.warn(f"{error}; running on the CPU, not on {driver.gpus[0].name}", stacklevel=2)
    return _compiled(weights)


def _compiled(weights: Weights) -> Backend:
    """The compiled back end; where it cannot be compiled, a warning and numpy."""
    from infer.backends.cpu_compile import CompileError

    try:
        return _cpu(weights)
    except CompileError as error:
        warnings.warn(f"{error}; running on numpy, which is several times slower", stacklevel=3)
        return _numpy(weights)


_BACKENDS: dict[str, Callable[[Weights], Backend]] = {
    AUTO: _auto,
    "cpu": _cpu,
    "cuda": _cuda,
    "numpy": _numpy,
}


def backend_names() -> list[str]:
    """Names that :func:`select_backend` knows."""
    return list(_BACKENDS)


def select_backend(name: str) -> Callable[[Weights], Backend]:
    """What builds the back end called ``name`` from weights; ``auto`` is the fastest that runs here.

    :class:`RequestError` for a name that is not known.
    """
    if name not in _BACKENDS:
        raise RequestError(f"unknown backend {name!r}: expected one of {', '.join(backend_names())}")
    return _BACKENDS[name]
