"""Decoding on builds of the CPU back end with ThreadSanitizer and with AddressSanitizer.

The sanitizer's run-time library has to be loaded before Python's own code, so each runs in a process of
its own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from infer.backends.cpu_compile import compiled_library
from tests.tiny_models import tiny_config

ROOT = Path(__file__).parents[2]
PROGRAM = """
import gc
import numpy as np
from infer.backends.cpu_backend import CpuBackend
from infer.request import Request
from tests.tiny_models import RandomWeights, tiny_config

weights = RandomWeights(tiny_config())
answers = []
for workers, threads in ((1, 2), (2, 3), (5, 4)):
    backend = CpuBackend(weights, workers_per_lane=workers, threads=threads)
    logits = backend.logits(list(range(40)))
    everything = dict(temperature=1.0, top_k=50, top_p=0.9, min_p=0.01, repetition_penalty=1.1)
    sampled = list(backend.decode(Request(tuple(range(20)), max_new_tokens=30, **everything)))
    greedy = list(backend.decode(Request((1, 2), max_new_tokens=62, stop_token_ids=frozenset({9}))))
    for _ in range(3):
        stream = backend.decode(Request(tuple(range(20)), max_new_tokens=40))
        next(stream)
        stream.close()
    answers.append((logits.tolist(), sampled, greedy))
    del backend
    gc.collect()
assert answers[0] == answers[1] == answers[2]
print("done")
"""
SANITIZERS = {
    "thread": ("-fsanitize=thread", ("libtsan.so",), {"TSAN_OPTIONS": "halt_on_error=1 exitcode=66"}),
    "address": (
        "-fsanitize=address,undefined -fno-sanitize-recover=undefined",
        ("libasan.so", "libubsan.so"),
        # Python itself keeps memory until it ends.
        {"ASAN_OPTIONS": "detect_leaks=0"},
    ),
}


def runtime_library(name: str) -> str:
    """Where the compiler keeps a sanitizer's run-time library."""
    done = subprocess.run(["g++", f"-print-file-name={name}"], capture_output=True, text=True, check=False)
    path = done.stdout.strip()
    if not Path(path).is_absolute():
        pytest.skip(f"g++ has no {name} here")
    return path


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux" or shutil.which("g++") is None, reason="needs Linux and g++")
@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_decoding_is_clean(sanitizer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    flags, libraries, options = SANITIZERS[sanitizer]
    preload = " ".join(runtime_library(name) for name in libraries)
    monkeypatch.setenv("LANEFORMER_CXXFLAGS", f"{flags} -g -O1 -fno-omit-frame-pointer")
    monkeypatch.setenv("CXX", "g++")
    compiled_library(tiny_config())  # here: the compiler itself should not run under the sanitizer
    command = [sys.executable, "-c", PROGRAM]
    if sanitizer == "thread" and (fixed_addresses := shutil.which("setarch")):
        command = [fixed_addresses, "-R", *command]  # its shadow memory wants its own place
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | options | {"LD_PRELOAD": preload, "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "done\n"
    assert "Sanitizer" not in done.stderr
