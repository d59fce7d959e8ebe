"""The kernels compile for every model that the tests know: no spills, and they fit on a multiprocessor.

NVRTC needs no GPU.  The test is left out only where neither CuPy nor NVRTC from pip is installed; with one of
them, whatever keeps the kernels from compiling is a failure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import pytest

from infer.backends.cuda_compile import (
    CudaCompileError,
    build,
    kernel_sources,
    nvrtc_version,
)
from infer.backends.cuda_source import Kernel, model_header
from tests.infer.cuda_kernels import Specialisation, kernels
from tests.sanitize_cuda import BARRIER

# Ten warps in a block: eight that work, the loader's, the watcher's.  A multiprocessor has 65,536 registers
# in four parts, and the fullest holds three warps; registers are given out in eights.
WARPS_OF_A_PART = 3
REGISTERS = 65_536 // 4 // (WARPS_OF_A_PART * 32) // 8 * 8
SHARED_BYTES = 232_448
COMPILE_THREADS = 2  # NVRTC lets go of Python's lock; a compile takes six to ten seconds of one core
Builds = dict[str, tuple[Kernel, "Future[tuple[bytes, str]]"]]


@dataclass(frozen=True)
class Resources:
    """What kernels take of a multiprocessor, the worst of them."""

    registers: int  # of a thread
    spilled_bytes: int  # stores and loads of registers that did not fit
    static_shared_bytes: int  # beside what a launch asks for


def resources_used(log: str) -> Resources:
    """What ``-v`` made ptxas say."""
    registers = [int(found) for found in re.findall(r"Used (\d+) registers", log)]
    spills = [int(found) for found in re.findall(r"(\d+) bytes spill (?:stores|loads)", log)]
    shared = [int(found) for found in re.findall(r"(\d+) bytes smem", log)]  # left out where there is none
    assert registers and spills, "ptxas did not say what the kernels take"
    return Resources(max(registers), sum(spills), max(shared, default=0))


def installed(package: str) -> bool:
    try:
        version(package)
    except PackageNotFoundError:
        return False
    return True


pytestmark = pytest.mark.skipif(
    not installed("cupy-cuda13x") and not installed("nvidia-cuda-nvrtc"),
    reason="neither cupy-cuda13x nor nvidia-cuda-nvrtc is installed",
)


@pytest.fixture(scope="module", autouse=True)
def no_cache() -> Iterator[None]:
    """What CUDA takes from its own cache comes without a word about registers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_CACHE_DISABLE", "1")
        yield


@pytest.fixture(scope="module")
def builds(request: pytest.FixtureRequest) -> Iterator[Builds]:
    """All kernels of the tests that were chosen, being compiled side by side."""
    chosen: dict[str, Specialisation] = {
        item.callspec.id: item.callspec.params["wanted"]
        for item in request.session.items
        if item.path == request.path
        and hasattr(item, "callspec")
        and "wanted" in item.callspec.params
        and not any(mark.args[0] for mark in item.iter_markers("skipif"))
    }
    sources = kernel_sources()
    with ThreadPoolExecutor(COMPILE_THREADS) as pool:
        started: Builds = {}
        for name, wanted in chosen.items():
            config = wanted.model()
            kernel = wanted.kernel(config)
            started[name] = kernel, pool.submit(build, model_header(config, kernel), sources)
        yield started
        pool.shutdown(cancel_futures=True)  # those that a failure left behind


@pytest.mark.slow
@pytest.mark.parametrize("wanted", kernels())
def test_a_kernel_fits_on_a_multiprocessor(
    wanted: Specialisation, builds: Builds, request: pytest.FixtureRequest
) -> None:
    kernel, job = builds[request.node.callspec.id]
    cubin, log = job.result()
    taken = resources_used(log)
    shared = f"{taken.static_shared_bytes} bytes of static shared memory"
    print(f"NVRTC {nvrtc_version()}: {len(cubin)} bytes, {taken.registers} registers, {shared}")
    assert taken.spilled_bytes == 0
    assert taken.registers <= REGISTERS
    assert taken.static_shared_bytes + kernel.shared_bytes <= SHARED_BYTES


def test_the_barrier_that_racecheck_must_miss_is_there() -> None:
    assert kernel_sources()["worker.cuh"].count(BARRIER) == 1


@pytest.mark.slow
def test_the_kernel_that_measures_bandwidth_compiles() -> None:
    _, log = build("", kernel_sources(), "bandwidth.cu")
    taken = resources_used(log)
    assert taken.spilled_bytes == 0 and taken.static_shared_bytes <= 1024


def test_what_does_not_compile_is_told_with_the_first_error() -> None:
    with pytest.raises(
        CudaCompileError, match=r"NVRTC cannot compile the kernel: broken\.cu\(1\): error: .*nothing"
    ):
        build("", {"broken.cu": "__device__ int answer() { return nothing; }"}, "broken.cu")


LOG = """ptxas info    : Compiling entry function 'laneformer_request' for 'sm_90a'
ptxas         .     192 bytes stack frame, {stores} bytes spill stores, {loads} bytes spill loads
ptxas info    : Used {registers} registers, used 2 barriers{shared}
ptxas info    : Function properties for called
ptxas         .     0 bytes stack frame, 4 bytes spill stores, 0 bytes spill loads
"""


def used(**values: Any) -> Resources:
    return resources_used(LOG.format(**({"stores": 0, "loads": 0, "registers": 96, "shared": ""} | values)))


def test_spills_and_static_shared_memory_are_read_from_what_ptxas_says() -> None:
    assert used() == Resources(96, 4, 0)  # a function that is called may spill too
    assert used(stores=8, loads=16, registers=205) == Resources(205, 28, 0)
    assert used(shared=", 1040 bytes smem, 400 bytes cmem[0]") == Resources(96, 4, 1040)
    with pytest.raises(AssertionError, match="did not say what the kernels take"):
        resources_used("")
