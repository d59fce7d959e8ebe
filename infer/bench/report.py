"""Measurements for people, as a table, and for tools, as JSON with the raw numbers."""

from __future__ import annotations

import datetime
import platform
import statistics
from collections.abc import Sequence
from typing import Any

from infer.bench.decode import Benchmark, SettingResult
from infer.bench.machine import UNKNOWN, commit, host_cpu, usable_cores, versions
from infer.engine import Engine

PACKAGES = ("laneformer", "numpy", "safetensors", "tokenizers", "cupy-cuda12x", "cupy-cuda13x")


def report(engine: Engine, model: str, benchmark: Benchmark, command: str) -> dict[str, Any]:
    """Everything needed to read the numbers later: date, machine, versions, model and raw times."""
    bandwidth = benchmark.read_bandwidth
    return {
        "benchmark": "decode",
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": command,
        "commit": commit(),
        "host_cpu": host_cpu(),
        "cores": usable_cores(),
        "python": platform.python_version(),
        "packages": versions(PACKAGES),
        "model": model,
        "config": engine.config.to_dict(),
        "backend": engine.backend_name,
        "threads": getattr(engine.backend, "threads", None),
        "device": getattr(engine.backend, "device_name", None),
        "device_bytes": benchmark.device_bytes,
        "weight_bytes_per_token": engine.backend.weight_bytes_per_token,
        "peak_resident_bytes": benchmark.peak_resident_bytes,
        "read_bandwidth": spread(bandwidth) | {"raw": list(bandwidth)} if bandwidth else None,
        "results": [
            _numbers(result)
            | {
                "share_of_weight_wall": benchmark.share_of_weight_wall(result),
                "share_of_read_bandwidth": benchmark.share_of_bandwidth(result),
            }
            for result in benchmark.results
        ],
    }


def table(benchmark: Benchmark) -> str:
    """The results for people to read."""
    lines = [
        "prompt  context   first token   prompt/s   tokens/s       min       max"
        "  weights MB  keys MB    GB/s  of weights  of read"
    ]
    for result in benchmark.results:
        rates = spread(result.tokens_per_second)
        first = statistics.median(result.first_token_seconds)
        weight_share, share = benchmark.share_of_weight_wall(result), benchmark.share_of_bandwidth(result)
        lines.append(
            f"{result.setting.prompt_tokens:6d} {result.setting.context_tokens:8d} {first * 1e3:10.2f} ms "
            f"{result.setting.prompt_tokens / first:10.1f} "
            f"{rates['median']:10.1f} {rates['min']:9.1f} {rates['max']:9.1f} "
            f"{_shown(result.weight_bytes, '.1f', 1e6):>11} {_shown(result.key_value_bytes, '.1f', 1e6):>8} "
            f"{_shown(result.gigabytes_per_second, '.2f'):>7} "
            f"{_shown(weight_share, '.1%'):>11} {_shown(share, '.1%'):>8}"
        )
    bandwidth = statistics.median(benchmark.read_bandwidth) if benchmark.read_bandwidth else None
    last = (
        f"read bandwidth {_shown(bandwidth, '.1f', 1e9)} GB/s in the same run, "
        f"peak memory {_shown(benchmark.peak_resident_bytes, '.0f', 1e6)} MB"
    )
    if benchmark.device_bytes is not None:
        last += f", on the device {sum(benchmark.device_bytes.values()) / 1e6:.0f} MB"
    return "\n".join([*lines, last])


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, smallest and largest."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def _numbers(result: SettingResult) -> dict[str, Any]:
    prompt = result.setting.prompt_tokens
    return {
        "prompt_tokens": prompt,
        "new_tokens": result.setting.new_tokens,
        "context_tokens": result.setting.context_tokens,
        "tokens_per_second": spread(result.tokens_per_second),
        "first_token_seconds": spread(result.first_token_seconds),
        "prompt_tokens_per_second": spread([prompt / seconds for seconds in result.first_token_seconds]),
        "key_value_bytes_per_token": result.key_value_bytes,
        "gigabytes_per_second": result.gigabytes_per_second,
        "raw": [vars(run) for run in result.runs],
    }


def _shown(value: float | None, form: str, unit: float = 1.0) -> str:
    return UNKNOWN if value is None else format(value / unit, form)
