"""Times of single requests, and what they read from memory.

Every setting is run once to warm up.  Then come ``runs`` rounds, each with one run of every setting and one
measurement of the memory's read bandwidth, so that a machine that becomes slower or faster meanwhile does
so for all of them.  Requests are greedy, and end-of-text is a token like others.  Tokens per second leave out
the first token, whose time is told apart: it contains the prompt.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from infer.backends import Backend
from infer.bench.machine import peak_resident_bytes
from infer.engine import Engine
from infer.request import Request
from laneformer.config import LaneformerConfig
from laneformer.errors import RequestError

DEFAULT_PROMPT = 32
PROMPT_SEED = 0
# Bytes of one key or value in the cache, for back ends of which that is known.
CACHE_BYTES = {"cpu": 4, "cuda": 2, "numpy": 4}


@dataclass(frozen=True)
class Setting:
    """Sizes of one request, in tokens."""

    prompt_tokens: int
    new_tokens: int

    @property
    def context_tokens(self) -> int:
        """Prompt and answer."""
        return self.prompt_tokens + self.new_tokens


@dataclass(frozen=True)
class Run:
    """Times of one request, in seconds."""

    first_token_seconds: float  # from the request to the first token
    decode_seconds: float  # from the first token to the last


@dataclass(frozen=True)
class SettingResult:
    """All runs of one setting."""

    setting: Setting
    runs: tuple[Run, ...]
    weight_bytes: int | None  # read for one token
    key_value_bytes: float | None  # read for one token, the mean over the answer

    @property
    def tokens_per_second(self) -> list[float]:
        """One rate per run, the first token left out."""
        return [(self.setting.new_tokens - 1) / run.decode_seconds for run in self.runs]

    @property
    def first_token_seconds(self) -> list[float]:
        """One time per run."""
        return [run.first_token_seconds for run in self.runs]

    @property
    def gigabytes_per_second(self) -> float | None:
        """Weights, keys and values read at the median rate, in 1e9 bytes; None where they are not known."""
        if self.weight_bytes is None or self.key_value_bytes is None:
            return None
        return (self.weight_bytes + self.key_value_bytes) * statistics.median(self.tokens_per_second) / 1e9


@dataclass(frozen=True)
class Benchmark:
    """What one call of :func:`bench_decode` found."""

    results: tuple[SettingResult, ...]
    read_bandwidth: tuple[float, ...]  # bytes per second, one per round; empty where there is no measure
    peak_resident_bytes: int | None  # since the process began, after loading and one request of each setting
    device_bytes: dict[str, int] | None  # device memory by what it holds; None for back ends without a device

    def share_of_bandwidth(self, result: SettingResult) -> float | None:
        """What part of the median read bandwidth a setting used; None where either is not known."""
        if result.gigabytes_per_second is None or not self.read_bandwidth:
            return None
        return result.gigabytes_per_second * 1e9 / statistics.median(self.read_bandwidth)

    def share_of_weight_wall(self, result: SettingResult) -> float | None:
        """The rate, over that at which the weights alone could be read; None where either is not known."""
        if result.weight_bytes is None or not self.read_bandwidth:
            return None
        rate = statistics.median(result.tokens_per_second)
        return rate * result.weight_bytes / statistics.median(self.read_bandwidth)


def settings(prompt_tokens: Sequence[int], contexts: Sequence[int], new_tokens: int) -> list[Setting]:
    """One setting per prompt, then one per context, whose prompt leaves just the room for the answer.

    A prompt of 32 tokens where neither is given.  Raises :class:`RequestError` for too short a context.
    """
    for context in contexts:
        if context <= new_tokens:
            raise RequestError(
                f"context {context} must be above new-tokens {new_tokens}: it holds prompt too"
            )
    prompts = [*prompt_tokens, *(context - new_tokens for context in contexts)]
    return [Setting(prompt, new_tokens) for prompt in prompts or [DEFAULT_PROMPT]]


def bench_decode(engine: Engine, wanted: Sequence[Setting], *, runs: int) -> Benchmark:
    """Measure each setting.  Raises :class:`RequestError` for sizes that make no sense."""
    if runs < 1:
        raise RequestError(f"runs must be at least 1, found {runs}")
    requests = [_request(engine.config, setting) for setting in wanted]
    for request in requests:
        timed(engine.backend, request)
    peak = (
        peak_resident_bytes()
    )  # before the buffer that measures the bandwidth, which is larger than some models
    measure: Callable[[], float] | None = getattr(engine.backend, "read_bandwidth", None)
    found: list[list[Run]] = [[] for _ in requests]
    bandwidth = []
    for _ in range(runs):
        if measure is not None:
            bandwidth.append(measure())
        for request, times in zip(requests, found, strict=True):
            times.append(timed(engine.backend, request))
    results = (
        SettingResult(
            setting,
            tuple(times),
            engine.backend.weight_bytes_per_token,
            key_value_bytes(engine.config, setting, CACHE_BYTES.get(engine.backend_name)),
        )
        for setting, times in zip(wanted, found, strict=True)
    )
    return Benchmark(tuple(results), tuple(bandwidth), peak, getattr(engine.backend, "device_bytes", None))


def timed(backend: Backend, request: Request) -> Run:
    """Run a request and time it; it must ask for a token."""
    start = time.perf_counter()
    tokens = backend.decode(request)
    next(tokens)
    first = last = time.perf_counter()
    for _ in tokens:
        last = time.perf_counter()
    return Run(first - start, last - first)


def random_prompt(vocab_size: int, length: int) -> tuple[int, ...]:
    """The same random token ids each time."""
    return tuple(np.random.default_rng(PROMPT_SEED).integers(vocab_size, size=length).tolist())


def key_value_bytes(config: LaneformerConfig, setting: Setting, value_bytes: int | None) -> float | None:
    """Bytes of keys and values read for one token after the first: the mean over the answer.

    The step that makes token n + 1 of the answer sees the prompt and n tokens, in a sliding layer at most its
    window.  ``value_bytes`` is the size of one number in the cache; None where it is not known.
    """
    if value_bytes is None:
        return None
    seen = setting.prompt_tokens + np.arange(1, setting.new_tokens)
    windows = [config.window(layer) for layer in range(config.num_hidden_layers)]
    positions = sum(np.minimum(seen, window or seen).mean() for window in windows)
    return float(positions * 2 * config.num_key_value_heads * config.head_size * value_bytes)


def _request(config: LaneformerConfig, setting: Setting) -> Request:
    prompt, new, context = setting.prompt_tokens, setting.new_tokens, config.max_position_embeddings
    if new < 2:
        raise RequestError(f"new-tokens must be at least 2, to time what follows the first; found {new}")
    if prompt < 1 or setting.context_tokens > context:
        raise RequestError(
            f"prompt-tokens {prompt} and new-tokens {new} must be positive and together fit "
            f"the context of {context}"
        )
    return Request(random_prompt(config.vocab_size, prompt), max_new_tokens=new)
