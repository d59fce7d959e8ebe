"""One NVIDIA GPU through CuPy: what the back end needs of it, and clear words where it is not there."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from infer.backends.cuda_compile import OPTIONS, import_cupy, kernel_sources, one_line
from laneformer.errors import LaneformerError
from laneformer.nvidia_driver import find_driver

CAPABILITY = (9, 0)
PIECE_BYTES = 64 << 20  # of an upload
BANDWIDTH_BYTES = 4_000_000_000
BANDWIDTH_PAGE, BANDWIDTH_STAGES = 24576, 8
BANDWIDTH_ROUNDS = 5
SUCCESS, NOT_READY = 0, 600  # of cudaError_t, as CuPy's eventQuery returns it


class Launch:
    """A kernel under way.  Both methods raise :class:`LaneformerError` where the GPU gave it up."""

    def __init__(self, cupy: Any, event: Any) -> None:
        self._runtime = cupy.cuda.runtime
        self._event = event

    def ended(self) -> bool:
        """Whether it is over."""
        status = self._runtime.eventQuery(self._event.ptr)
        if status not in (SUCCESS, NOT_READY):
            self.wait()
        return bool(status == SUCCESS)

    def wait(self) -> None:
        """Until it is over."""
        try:
            self._event.synchronize()
        except self._runtime.CUDARuntimeError as error:
            raise LaneformerError(
                f"the GPU gave up the kernel ({one_line(error)}); this process can use it no more"
            ) from None


class Device:
    """The first GPU that CUDA shows.  :class:`LaneformerError` where there is none that runs the kernel."""

    def __init__(self) -> None:
        self._cupy = cupy = import_cupy()
        try:
            properties = cupy.cuda.runtime.getDeviceProperties(0)
        except cupy.cuda.runtime.CUDARuntimeError as error:
            raise LaneformerError(f"no GPU that the cuda back end can use: {_reason(cupy, error)}") from None
        self.name: str = properties["name"].decode()
        capability = properties["major"], properties["minor"]
        if capability != CAPABILITY:
            raise LaneformerError(
                f"{self.name} has compute capability {capability[0]}.{capability[1]}: the cuda back end is "
                f"written for {CAPABILITY[0]}.{CAPABILITY[1]} (H100, H200)"
            )
        self.multiprocessors: int = properties["multiProcessorCount"]
        most_shared = cupy.cuda.runtime.cudaDevAttrMaxSharedMemoryPerBlockOptin
        self.shared_bytes: int = cupy.cuda.runtime.deviceGetAttribute(most_shared, 0)  # that a block may have
        self._stream = cupy.cuda.Stream(non_blocking=True)
        self._read: Any = None

    def module(self, cubin: Path) -> Any:
        """A compiled kernel's module."""
        return self._cupy.RawModule(path=str(cubin), enable_cooperative_groups=True)

    def function(self, module: Any, name: str, shared_bytes: int) -> Any:
        """A kernel that may use ``shared_bytes`` of shared memory."""
        function = module.get_function(name)
        function.max_dynamic_shared_size_bytes = shared_bytes
        return function

    def sizes(self, module: Any) -> list[int]:
        """``laneformer_sizes`` of engine.cu."""
        pointer, count = module.get_global("laneformer_sizes"), 7
        found = np.empty(count, np.int64)
        self._cupy.cuda.runtime.memcpy(found.ctypes.data, pointer.ptr, found.nbytes, 2)  # to the host
        return [int(size) for size in found]

    def check_memory(self, sizes: Mapping[str, int]) -> None:
        """:class:`LaneformerError`, with the numbers, where ``sizes`` do not fit what is free."""
        self._cupy.get_default_memory_pool().free_all_blocks()  # of a back end that is gone
        free, total = self._cupy.cuda.runtime.memGetInfo()
        if sum(sizes.values()) > free:
            parts = ", ".join(f"{name} {size / 1e9:.2f} GB" for name, size in sizes.items())
            raise LaneformerError(
                f"the model does not fit: {parts}, and {free / 1e9:.2f} of {total / 1e9:.2f} GB are free on "
                f"{self.name}; a shorter context needs less"
            )

    def zeros(self, size: int) -> Any:
        """``size`` bytes of zeros on the device."""
        return self._cupy.zeros(size, np.uint8)

    def empty(self, count: int, dtype: Any) -> Any:
        """``count`` values on the device."""
        return self._cupy.empty(count, dtype)

    def upload(self, values: np.ndarray) -> Any:
        """A copy on the device."""
        return self._cupy.asarray(values)

    def upload_into(self, target: Any, data: np.ndarray) -> None:
        """Copy mapped bytes to the device, one piece being read while another is on its way."""
        cupy = self._cupy
        cupy.cuda.Stream.null.synchronize()  # the target was cleared there: not after this
        buffers = [_pinned(cupy, PIECE_BYTES, np.uint8) for _ in range(2)]
        sent: list[Any] = [None, None]
        for number, start in enumerate(range(0, len(data), PIECE_BYTES)):
            buffer, part = buffers[number % 2], data[start : start + PIECE_BYTES]
            if sent[number % 2] is not None:
                sent[number % 2].synchronize()
            _copy_on_threads(buffer, part)
            runtime = cupy.cuda.runtime
            runtime.memcpyAsync(target.data.ptr + start, buffer.ctypes.data, len(part), 1, self._stream.ptr)
            sent[number % 2] = self._stream.record()
        self._stream.synchronize()

    def host_words(self, count: int) -> np.ndarray:
        """uint64 words of pinned memory that the device can write."""
        return _pinned(self._cupy, count, np.uint64)

    def address(self, array: Any) -> int:
        """Where an array lies; 0 for None."""
        return 0 if array is None else array.data.ptr

    def launch(
        self, function: Any, blocks: int, threads: int, values: np.ndarray, shared_bytes: int
    ) -> Launch:
        """Start a kernel whose blocks all run at once."""
        self._cupy.cuda.Stream.null.synchronize()  # what was uploaded and cleared is there
        with self._stream:
            function((blocks,), (threads,), (values[()],), shared_mem=shared_bytes)
        return Launch(self._cupy, self._stream.record())

    def read_bandwidth(self) -> float:
        """Bytes per second, the best of a few rounds over a buffer much larger than the cache."""
        cupy = self._cupy
        if self._read is None:
            source = kernel_sources()["bandwidth.cu"]
            module = cupy.RawModule(code=source, options=(OPTIONS[0], "-arch=sm_90a"), backend="nvrtc")
            self._read = self.function(module, "laneformer_read", BANDWIDTH_PAGE * BANDWIDTH_STAGES)
        share = BANDWIDTH_PAGE * self.multiprocessors
        pages = BANDWIDTH_BYTES // share
        data = cupy.empty(pages * share, np.uint8)
        best = float("inf")
        for _ in range(BANDWIDTH_ROUNDS):
            start, end = cupy.cuda.Event(), cupy.cuda.Event()
            start.record()
            self._read(
                (self.multiprocessors,),
                (32,),
                (data, np.int64(pages)),
                shared_mem=BANDWIDTH_PAGE * BANDWIDTH_STAGES,
            )
            end.record()
            end.synchronize()
            best = min(best, cupy.cuda.get_elapsed_time(start, end) / 1e3)
        found: float = data.nbytes / best
        del data
        cupy.get_default_memory_pool().free_all_blocks()
        return found


