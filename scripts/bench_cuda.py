"""How fast the cuda back end answers one request, on models of random weights: seeds, not checkpoints.

    python scripts/bench_cuda.py --json docs/results/cuda_decode.json

For every shape in turn: compile, pack, load from the packed cache, the read bandwidth of the GPU, then
decoding at several contexts, the time to the first token of short and long prompts, and sampling against
greedy.  The wall is the time in which weights, and keys and values, could be read at the bandwidth that
was measured in the same run.  ``--baseline`` then measures a dense model of the same sizes in CUDA graphs
(``baseline_cuda_graph.py``, needs torch), when the engine has left the GPU.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import subprocess
import sys
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from infer.backends.cuda_backend import CudaBackend
from infer.backends.cuda_compile import import_cupy
from infer.bench.decode import Setting, key_value_bytes, random_prompt
from infer.bench.machine import commit, host_cpu, versions
from infer.request import Request
from laneformer.config import LaneformerConfig
from laneformer.parameters import parameter_shapes

SEED = 0
BASELINE = Path(__file__).with_name("baseline_cuda_graph.py")
BASELINE_SECONDS = 300  # it begins nothing after 90 seconds, and compiling takes a while
RELEASE: dict[str, Any] = {
    "hidden_size": 3072,
    "num_hidden_layers": 15,
    "num_attention_heads": 32,
    "num_key_value_heads": 16,
    "intermediate_size": 12288,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
    "num_lanes": 8,
    "broadcast_delay": 2,
    "sliding_window": 512,
    "sliding_layers": tuple(range(10)),
    "dtype": "bfloat16",
}
LLAMA_1B: dict[str, Any] = {
    "hidden_size": 2048,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "intermediate_size": 8192,
    "vocab_size": 128256,
    "max_position_embeddings": 4096,
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
    "dtype": "bfloat16",
}
SMOLLM2: dict[str, Any] = {
    "hidden_size": 576,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "intermediate_size": 1536,
    "vocab_size": 49152,
    "max_position_embeddings": 4096,
    "rope_theta": 100000.0,
    "tie_word_embeddings": True,
    "dtype": "bfloat16",
}
SHAPES = {"release": RELEASE, "llama-3.2-1b": LLAMA_1B, "smollm2-135m": SMOLLM2}


class SeededWeights:
    """Random bfloat16 weights of one shape: magnitudes from 1/128 to 1/32, norm scales 1."""

    def __init__(self, config: LaneformerConfig) -> None:
        self.config = config
        shapes = parameter_shapes(config)
        with ThreadPoolExecutor() as pool:
            self._tensors = dict(zip(shapes, pool.map(_tensor, shapes.items()), strict=True))

    @property
    def names(self) -> list[str]:
        return list(self._tensors)

    def dtype(self, name: str) -> str:
        return "bfloat16"

    def raw(self, name: str) -> np.ndarray:
        return self._tensors[name]

    def float32(self, name: str) -> np.ndarray:
        return (self._tensors[name].astype(np.uint32) << 16).view(np.float32)


def _tensor(item: tuple[str, tuple[int, ...]]) -> np.ndarray:
    name, shape = item
    if "norm" in name:
        return np.full(shape, 0x3F80, np.uint16)
    random = np.random.default_rng([SEED, zlib.crc32(name.encode())])
    bits = random.integers(1 << 16, size=shape, dtype=np.uint16)
    bits &= 0x80FF  # sign, lowest bit of the exponent, mantissa
    bits |= 0x3C00
    return bits


def main() -> int:
    """Run and print; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=["release"])
    parser.add_argument("--contexts", nargs="+", type=int, default=[256, 1024, 4096])
    parser.add_argument("--prompts", nargs="+", type=int, default=[32, 512, 2048])
    parser.add_argument("--new-tokens", type=int, default=200)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--baseline", action="store_true", help="measure PyTorch with CUDA graphs as well")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    results = []
    for name in arguments.shapes:
        result = measure(name, arguments)
        if arguments.baseline:
            import_cupy().get_default_memory_pool().free_all_blocks()  # the engine's, which is gone
            result["baseline"] = baseline(name, result["decode"], arguments.new_tokens, arguments.runs)
        results.append(result)
    report = {
        "benchmark": "cuda",
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": command(arguments),
        "commit": commit(),
        "host_cpu": host_cpu(),
        "packages": versions(("laneformer", "numpy", "cupy-cuda13x")),
        "results": results,
    }
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 1 if any("error" in result.get("baseline", {}) for result in results) else 0


