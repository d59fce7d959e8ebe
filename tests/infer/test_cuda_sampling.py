"""How the CUDA kernel samples, played on a processor: see ``played.py``.

What it draws must be what infer/sampling.py draws from the same logits and uniform numbers.
"""

from __future__ import annotations

import ctypes
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from infer.backends.cuda_compile import kernel_sources
from infer.backends.cuda_source import Kernel, split_count
from infer.request import Request
from infer.sampling import distribution
from tests.infer.played import compile_played
from tests.tiny_models import tiny_config

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")

DRAWS_DRIVER = Path(__file__).parent / "cuda_played" / "draws.cpp"
VOCABULARY, WORKERS = 1003, 3  # no cut of equal tokens falls between two, where rounding would decide
CONFIG = tiny_config(vocab_size=VOCABULARY, num_lanes=1, hidden_size=64)
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

Draw = Callable[..., tuple[np.ndarray, np.ndarray]]


@pytest.fixture(scope="module")
def draw(tmp_path_factory: pytest.TempPathFactory) -> Draw:
    """``draw(logits, uniforms, seed, **options)``: of each row of float32 ``[draws, vocab]`` a token and its
    log-probability; ``seed`` is that of the order in which threads run.
    """
    kernel = Kernel(WORKERS, CONFIG.max_position_embeddings, split_count(CONFIG))
    driver = DRAWS_DRIVER.read_text(encoding="utf-8")
    folder = tmp_path_factory.mktemp("sampling")
    function = ctypes.CDLL(str(compile_played(CONFIG, kernel, kernel_sources(), folder, driver))).draw

    def drawn(
        logits: np.ndarray,
        uniforms: np.ndarray,
        seed: int = 0,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
    ) -> tuple[np.ndarray, np.ndarray]:
        assert logits.dtype == np.float32 and logits.flags.c_contiguous and logits.shape[1] == VOCABULARY
        tokens = np.full((WORKERS, len(logits)), -1, np.int32)
        log_probabilities = np.full((WORKERS, len(logits)), np.nan)
        wrong = function(
            logits.ctypes.data_as(ctypes.c_void_p),
            uniforms.ctypes.data_as(ctypes.c_void_p),
            len(logits),
            ctypes.c_float(temperature),
            top_k,
            ctypes.c_float(top_p),
            ctypes.c_float(min_p),
            seed,
            tokens.ctypes.data_as(ctypes.c_void_p),
            log_probabilities.ctypes.data_as(ctypes.c_void_p),
        )
        assert wrong == 0
        assert (tokens == tokens[0]).all() and (log_probabilities == log_probabilities[0]).all()
        return tokens[0], log_probabilities[0]

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
    tokens, log_probabilities = draw(logits, uniforms, **options)
    assert tokens.tolist() == wanted
    exact = logits.astype(np.float64)
    exact -= exact.max(-1, keepdims=True)
    exact -= np.log(np.exp(exact).sum(-1, keepdims=True))
    np.testing.assert_allclose(log_probabilities, exact[np.arange(DRAWS), tokens], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("options", [OPTIONS[0], OPTIONS[8]], ids=str)
def test_no_order_of_threads_changes_a_draw(draw: Draw, options: dict[str, Any]) -> None:
    random = np.random.default_rng(8)
    logits = np.ascontiguousarray(tied(random), np.float32)
    uniforms = random.random(DRAWS)
    wanted = draw(logits, uniforms, **options)[0].tolist()
    assert [draw(logits, uniforms, seed, **options)[0].tolist() for seed in range(1, 5)] == [wanted] * 4