def _reason(cupy: Any, error: Exception) -> str:
    """Why CUDA shows no GPU.  Without a driver its runtime says that the driver is too old."""
    driver = find_driver()
    if driver is None:
        return "no NVIDIA driver is installed"
    runtime = cupy.cuda.runtime.runtimeGetVersion()
    needed, supported = (runtime // 1000, runtime % 1000 // 10), driver.cuda
    if "InsufficientDriver" in str(error):
        return (
            f"the NVIDIA driver is too old, it supports CUDA {supported[0]}.{supported[1]} and this CuPy has "
            f"CUDA {needed[0]}.{needed[1]}: update the driver"
        )
    if "NoDevice" in str(error):
        return "the NVIDIA driver shows none (CUDA_VISIBLE_DEVICES can hide them)"
    return one_line(error)


def _pinned(cupy: Any, count: int, dtype: Any) -> np.ndarray:
    memory = cupy.cuda.alloc_pinned_memory(count * np.dtype(dtype).itemsize)
    return np.frombuffer(memory, dtype, count)


def _copy_on_threads(target: np.ndarray, source: np.ndarray, threads: int = 4) -> None:
    """A mapped file is read by page faults, which one core does at a few GB/s."""
    step = -(-len(source) // threads)
    starts = range(0, len(source), step)
    jobs = [
        threading.Thread(
            target=np.copyto,
            args=(target[start : min(start + step, len(source))], source[start : start + step]),
        )
        for start in starts
    ]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()
