"""NVIDIA's compute-sanitizer, which looks at every memory access, on the CUDA kernel of two small models.

    python tests/sanitize_cuda.py --json docs/results/cuda_sanitizer.json

One model of eight lanes and one whose attention is merged by shares answer prompts in chunks and token by
token, greedily and by chance, with and without checksums, once under ``memcheck`` and once under
``racecheck``.  The first greedy token must be numpy's or as good.  Every array is an allocation of its own,
not a part of CuPy's pool, so that memcheck knows where it ends.

racecheck takes the thread that asks for a bulk copy for the one that writes, whatever barrier the bytes
complete: so it gets kernels that copy by ordinary loads and stores.  It tells what it found when the whole
device is waited for, which the engine, waiting for an event, does not do by itself.

Two more runs show that the tools see what they should: memcheck an array that is too short, racecheck a
kernel with one barrier left out.  Ends with exit code 1 where a token is wrong, a tool found anything, or
found nothing in these.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from infer.backends import cuda_compile  # noqa: E402
from infer.backends.cuda_backend import CudaBackend  # noqa: E402
from infer.backends.cuda_compile import compile_kernel, kernel_sources  # noqa: E402
from infer.backends.cuda_device import Device  # noqa: E402
from infer.backends.numpy_backend import NumpyBackend  # noqa: E402
from infer.bench import commit, host_cpu  # noqa: E402
from infer.bench.machine import versions  # noqa: E402
from infer.request import Request  # noqa: E402
from infer.weights import Weights  # noqa: E402
from laneformer.config import LaneformerConfig  # noqa: E402
from laneformer.errors import LaneformerError  # noqa: E402
from tests.infer.cuda_kernels import kernel_for, shape_config  # noqa: E402
from tests.infer.rounded import Rounded  # noqa: E402
from tests.tiny_models import RandomWeights, tiny_config  # noqa: E402

FOUND_SOMETHING = 9  # exit code
MOST_LINES = 60  # of a tool, that are printed
TOOL_SECONDS = 600  # one run, at most
# Name of a run, its tool, its requests' option, and what the tool must say, or nothing.
RUNS = (
    ("memcheck", "memcheck", "--bulk-copies", ""),
    ("memcheck, an array too short", "memcheck", "--short-array", "Invalid __global__ write of size 4"),
    ("racecheck", "racecheck", "--plain-copies", ""),
    ("racecheck, a barrier left out", "racecheck", "--without-barrier", "Race reported between"),
)
# The barrier between the inputs that all threads store and the product that reads them, in worker.cuh.
BARRIER = "        if (scale != nullptr) sum_squares(squares);\n        math_barrier();\n"
# The models, and how long their prompts are: a whole chunk and a part of one; and, without checksums only, so
# long that tokens alone are merged by shares, no longer by every worker.
MODELS: dict[str, tuple[LaneformerConfig, tuple[int, ...]]] = {
    "eight lanes": (
        tiny_config(
            hidden_size=64,
            intermediate_size=256,
            num_lanes=8,
            num_attention_heads=16,
            num_key_value_heads=8,
            max_position_embeddings=192,
        ),
        (139,),
    ),
    "one lane, merged by shares": (shape_config("attention merged by shares", 1152), (139, 1030)),
}
WORKERS = 2  # per lane
SHARED_BYTES = 112 * 1024  # so that the ring of pages goes round often
NEW_TOKENS = 6
STALL_SECONDS = 60.0  # under a sanitizer a kernel is many times slower
CLOSE = 0.03  # of the largest logit: a prompt in chunks has 16-bit inputs


def main() -> int:
    """Run the tools; 1 where one found something."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path)
    alone = parser.add_mutually_exclusive_group()
    alone.add_argument("--bulk-copies", action="store_true", help="what memcheck runs: no tool, no file")
    alone.add_argument("--short-array", action="store_true", help="likewise, and must find something in")
    alone.add_argument("--plain-copies", action="store_true", help="likewise, what racecheck runs")
    alone.add_argument("--without-barrier", action="store_true", help="likewise, and must find hazards in")
    arguments = parser.parse_args()
    if arguments.bulk_copies or arguments.plain_copies:
        return answer_requests(plain_copies=arguments.plain_copies)
    if arguments.short_array or arguments.without_barrier:
        answer_wrongly(without_barrier=arguments.without_barrier)
        return 0  # whatever the tokens: the tool's exit code is the answer
    compile_all()
    runs = [run(*each) for each in RUNS]
    report = {
        "benchmark": "cuda_sanitizer",
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": "python tests/sanitize_cuda.py",
        "commit": commit(),
        "gpu": Device().name,
        "host_cpu": host_cpu(),
        "packages": versions(("numpy", "cupy-cuda13x")),
        "models": {name: config.to_dict() for name, (config, _) in MODELS.items()},
        "runs": runs,
    }
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 0 if all(run["as_wanted"] for run in runs) else 1


def kernel_changes(plain_copies: bool) -> dict[str, Any]:
    """Fields of the kernel's description."""
    return {"plain_copies": plain_copies, "shared_bytes": SHARED_BYTES}


