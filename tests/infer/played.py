"""The CUDA kernel played on a processor: kernels/cuda itself, with a stand-in for the device.

Inline assembly, of which there is little, is turned into calls of ``cuda_played/device.h``; all else is
compiled as it is, by the host's C++ compiler.  The back end's host side runs unchanged on the made-up CuPy of
``fake_cuda.py``.
"""

from __future__ import annotations

import ctypes
import hashlib
import re
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from infer.backends import cuda_backend
from infer.backends.cuda_compile import kernel_sources
from infer.backends.cuda_source import Kernel, model_header
from laneformer.config import LaneformerConfig
from tests.infer.fake_cuda import Machine

DEVICE = Path(__file__).parent / "cuda_played" / "device.h"
FLAGS = ("-std=c++20", "-O1", "-shared", "-fPIC", "-ffp-contract=off", "-fno-strict-aliasing", "-w")
# By what an instruction is recognised, and what it becomes; {0}, {1}, ... are its operands, outputs first.
INSTRUCTIONS = (
    ("mbarrier.init", "device::barrier_init({0}, {1})"),
    ("mbarrier.arrive.expect_tx", "device::barrier_expect({0}, {1})"),
    ("mbarrier.arrive", "device::barrier_arrive({0})"),
    ("mbarrier.try_wait", "{0} = device::barrier_done({1}, {2})"),
    ("mbarrier.test_wait", "{0} = device::barrier_done({1}, {2})"),
    ("cp.async.bulk.prefetch", ""),
    ("cp.async.bulk.shared", "device::bulk_copy({0}, {1}, {2}, {3})"),
    ("ld.global.v4.b32", "device::plain_copy({0}, {1})"),
    ("createpolicy", "{0} = 0"),
    ("bar.sync 1", "device::bar_sync({0})"),
    ("cvt.rn.", "{0} = device::narrowed({2}, {1})"),
    ("cvt.f32.f16", "static_assert(false)"),
    ("mma.sync", "device::tensor_product({0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}, {8}, {9})"),
    ("%globaltimer", "{0} = device::now()"),
    ("st.relaxed.gpu.global.b128", "device::store_packet({0}, {1}, {2}, {3}, {4})"),
    ("ld.relaxed.gpu.global.b128", "device::load_packet({4}, {0}, {1}, {2}, {3})"),
    ("ld.relaxed.gpu.global.u32", "{0} = device::load({1})"),
    ("st.release.gpu.global.u64", "*({0}) = {1}"),
    ("ld.acquire.gpu.global.u64", "{0} = device::load({1})"),
    ("ld.shared.u32", "{0} = *device::in_shared<unsigned>({1})"),
    ("st.shared.u32", "*device::in_shared<unsigned>({0}) = {1}"),
    ("ex2.approx.ftz.f32", "{0} = std::exp2({1})"),
    ("%ctaid.x", "{0} = device::block()"),
    ("%tid.x", "{0} = device::thread()"),
    ("fence.", ""),
)
DRIVER = """
#include "device.h"
#include "engine.cu"
using laneformer::Request;
static Request played;
extern "C" int play(const Request* request, int blocks, int threads, std::size_t shared_bytes, int seed) {
    played = *request;
    device::kernel = [] { laneformer::laneformer_request(played); };
    return device::play(blocks, threads, shared_bytes, seed);
}
"""


def without_assembly(text: str) -> str:
    """A source with calls in place of its inline assembly."""
    parts, end = [], 0
    for found in re.finditer(r"\basm(?: volatile)?\(", text):
        close = _closing(text, found.end())
        parts += [text[end : found.start()], _translated(text[found.end() : close])]
        end = close + 1
    return "".join([*parts, text[end:]])


def _translated(statement: str) -> str:
    """What stands between the brackets of an asm statement, as C++."""
    sections = _split(statement, ":")
    instruction = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', sections[0]))
    operands = [
        operand[operand.index("(") :].strip()
        for section in sections[1:3]
        for operand in _split(section, ",")
        if operand.strip()
    ]
    if not instruction:
        return "static_cast<void>(0)"
    for name, call in INSTRUCTIONS:
        if name in instruction:
            return call.format(*operands) or "static_cast<void>(0)"
    raise AssertionError(f"no stand-in for {instruction!r}")


