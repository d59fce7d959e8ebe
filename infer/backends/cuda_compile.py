"""Compiling the CUDA kernel for one model with NVRTC, and keeping the result.

The cubin is named by everything that goes into it: sources, ``model.cuh``, options and the version of NVRTC.
NVRTC comes with the CUDA toolkit or from pip (``nvidia-cuda-nvrtc``); neither a GPU nor a driver is needed to
compile.
"""

from __future__ import annotations

import hashlib
from importlib import resources
from pathlib import Path
from typing import Any

from infer.atomic_file import atomic_file
from infer.backends.cuda_source import Kernel, model_header
from infer.tape import cache_folder
from laneformer.config import LaneformerConfig
from laneformer.errors import LaneformerError

ENTRY = "laneformer_request"
ARCHITECTURE = "sm_90a"
OPTIONS = (
    "--std=c++17",
    f"--gpu-architecture={ARCHITECTURE}",
    "--ptxas-options=-v",
    "--fmad=false",  # what the compiler fuses differs with the number of workers, and so would bits
)


class CudaCompileError(LaneformerError):
    """The kernel cannot be compiled here; the message says what is missing."""


def compile_kernel(config: LaneformerConfig, kernel: Kernel) -> Path:
    """The cubin for a model, from the cache or compiled now.  Raises :class:`CudaCompileError`."""
    sources, header, version = kernel_sources(), model_header(config, kernel), nvrtc_version()
    described = hashlib.sha256(repr((sources, header, OPTIONS, version)).encode()).hexdigest()
    path = cache_folder() / "compiled" / f"cuda-{described[:32]}.cubin"
    if not path.exists():
        cubin, _ = build(header, sources)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_file(path) as file:
                file.write(cubin)
        except OSError as error:
            raise CudaCompileError(
                f"{path}: the compiled kernel cannot be written ({error.strerror}); LANEFORMER_CACHE names "
                "another folder"
            ) from None
    return path


def kernel_sources() -> dict[str, str]:
    """Texts of ``kernels/cuda`` by name."""
    folder = resources.files("kernels") / "cuda"
    entries = sorted(folder.iterdir(), key=lambda entry: entry.name)
    return {
        entry.name: entry.read_text(encoding="utf-8")
        for entry in entries
        if entry.name.endswith((".cu", ".cuh"))
    }


def build(header: str, sources: dict[str, str], main: str = "engine.cu") -> tuple[bytes, str]:
    """Compile ``main`` with ``header`` as its model.cuh: the cubin, and what ptxas said.

    That is nothing where the cubin is from the cache that CUDA keeps itself (``CUDA_CACHE_DISABLE=1``
    turns it off).  Raises :class:`CudaCompileError`.
    """
    nvrtc = _nvrtc()
    headers = {name: text for name, text in sources.items() if name != main} | {"model.cuh": header}
    texts, names = [[each.encode() for each in part] for part in (headers.values(), headers)]
    program = nvrtc.createProgram(sources[main], main, texts, names)
    try:
        nvrtc.compileProgram(program, OPTIONS)
        return nvrtc.getCUBIN(program), nvrtc.getProgramLog(program)
    except nvrtc.NVRTCError as error:
        log = nvrtc.getProgramLog(program)
        first = next((line for line in log.splitlines() if "error" in line), str(error))
        raise CudaCompileError(f"NVRTC cannot compile the kernel: {first}") from None
    finally:
        nvrtc.destroyProgram(program)


def nvrtc_version() -> tuple[int, int]:
    """Major and minor version; :class:`CudaCompileError` where there is none."""
    nvrtc = _nvrtc()
    try:
        version: tuple[int, int] = nvrtc.getVersion()
    except (RuntimeError, ImportError, OSError) as error:
        raise CudaCompileError(
            f"NVRTC is not here ({one_line(error)}): install the CUDA toolkit or nvidia-cuda-nvrtc"
        ) from None
    return version


def import_cupy() -> Any:
    """CuPy; :class:`CudaCompileError` where it is not installed."""
    try:
        import cupy
    except ImportError as error:
        raise CudaCompileError(
            f"the cuda back end needs CuPy ({one_line(error)}): pip install 'laneformer[cuda]'"
        ) from None
    return cupy


def one_line(error: Exception) -> str:
    """An error's text; CuPy's goes over many lines."""
    return " ".join(str(error).split())


def _nvrtc() -> Any:
    return import_cupy().cuda.nvrtc
