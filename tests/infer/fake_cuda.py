"""CuPy and the NVIDIA driver, made up: enough for the host side to load a model on a GPU that is not there.

"Device memory" is the host's.  Compiling gives an empty cubin, and a kernel that is launched does nothing and
has ended: a request that gets as far as that has no tokens.
"""

from __future__ import annotations

import ctypes
import sys
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from infer.backends.cuda_request import REQUEST
from laneformer import nvidia_driver


class CudaRuntimeError(RuntimeError):
    """CUDARuntimeError of CuPy."""


class NvrtcError(RuntimeError):
    """NVRTCError of CuPy."""


class OnDevice(np.ndarray):
    """An array with the address and the way to the host that CuPy's have."""

    @property
    def data(self) -> Any:  # type: ignore[override]
        return SimpleNamespace(ptr=self.ctypes.data)

    def get(self) -> np.ndarray:
        return np.array(self)


MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = 97  # of cudaDeviceAttr


@dataclass
class Machine:
    """What is installed here and what the GPU is."""

    name: str = "NVIDIA H200"
    capability: tuple[int, int] = (9, 0)
    multiprocessors: int = 132
    shared_bytes: int = 232_448  # that a block may have
    memory: int = 150_000_000_000
    free_memory: int = 140_000_000_000
    gpus: int = 1
    driver: bool = True
    driver_cuda: int = 13000
    runtime_cuda: int = 13020
    cupy: bool = True
    nvrtc: str = ""  # why it cannot be loaded
    kernel_error: str = ""  # what CUDA says of a kernel that was launched

    def install(self, patch: pytest.MonkeyPatch) -> Machine:
        """Put it in place of what this machine has."""
        # None in sys.modules: importing it fails, whether it is installed or not.
        patch.setitem(sys.modules, "cupy", self.module() if self.cupy else None)
        patch.setattr(nvidia_driver, "load_library", self.driver_library)
        return self

    def module(self) -> Any:
        """What ``import cupy`` gives."""
        event = SimpleNamespace(ptr=0, synchronize=self._wait)
        stream = _Stream(event)
        cupy: Any = ModuleType("cupy")
        cupy.__version__ = "14.2.0"
        cupy.zeros = lambda size, dtype: np.zeros(size, dtype).view(OnDevice)
        cupy.empty = lambda size, dtype: np.empty(size, dtype).view(OnDevice)
        cupy.asarray = lambda values: np.array(values).view(OnDevice)
        cupy.RawModule = lambda **_: _Module()
        cupy.get_default_memory_pool = lambda: SimpleNamespace(free_all_blocks=lambda: None)
        streams = type("Stream", (), {"__new__": lambda *_, **__: stream, "null": stream})
        cupy.cuda = SimpleNamespace(
            runtime=SimpleNamespace(
                CUDARuntimeError=CudaRuntimeError,
                getDeviceProperties=self._properties,
                cudaDevAttrMaxSharedMemoryPerBlockOptin=MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
                deviceGetAttribute=lambda attribute, device: {
                    MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: self.shared_bytes
                }[attribute],
                runtimeGetVersion=lambda: self.runtime_cuda,
                memGetInfo=self._memory,
                eventQuery=lambda event: 700 if self.kernel_error else 0,
                memcpy=lambda target, source, size, kind: ctypes.memmove(target, source, size),
                memcpyAsync=lambda target, source, size, kind, stream: ctypes.memmove(target, source, size),
            ),
            nvrtc=SimpleNamespace(
                NVRTCError=NvrtcError,
                getVersion=self._nvrtc_version,
                createProgram=lambda *_: 1,
                compileProgram=lambda *_: None,
                getProgramLog=lambda _: "",  # as where CUDA has the cubin in its own cache
                getCUBIN=lambda _: b"cubin",
                destroyProgram=lambda _: None,
            ),
            Stream=streams,
            alloc_pinned_memory=bytearray,
        )
        return cupy

    def driver_library(self, name: str) -> Any:
        """What ``ctypes.CDLL`` gives for the driver's library."""
        if not self.driver:
            raise OSError(f"{name}: cannot open shared object file")
        return SimpleNamespace(
            cuDriverGetVersion=lambda version: _put(version, self.driver_cuda),
            cuInit=lambda flags: 0 if self.gpus else nvidia_driver.NO_DEVICE,
            cuDeviceGetCount=lambda count: _put(count, self.gpus),
            cuDeviceGet=_put,
            cuDeviceGetName=lambda text, size, device: _put_text(text, self.name),
            cuDeviceGetAttribute=lambda value, attribute, device: _put(
                value, self.capability[attribute - nvidia_driver.CAPABILITY_MAJOR]
            ),
            cuDeviceTotalMem_v2=lambda memory, device: _put(memory, self.memory),
        )

    def _start(self) -> None:
        """As CUDA's runtime does it: without a driver it calls the driver too old."""
        if not self.driver or self.driver_cuda // 1000 < self.runtime_cuda // 1000:
            raise CudaRuntimeError(
                "cudaErrorInsufficientDriver: CUDA driver version is insufficient for CUDA runtime version"
            )
        if not self.gpus:
            raise CudaRuntimeError("cudaErrorNoDevice: no CUDA-capable device is detected")

    def _wait(self) -> None:
        if self.kernel_error:
            raise CudaRuntimeError(self.kernel_error)

    def _memory(self) -> tuple[int, int]:
        self._start()
        return self.free_memory, self.memory

    def _properties(self, index: int) -> dict[str, Any]:
        self._start()
        major, minor = self.capability
        return {
            "name": self.name.encode(),
            "major": major,
            "minor": minor,
            "multiProcessorCount": self.multiprocessors,
        }

    def _nvrtc_version(self) -> tuple[int, int]:
        if self.nvrtc:
            raise RuntimeError(self.nvrtc)
        return 13, 5


class _Stream:
    ptr = 0

    def __init__(self, event: Any) -> None:
        self._event = event

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def record(self) -> Any:
        return self._event


class _Module:
    """A loaded cubin: packets and memory for chunks of a few kilobytes, 320 threads."""

    def __init__(self) -> None:
        # Packets, memory for chunks, histograms, keys and values of a layer and of a sliding one, threads,
        # the request.
        self._sizes = np.array([4096, 4096, 4096, 2048, 2048, 320, REQUEST.itemsize], np.int64)

    def get_function(self, name: str) -> Any:
        def launch(*_: object, **__: object) -> None:
            pass

        return launch

    def get_global(self, name: str) -> Any:
        return SimpleNamespace(ptr=self._sizes.ctypes.data)


def _put(reference: Any, value: int) -> int:
    reference._obj.value = value
    return nvidia_driver.SUCCESS


def _put_text(buffer: Any, text: str) -> int:
    buffer.value = text.encode()
    return nvidia_driver.SUCCESS