def command(arguments: argparse.Namespace) -> str:
    """What to type to run this again; of the result file only the name."""
    words = ["python scripts/bench_cuda.py"]
    for option in ("shapes", "contexts", "prompts"):
        words += [f"--{option}", *map(str, getattr(arguments, option))]
    words += ["--new-tokens", str(arguments.new_tokens), "--runs", str(arguments.runs)]
    words += ["--baseline"] if arguments.baseline else []
    return " ".join([*words, *(["--json", arguments.json.name] if arguments.json else [])])


def measure(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Everything about one shape."""
    config = LaneformerConfig(**SHAPES[name])
    weights, seconds = timed(lambda: SeededWeights(config))
    print(f"{name}: weights made in {seconds:.1f} s", flush=True)
    free = free_device_bytes()
    first, packed = timed(lambda: CudaBackend(weights))
    compiled = first.compile_seconds
    del first
    backend, loaded = timed(lambda: CudaBackend(weights))
    held = sum(backend.device_bytes.values())
    needed = backend.tape.index.size + backend.device_bytes["keys and values"]
    result: dict[str, Any] = {
        "shape": name,
        "config": config.to_dict(),
        "gpu": backend.device_name,
        "workers_per_lane": backend.kernel.workers_per_lane,
        "pack_and_load_seconds": packed - compiled,
        "compile_seconds": compiled,
        "load_seconds": loaded,
        "device_bytes": backend.device_bytes,
        "device_bytes_over_weights_and_cache": held / needed,
        "weight_bytes_per_token": backend.weight_bytes_per_token,
        "read_bandwidth": [],
        "decode": [],
        "prompts": [],
        "sampling": [],
    }
    print(
        f"  compiled in {compiled:.1f} s, packed and loaded in {packed - compiled:.1f} s, "
        f"loaded in {loaded:.1f} s; "
        f"{held / 1e9:.2f} GB, {held / needed:.3f} of weights and cache",
        flush=True,
    )
    decode_settings = [
        Setting(context - arguments.new_tokens, arguments.new_tokens) for context in arguments.contexts
    ]
    for setting in decode_settings:
        rate(backend, setting)  # warms up
    rates: dict[Setting, list[float]] = {setting: [] for setting in decode_settings}
    for _ in range(arguments.runs):
        result["read_bandwidth"].append(backend.read_bandwidth())
        for setting in decode_settings:
            rates[setting].append(rate(backend, setting))
    bandwidth = statistics.median(result["read_bandwidth"])
    print(f"  read bandwidth {bandwidth / 1e9:.0f} GB/s", flush=True)
    for setting, found in rates.items():
        cache = key_value_bytes(config, setting, 2)
        assert cache is not None and backend.weight_bytes_per_token is not None
        wall = bandwidth / backend.weight_bytes_per_token
        median = statistics.median(found)
        result["decode"].append(
            {
                "context": setting.context_tokens,
                "tokens_per_second": found,
                "share_of_weight_wall": median / wall,
                "share_of_wall_with_cache": median * (backend.weight_bytes_per_token + cache) / bandwidth,
            }
        )
        print(
            f"  context {setting.context_tokens}: {median:.1f} tokens/s ({min(found):.1f}-{max(found):.1f}), "
            f"{median / wall:.1%} of the wall of weights alone, "
            f"{result['decode'][-1]['share_of_wall_with_cache']:.1%} with keys and values",
            flush=True,
        )
    for length in arguments.prompts:
        times = [first_token(backend, length) for _ in range(arguments.runs + 1)][1:]
        result["prompts"].append({"tokens": length, "first_token_seconds": times})
        print(f"  prompt of {length}: first token after {statistics.median(times) * 1e3:.2f} ms", flush=True)
    setting = decode_settings[0]
    for options in (
        {},
        {"temperature": 1.0},
        {"temperature": 0.8, "top_p": 0.9},
        {"temperature": 1.0, "top_k": 50},
    ):
        rate(backend, setting, **options)
        found = [rate(backend, setting, **options) for _ in range(arguments.runs)]
        result["sampling"].append({"options": options, "tokens_per_second": found})
        print(f"  {options or 'greedy'}: {statistics.median(found):.1f} tokens/s", flush=True)
    taken = free - free_device_bytes()
    result["taken_bytes_over_weights_and_cache"] = taken / needed
    print(f"  {taken / 1e9:.2f} GB less are free on the GPU: {taken / needed:.3f} of weights and cache")
    return result


def baseline(name: str, decode: list[dict[str, Any]], new_tokens: int, runs: int) -> dict[str, Any]:
    """Numbers of ``baseline_cuda_graph.py`` in a process of its own, and the engine's over its own.

    Where it fails, its last line as ``error``: the engine's numbers are not lost with it.
    """
    contexts = [str(each["context"]) for each in decode]
    command = [sys.executable, str(BASELINE), "--shape", name, "--contexts", *contexts]
    command += ["--new-tokens", str(new_tokens), "--runs", str(runs), "--json", "-"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=BASELINE_SECONDS)
    except subprocess.TimeoutExpired:
        return _baseline_failed(f"not done after {BASELINE_SECONDS} seconds")
    if done.returncode:
        return _baseline_failed(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "no words")
    found: dict[str, Any] = json.loads(done.stdout)
    ours = {each["context"]: statistics.median(each["tokens_per_second"]) for each in decode}
    found["times_baseline"] = {}
    for each in found["decode"]:
        theirs = statistics.median(each["tokens_per_second"])
        times = ours[each["context"]] / theirs
        found["times_baseline"][str(each["context"])] = times
        print(
            f"  CUDA graphs at {each['context']}: {theirs:.1f} tokens/s; the engine is {times:.2f} times that"
        )
    return found


def _baseline_failed(reason: str) -> dict[str, Any]:
    print(f"  the baseline failed: {reason}", file=sys.stderr)
    return {"error": reason}


def free_device_bytes() -> int:
    """What the driver tells is free, when this process has its context and nothing in CuPy's pool."""
    cupy = import_cupy()
    cupy.get_default_memory_pool().free_all_blocks()
    cupy.cuda.runtime.free(0)  # makes the context, if there is none yet
    free, _ = cupy.cuda.runtime.memGetInfo()
    return int(free)


def rate(backend: CudaBackend, setting: Setting, **options: Any) -> float:
    """Tokens per second after the first."""
    prompt = random_prompt(backend.config.vocab_size, setting.prompt_tokens)
    tokens = backend.decode(Request(prompt, max_new_tokens=setting.new_tokens, **options))
    next(tokens)
    start = time.perf_counter()
    for _ in tokens:
        end = time.perf_counter()  # of the last token, before the end of the kernel
    return (setting.new_tokens - 1) / (end - start)


def first_token(backend: CudaBackend, length: int) -> float:
    """Seconds from the request to its first token."""
    start = time.perf_counter()
    tokens = backend.decode(Request(random_prompt(backend.config.vocab_size, length), max_new_tokens=2))
    next(tokens)
    end = time.perf_counter()
    tokens.close()
    return end - start


def timed(what: Any) -> tuple[Any, float]:
    """A result and the seconds that it took."""
    start = time.perf_counter()
    found = what()
    return found, time.perf_counter() - start


if __name__ == "__main__":
    raise SystemExit(main())
