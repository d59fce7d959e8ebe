"""Which NVIDIA GPUs the driver shows, asked without CuPy, torch or nvidia-smi.

The driver's library is part of the driver, so where it cannot be loaded there is none.  Nothing is started
on a GPU.
"""

from __future__ import annotations

import ctypes
import sys
from dataclasses import dataclass
from typing import Any

LIBRARY = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
SUCCESS, NO_DEVICE = 0, 100  # of CUresult
CAPABILITY_MAJOR, CAPABILITY_MINOR = 75, 76  # of CUdevice_attribute
NAME_BYTES = 256


@dataclass(frozen=True)
class Gpu:
    """One GPU: its name, compute capability and bytes of memory."""

    name: str
    capability: tuple[int, int]
    memory: int

    def __str__(self) -> str:
        major, minor = self.capability
        return f"{self.name}, compute capability {major}.{minor}, {self.memory / 1e9:.1f} GB"


@dataclass(frozen=True)
class Driver:
    """The installed driver: the newest CUDA that it supports, its GPUs, what kept it from showing them."""

    cuda: tuple[int, int]
    gpus: tuple[Gpu, ...]
    problem: str = ""


def find_driver() -> Driver | None:
    """What the driver says; None where no driver is installed."""
    try:
        library: Any = load_library(LIBRARY)
    except OSError:
        return None
    version, count = ctypes.c_int(), ctypes.c_int()
    library.cuDriverGetVersion(ctypes.byref(version))
    cuda = version.value // 1000, version.value % 1000 // 10
    try:
        _check(library.cuInit(0))
        _check(library.cuDeviceGetCount(ctypes.byref(count)))
        return Driver(cuda, tuple(_gpu(library, index) for index in range(count.value)))
    except _DriverError as error:
        (outcome,) = error.args
        return Driver(cuda, (), "" if outcome == NO_DEVICE else f"CUDA error {outcome}")


def load_library(name: str) -> Any:
    """The shared library ``name``; OSError where there is none."""
    return ctypes.CDLL(name)


class _DriverError(Exception):
    """A call's CUresult that is not success."""


def _check(outcome: int) -> None:
    if outcome != SUCCESS:
        raise _DriverError(outcome)


def _gpu(library: Any, index: int) -> Gpu:
    device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    memory, name = ctypes.c_size_t(), ctypes.create_string_buffer(NAME_BYTES)
    _check(library.cuDeviceGet(ctypes.byref(device), index))
    _check(library.cuDeviceGetName(name, NAME_BYTES, device))
    _check(library.cuDeviceGetAttribute(ctypes.byref(major), CAPABILITY_MAJOR, device))
    _check(library.cuDeviceGetAttribute(ctypes.byref(minor), CAPABILITY_MINOR, device))
    _check(library.cuDeviceTotalMem_v2(ctypes.byref(memory), device))
    return Gpu(name.value.decode(errors="replace"), (major.value, minor.value), memory.value)