def compile_all() -> None:
    """Kernels of all runs, side by side and not under a tool; the last one races, and is compiled there."""

    def compiled(entry: tuple[LaneformerConfig, bool, bool]) -> None:
        config, checksums, plain_copies = entry
        kernel = kernel_for(config, WORKERS, checksums=checksums)
        compile_kernel(config, replace(kernel, **kernel_changes(plain_copies)))

    wanted = product([config for config, _ in MODELS.values()], (False, True), (False, True))
    with ThreadPoolExecutor() as pool:  # NVRTC lets go of Python's lock
        list(pool.map(compiled, wanted))


def leave_barrier_out() -> None:
    """Kernels compiled from now on race."""
    sources = kernel_sources()
    assert sources["worker.cuh"].count(BARRIER) == 1
    sources["worker.cuh"] = sources["worker.cuh"].replace(BARRIER, BARRIER.replace("math_barrier();", ""))
    cuda_compile.kernel_sources = lambda: sources


def run(name: str, tool: str, option: str, wanted: str) -> dict[str, Any]:
    """One tool's exit code and what it said at the end, and whether it found what it should: or nothing."""
    command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", str(FOUND_SOMETHING)]
    command += [sys.executable, __file__, option]
    start = time.perf_counter()
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env=os.environ, timeout=TOOL_SECONDS
        )
    except subprocess.TimeoutExpired:  # the other runs' answers are not lost with it
        done = subprocess.CompletedProcess(command, -1, "", f"not done after {TOOL_SECONDS} seconds")
    seconds = time.perf_counter() - start
    lines = [line for line in done.stdout.splitlines() if line.strip()]
    print(name, *lines[:MOST_LINES], done.stderr[-2000:], sep="\n", flush=True)
    found = [line.removeprefix("=========").strip() for line in lines if "SUMMARY" in line]
    answers = [line for line in lines if line.startswith(tuple(MODELS))]
    return {
        "run": name,
        "tool": tool,
        "exit_code": done.returncode,
        "wanted": wanted,
        "as_wanted": done.returncode == (FOUND_SOMETHING if wanted else 0) and wanted in done.stdout,
        "summary": found,
        "answers": answers,
        "seconds": seconds,
    }


def backend(weights: Weights, *, checksums: bool, plain_copies: bool) -> CudaBackend:
    """The back end as the tools see it."""
    cuda_compile.import_cupy().cuda.set_allocator(None)
    return CudaBackend(
        weights,
        workers_per_lane=WORKERS,
        checksums=checksums,
        stall_seconds=STALL_SECONDS,
        kernel_changes=kernel_changes(plain_copies),
    )


def hear_racecheck() -> None:
    """Let racecheck tell what it found."""
    cuda_compile.import_cupy().cuda.runtime.deviceSynchronize()


def answer_wrongly(without_barrier: bool) -> None:
    """A request with a fault that a tool must find: a barrier left out, or logits that have no room."""
    config, [length, *_] = next(iter(MODELS.values()))
    if without_barrier:
        leave_barrier_out()
    engine = backend(Rounded(RandomWeights(config)), checksums=False, plain_copies=without_barrier)
    if not without_barrier:
        engine._arrays["logits"] = engine._device.zeros(config.vocab_size * 4 - 4)
    try:
        list(engine.decode(Request(tuple(range(length)), max_new_tokens=NEW_TOKENS)))
    except LaneformerError as error:
        print(f"the request ended early: {error}", flush=True)
        if not without_barrier:
            os._exit(0)  # CUDA is lost to this process, and would say so at its end
    hear_racecheck()


def answer_requests(plain_copies: bool) -> int:
    """Every request on the GPU; 1 where a token is wrong."""
    wrong = 0
    for name, (config, lengths) in MODELS.items():
        weights = Rounded(RandomWeights(config))
        random = np.random.default_rng(0)
        ids = tuple(int(token) for token in random.integers(config.vocab_size, size=max(lengths)))
        logits = NumpyBackend(weights).logits(ids)
        for checksums in (False, True):
            engine = backend(weights, checksums=checksums, plain_copies=plain_copies)
            by_chance = Request(
                ids[:3], max_new_tokens=NEW_TOKENS, temperature=0.8, top_k=40, top_p=0.9, seed=1
            )
            sampled = list(engine.decode(by_chance))
            for length in lengths[:1] if checksums else lengths:
                request = Request(ids[:length], max_new_tokens=NEW_TOKENS)
                [first, *_] = [token for token, _ in engine.decode(request)]
                best = logits[length - 1]
                behind = float(best.max() - best[first]) / float(np.abs(best).max())
                right = behind <= CLOSE and len(sampled) == NEW_TOKENS
                wrong += not right
                print(
                    f"{name}, prompt of {length}, {'with' if checksums else 'without'} checksums: "
                    f"{'right' if right else 'WRONG'}, first token {behind:.4f} of the largest logit behind",
                    flush=True,
                )
            hear_racecheck()
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
