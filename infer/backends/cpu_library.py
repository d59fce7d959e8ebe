"""The C interface of the compiled CPU back end: structures and functions, as in ``kernels/cpu``."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np

from infer.backends.cpu_compile import CompileError

Pointer = ctypes.c_void_p


class CTables(ctypes.Structure):
    """``Tables`` of plan_tables.h."""

    _fields_ = (
        ("workers", ctypes.c_int32),
        ("phases", ctypes.c_int32),
        ("layers", ctypes.c_int32),
        ("threads", ctypes.c_int32),
        ("context", ctypes.c_int32),
        ("mailbox_slots", ctypes.c_int32),
        ("head_type", ctypes.c_int32),
        ("tied", ctypes.c_int32),
        ("pin", ctypes.c_int32),
        ("norm_epsilon", ctypes.c_float),
        ("embedding_stored", ctypes.c_int32),
        ("embedding_offset", ctypes.c_int64),
        ("tape", Pointer),
        ("phase", Pointer),
        ("lane", Pointer),
        ("share", Pointer),
        ("page", Pointer),
        ("wait_start", Pointer),
        ("wait_writer", Pointer),
        ("window", Pointer),
        ("norm", Pointer),
        ("head_norm", Pointer),
        ("cosines", Pointer),
        ("sines", Pointer),
    )


class CSampling(ctypes.Structure):
    """``SamplingSettings`` of sampling.h."""

    _fields_ = (
        ("temperature", ctypes.c_double),
        ("top_p", ctypes.c_double),
        ("min_p", ctypes.c_double),
        ("repetition_penalty", ctypes.c_double),
        ("top_k", ctypes.c_int32),
    )


class CResult(ctypes.Structure):
    """``Result`` of request.h."""

    _fields_ = (
        ("outcome", ctypes.c_int32),
        ("tokens", ctypes.c_int32),
        ("worker", ctypes.c_int32),
        ("phase", ctypes.c_int32),
        ("writer", ctypes.c_int32),
    )


class CRequest(ctypes.Structure):
    """``Request`` of request.h."""

    _fields_ = (
        ("prompt", Pointer),
        ("prompt_count", ctypes.c_int32),
        ("limit", ctypes.c_int32),
        ("sampling", CSampling),
        ("uniforms", Pointer),
        ("stop_ids", Pointer),
        ("stop_count", ctypes.c_int32),
        ("all_logits", Pointer),
        ("deadline_seconds", ctypes.c_double),
        ("stall_seconds", ctypes.c_double),
        ("silent_worker", ctypes.c_int32),
        ("tokens", Pointer),
        ("log_probabilities", Pointer),
        ("result", ctypes.POINTER(CResult)),
    )


def load_library(path: Path) -> ctypes.CDLL:
    """The library with the types of its functions declared; :class:`CompileError` where it does not load."""
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise CompileError(f"{path}: does not load ({error}); delete it and it is compiled again") from None
    result = ctypes.POINTER(CResult)
    for name, returns, takes in (
        ("open", Pointer, [ctypes.POINTER(CTables)]),
        ("close", None, [Pointer]),
        ("start", ctypes.c_uint64, [Pointer, ctypes.POINTER(CRequest)]),
        ("wait", ctypes.c_int32, [Pointer, ctypes.c_uint64, result, ctypes.c_int32, ctypes.c_double]),
        ("cancel", None, [Pointer, ctypes.c_uint64]),
        ("read_bandwidth", ctypes.c_double, [Pointer, ctypes.c_uint64, ctypes.c_int32, ctypes.c_int32]),
    ):
        function = getattr(library, f"laneformer_{name}")
        function.restype, function.argtypes = returns, takes
    return library


def address(array: np.ndarray | None) -> int | None:
    """Where an array's values lie; the caller keeps the array alive."""
    return None if array is None else array.ctypes.data
