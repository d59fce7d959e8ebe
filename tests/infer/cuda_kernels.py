"""The models that tests of the cuda back end know, and one kernel for each.

Tests on a GPU run these models with their own workers and options; :func:`kernels` takes options in turns, so
that each model is compiled once and each option several times.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from infer.backends.cuda_backend import most_workers
from infer.backends.cuda_source import Kernel, split_count
from infer.request import Request
from infer.weights import open_model
from laneformer.config import LaneformerConfig
from scripts.bench_cuda import SHAPES as BENCHMARKS
from tests.golden_cases import CASES
from tests.tiny_models import tiny_config

H200_MULTIPROCESSORS = 132
SHAPES: dict[str, dict[str, Any]] = {
    "three lanes, odd units": {
        "hidden_size": 48,
        "num_lanes": 3,
        "num_attention_heads": 6,
        "num_key_value_heads": 3,
        "intermediate_size": 60,
    },
    "qk norm, one lane": {"num_lanes": 1, "qk_norm": True, "hidden_size": 64, "broadcast_delay": 0},
    "four queries per key": {
        "num_lanes": 2,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "head_dim": 8,
    },
    "head size 64": {"num_lanes": 2, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 64},
    "head size 96": {"num_lanes": 2, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 96},
    "head size 120": {"num_lanes": 2, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 120},
    "head size 128": {"num_lanes": 2, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 128},
    "attention merged by shares": {
        "num_lanes": 1,
        "broadcast_delay": 0,
        "hidden_size": 64,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 64,
    },
    # Threads that merge four groups of columns each, and eight, which are merged by shares always.
    "32 heads of 96": {
        "num_lanes": 1,
        "broadcast_delay": 0,
        "hidden_size": 64,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 96,
    },
    "48 heads of 96": {
        "num_lanes": 1,
        "broadcast_delay": 0,
        "hidden_size": 64,
        "num_attention_heads": 48,
        "num_key_value_heads": 8,
        "head_dim": 96,
    },
    "lane head": {"lm_head_type": "lane", "num_lanes": 2},
    "vocabulary in slices, tied": {"lm_head_type": "vocab_parallel", "tie_word_embeddings": True},
}

SOAK_SIZES: dict[str, Any] = {
    "hidden_size": 512,
    "num_hidden_layers": 6,
    "intermediate_size": 2048,
    "vocab_size": 4096,
    "max_position_embeddings": 768,
    "sliding_window": 100,
    "sliding_layers": (0, 2, 3),
}
# Configuration and type of the models of soak_cuda.py.
SOAK: dict[str, tuple[LaneformerConfig, str]] = {
    "one lane": (  # beyond 1,024 positions its attention is merged by shares
        LaneformerConfig(
            **SOAK_SIZES | {"max_position_embeddings": 1536}, num_attention_heads=8, num_key_value_heads=4
        ),
        "bfloat16",
    ),
    "eight lanes": (
        LaneformerConfig(
            **SOAK_SIZES, num_attention_heads=16, num_key_value_heads=8, num_lanes=8, broadcast_delay=2
        ),
        "bfloat16",
    ),
    "four lanes, vocabulary in slices": (
        LaneformerConfig(
            **SOAK_SIZES,
            num_attention_heads=12,
            num_key_value_heads=4,
            head_dim=48,
            num_lanes=4,
            broadcast_delay=1,
            qk_norm=True,
            lm_head_type="vocab_parallel",
            tie_word_embeddings=True,
        ),
        "float16",
    ),
}
# Small enough for numpy, large enough that a worker has several tiles; 8 MB.
GREEDY = LaneformerConfig(
    hidden_size=256,
    num_hidden_layers=6,
    num_attention_heads=16,
    num_key_value_heads=8,
    intermediate_size=512,
    vocab_size=1024,
    max_position_embeddings=448,
    num_lanes=8,
    broadcast_delay=2,
    sliding_window=64,
    sliding_layers=(0, 1, 3),
)


def shape_config(name: str, context: int = 256, **changes: Any) -> LaneformerConfig:
    """A tiny model of one of :data:`SHAPES`, with a context that needs several chunks."""
    return tiny_config(**SHAPES[name], max_position_embeddings=context, **changes)


@dataclass(frozen=True)
class Specialisation:
    """One kernel to compile; the model is opened when it is asked for."""

    model: Callable[[], LaneformerConfig]
    few_workers: bool = False  # two per lane at most, as tests have them, rather than all that fit
    float16: bool = False
    checksums: bool = False
    plain_copies: bool = False

    def kernel(self, config: LaneformerConfig) -> Kernel:
        """What an H200 would get."""
        workers = most_workers(config, H200_MULTIPROCESSORS)
        if self.few_workers:
            workers = min(2, workers)
        kernel = kernel_for(config, workers, checksums=self.checksums, float16=self.float16)
        return replace(kernel, plain_copies=self.plain_copies)


def kernel_for(
    config: LaneformerConfig, workers: int, *, checksums: bool = False, float16: bool = False
) -> Kernel:
    """The kernel of :class:`infer.backends.cuda_backend.CudaBackend` with these options."""
    return Kernel(
        workers_per_lane=workers,
        context=config.max_position_embeddings,
        splits=split_count(config),
        checksums=checksums,
        float16=float16,
    )


def kernels() -> list[Any]:
    """A :class:`Specialisation` for each model, as parameters of a test."""
    found = [
        pytest.param(Specialisation(lambda shape=shape: LaneformerConfig(**shape)), id=name)
        for name, shape in BENCHMARKS.items()
    ]
    release = BENCHMARKS["release"]
    checked = Specialisation(lambda: LaneformerConfig(**release), checksums=True)
    found.append(pytest.param(checked, id="release, checksums"))
    for name, (config, dtype) in [*SOAK.items(), ("greedy", (GREEDY, "bfloat16"))]:
        small = Specialisation(lambda config=config: config, float16=dtype == "float16")
        found.append(pytest.param(small, id=name))
    plain = Specialisation(lambda: GREEDY, plain_copies=True)
    found.append(pytest.param(plain, id="greedy, pages by plain copies"))
    turns = cycle([(True, False), (False, True), (False, False)])
    for name, (float16, checksums) in zip(SHAPES, turns, strict=False):
        shape = Specialisation(
            lambda name=name: shape_config(name),
            float16=float16,
            checksums=checksums,
        )
        found.append(pytest.param(shape, id=name))
    for number, case in enumerate(CASES):
        golden = Specialisation(
            lambda folder=case.values[0]: _golden_config(folder),
            few_workers=bool(number % 2),
            checksums=not number % 3,
        )
        found.append(pytest.param(golden, id=case.id, marks=case.marks))
    return found


def _golden_config(folder: Path) -> LaneformerConfig:
    return open_model(folder)[0].config


def last_logits(engine: Any, ids: Sequence[int]) -> np.ndarray:
    """Logits after a prompt of which all but the last token ran in chunks, float32 ``[vocab]``."""
    list(engine.decode(Request(tuple(ids), max_new_tokens=1)))
    logits: np.ndarray = engine._arrays["logits"].get()
    return logits.view(np.float32)