def _closing(text: str, start: int) -> int:
    """Where the bracket that is open at ``start`` closes."""
    depth = 1
    for found in re.compile(r'"(?:[^"\\]|\\.)*"|[()]').finditer(text, start):
        depth += {"(": 1, ")": -1}.get(found[0], 0)
        if depth == 0:
            return found.start()
    raise AssertionError("a bracket that does not close")


def _split(text: str, at: str) -> list[str]:
    """Parts between marks that lie in no bracket and no string; '::' of a name is none."""
    parts, start, depth = [], 0, 0
    for found in re.compile(r'"(?:[^"\\]|\\.)*"|[()\[\]{}]|' + at).finditer(text):
        if found[0] in "([{":
            depth += 1
        elif found[0] in ")]}":
            depth -= 1
        elif found[0] == at and depth == 0:
            parts.append(text[start : found.start()])
            start = found.end()
    return [*parts, text[start:]]


def compile_played(
    config: LaneformerConfig, kernel: Kernel, sources: dict[str, str], folder: Path, driver: str = DRIVER
) -> Path:
    """The kernel as a library of the host's, with the functions of ``driver``."""
    compiler = shutil.which("g++")
    assert compiler is not None and not kernel.float16
    texts = {name: without_assembly(text) for name, text in sources.items() if name != "bandwidth.cu"}
    texts["model.cuh"] = "#pragma once\n" + model_header(config, kernel)
    texts["engine.cu"] = texts["engine.cu"].replace(
        "extern __shared__ __align__(128) unsigned char memory[];",
        "unsigned char* const memory = device::shared_memory();",
    )
    texts["driver.cpp"], texts["device.h"] = driver, DEVICE.read_text(encoding="utf-8")
    described = hashlib.sha256(repr((texts, FLAGS)).encode()).hexdigest()[:24]
    library = folder / f"played-{described}.so"
    if not library.exists():
        place = folder / described
        place.mkdir(exist_ok=True)
        for name, text in texts.items():
            (place / name).write_text(text, encoding="utf-8")
        subprocess.run([compiler, *FLAGS, "-o", library, place / "driver.cpp"], check=True)
    return library


class PlayedMachine(Machine):
    """A GPU whose kernels are played here.  ``seed`` is that of the order in which threads run."""

    seed = 0

    def play_on(self, patch: pytest.MonkeyPatch, folder: Path, sources: dict[str, str] | None = None) -> None:
        """Put it in place, for kernels of ``sources``."""
        self.install(patch)
        texts = sources or kernel_sources()
        patch.setattr(
            cuda_backend, "compile_kernel", lambda *described: compile_played(*described, texts, folder)
        )

    def module(self) -> Any:
        cupy = super().module()
        cupy.RawModule = lambda path, **_: _PlayedModule(self, ctypes.CDLL(path))
        return cupy


class _PlayedModule:
    def __init__(self, machine: PlayedMachine, library: ctypes.CDLL) -> None:
        self._machine, self._library = machine, library

    def get_function(self, name: str) -> Any:
        play = self._library.play

        def launch(grid: tuple[int], block: tuple[int], arguments: tuple[np.void], shared_mem: int) -> None:
            request = np.array(arguments[0])
            seed = self._machine.seed
            ended = play(
                ctypes.c_void_p(request.ctypes.data), grid[0], block[0], ctypes.c_ulonglong(shared_mem), seed
            )
            assert ended == 0, "a copy was on its way when the kernel had ended"

        launch.max_dynamic_shared_size_bytes = 0  # type: ignore[attr-defined]
        return launch

    def get_global(self, name: str) -> Any:
        return SimpleNamespace(ptr=ctypes.addressof(ctypes.c_longlong.in_dll(self._library, name)))
