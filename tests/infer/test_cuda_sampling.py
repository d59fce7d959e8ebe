"""How the CUDA kernel samples, on a processor: sampling.cuh itself, with stand-ins for the device's headers.

What it draws must be what infer/sampling.py draws from the same logits and uniform numbers.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from infer.request import Request
from infer.sampling import distribution

KERNELS = Path(__file__).parents[2] / "kernels" / "cuda"
STAND_INS = Path(__file__).parent / "cuda_sampling"
VOCABULARY, WORKERS = 1003, 3  # no cut of equal tokens falls between two, where rounding would decide
DRAWS = 12

OPTIONS: list[dict[str, Any]] = [
    {"temperature": 1.0},
    {"temperature": 2.0, "min_p": 0.1},
    {"temperature": 0.7, "top_k": 5},
    {"temperature": 1.0, "top_k": 1},
    {"temperature": 1.0, "top_k": VOCABULARY},
    {"temperature": 1.3, "top_p": 0.8},
    {"temperature": 50.0, "top_p": 0.99},
    {"temperature": 0.01, "top_p": 0.9},
    {"temperature": 1.0, "top_k": 40, "top_p": 0.9, "min_p": 0.05},
    {"temperature": 3.0, "top_p": 0.7, "min_p": 0.3},
    {"temperature": 1e4, "top_k": 50},  # weights are nearly equal, and yet the best 50 stay
    {"temperature": 1e3, "top_p": 0.5},
]

Draw = Callable[..., np.ndarray]


@pytest.fixture(scope="module")
def draw(tmp_path_factory: pytest.TempPathFactory) -> Draw:
    """``draw(logits, uniforms, **options)``: a token of each row of float32 ``[draws, vocab]``."""
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    folder = tmp_path_factory.mktemp("sampling")
    # Quoted includes look beside the file first, so the kernel's file is put beside the stand-ins.
    for file in (*STAND_INS.iterdir(), KERNELS / "sampling.cuh", KERNELS / "sampling_memory.cuh"):
        shutil.copy(file, folder)
    library = folder / "sampling.so"
    sizes = [f"-DTEST_VOCABULARY={VOCABULARY}", f"-DTEST_WORKERS={WORKERS}"]
    flags = ["-std=c++20", "-O1", "-shared", "-fPIC", "-pthread", "-Wall", "-Wno-unknown-pragmas"]
    command = [compiler, *flags, *sizes, "-o", library, folder / "driver.cpp"]
    subprocess.run(command, check=True)
    function = ctypes.CDLL(str(library)).draw

    def drawn(
        logits: np.ndarray,
        uniforms: np.ndarray,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
    ) -> np.ndarray:
        assert logits.dtype == np.float32 and logits.flags.c_contiguous and logits.shape[1] == VOCABULARY
        tokens = np.full(len(logits), -1, np.int32)
        disagree = function(
            logits.ctypes.data_as(ctypes.c_void_p),
            uniforms.ctypes.data_as(ctypes.c_void_p),
            len(logits),
            ctypes.c_float(temperature),
            top_k,
            ctypes.c_float(top_p),
            ctypes.c_float(min_p),
            tokens.ctypes.data_as(ctypes.c_void_p),
        )
        assert not disagree
        return tokens

    return drawn


def reference(logits: np.ndarray, uniform: float, options: dict[str, Any]) -> int:
    ids, probabilities = distribution(logits, Request((1,), max_new_tokens=1, **options))
    cumulative = np.cumsum(probabilities)
    return int(ids[min(np.searchsorted(cumulative, uniform * cumulative[-1], side="right"), len(ids) - 1)])


def steep(random: np.random.Generator) -> np.ndarray:
    return random.normal(size=(DRAWS, VOCABULARY)) * 3


def tied(random: np.random.Generator) -> np.ndarray:
    return np.round(steep(random))


def equal(random: np.random.Generator) -> np.ndarray:
    return np.full((DRAWS, VOCABULARY), 1.5)


def peaked(random: np.random.Generator) -> np.ndarray:
    """One token has nearly everything; most weigh nothing."""
    logits = steep(random) * 20
    logits[:, 123] = logits.max() + 5
    return logits


@pytest.mark.parametrize("make", [steep, tied, equal, peaked], ids=lambda make: make.__name__)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_draws_are_those_of_the_reference(draw: Draw, options: dict[str, Any], make: Any) -> None:
    random = np.random.default_rng(7)
    logits = np.ascontiguousarray(make(random), np.float32)
    uniforms = random.random(DRAWS)
    uniforms[:2] = 1e-12, 0.9999  # at 0 the reference takes what weighs anything, 1e-100 too
    wanted = [reference(row, uniform, options) for row, uniform in zip(logits, uniforms, strict=True)]
    assert draw(logits, uniforms, **options).tolist() == wanted
