"""Measuring how fast one request is decoded.

    laneformer bench decode MODEL --prompt-tokens 32 512 --new-tokens 64 --runs 5 --json result.json

Each prompt length is run once to warm up and then ``runs`` times, greedily, with end-of-text ignored.
Tokens per second leave out the first token, whose time is told apart: it contains the prompt.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from infer.engine import Engine
from infer.request import Request
from laneformer.errors import RequestError

PACKAGES = ("laneformer", "numpy", "safetensors", "tokenizers")
PROMPT_SEED = 0


@dataclass(frozen=True)
class Run:
    """Times of one request, in seconds."""

    first_token_seconds: float  # from the request to the first token
    decode_seconds: float  # from the first token to the last


@dataclass(frozen=True)
class DecodeResult:
    """All runs of one prompt length."""

    prompt_tokens: int
    new_tokens: int
    weight_bytes_per_token: int | None
    runs: tuple[Run, ...]

    @property
    def tokens_per_second(self) -> list[float]:
        """One rate per run, the first token left out."""
        return [(self.new_tokens - 1) / run.decode_seconds for run in self.runs]

    @property
    def gigabytes_per_second(self) -> float | None:
        """Weight bytes read per second at the median rate, in 1e9 bytes; None where they are not known."""
        if self.weight_bytes_per_token is None:
            return None
        return self.weight_bytes_per_token * statistics.median(self.tokens_per_second) / 1e9

    def to_dict(self) -> dict[str, Any]:
        """Summary and raw numbers, for JSON."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "tokens_per_second": _spread(self.tokens_per_second),
            "first_token_seconds": _spread([run.first_token_seconds for run in self.runs]),
            "gigabytes_per_second": self.gigabytes_per_second,
            "raw": [vars(run) for run in self.runs],
        }


def bench_decode(
    engine: Engine, *, prompt_tokens: Sequence[int], new_tokens: int, runs: int
) -> list[DecodeResult]:
    """Measure each prompt length.  Raises :class:`RequestError` for lengths that make no sense."""
    if new_tokens < 2:
        raise RequestError(
            f"new-tokens must be at least 2, to time what follows the first; found {new_tokens}"
        )
    if runs < 1:
        raise RequestError(f"runs must be at least 1, found {runs}")
    requests = [_request(engine, length, new_tokens) for length in prompt_tokens]
    results = []
    for request in requests:
        _timed(engine, request)
        timed = tuple(_timed(engine, request) for _ in range(runs))
        length = len(request.token_ids)
        results.append(DecodeResult(length, new_tokens, engine.backend.weight_bytes_per_token, timed))
    return results


def report(engine: Engine, model: str, results: Sequence[DecodeResult]) -> dict[str, Any]:
    """Everything needed to read the numbers later: date, machine, versions, model and raw times."""
    return {
        "benchmark": "decode",
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "host_cpu": host_cpu(),
        "host_cpu_count": os.cpu_count(),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "model": model,
        "config": engine.config.to_dict(),
        "backend": engine.backend_name,
        "weight_bytes_per_token": engine.backend.weight_bytes_per_token,
        "new_tokens": results[0].new_tokens,
        "results": [result.to_dict() for result in results],
    }


def table(results: Sequence[DecodeResult]) -> str:
    """The results for people to read."""
    lines = ["prompt   first token   tokens/s      min      max   MB/token    GB/s"]
    for result in results:
        rates = _spread(result.tokens_per_second)
        first = statistics.median(run.first_token_seconds for run in result.runs)
        size, bandwidth = result.weight_bytes_per_token, result.gigabytes_per_second
        lines.append(
            f"{result.prompt_tokens:6d} {first * 1e3:10.2f} ms {rates['median']:10.1f} {rates['min']:8.1f} "
            f"{rates['max']:8.1f} {'n/a' if size is None else f'{size / 1e6:.1f}':>10} "
            f"{'n/a' if bandwidth is None else f'{bandwidth:.2f}':>7}"
        )
    return "\n".join(lines)


def host_cpu() -> str:
    """Name of the processor, or "n/a"."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass  # not Linux
    return platform.processor() or "n/a"


def commit() -> str:
    """Commit of this software where it runs from a checkout, else "n/a"."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return "n/a"
    return found.stdout.strip() or "n/a"


def _request(engine: Engine, length: int, new_tokens: int) -> Request:
    context = engine.config.max_position_embeddings
    if length < 1 or length + new_tokens > context:
        raise RequestError(
            f"prompt-tokens {length} and new-tokens {new_tokens} must be positive and together fit "
            f"the context of {context}"
        )
    ids = np.random.default_rng(PROMPT_SEED).integers(engine.config.vocab_size, size=length)
    return Request(tuple(ids.tolist()), max_new_tokens=new_tokens)


def _timed(engine: Engine, request: Request) -> Run:
    start = time.perf_counter()
    tokens = engine.backend.decode(request)
    next(tokens)
    first = time.perf_counter()
    for _ in tokens:
        pass
    return Run(first - start, time.perf_counter() - first)


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "n/a"
