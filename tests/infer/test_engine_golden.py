"""The numpy back end against golden vectors of the public modelling code's arithmetic."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from infer.backends.numpy_backend import Exchange, NumpyBackend
from infer.request import Request
from laneformer.checkpoint import Checkpoint

FOLDER = Path(os.environ.get("LANEFORMER_GOLDEN") or Path(__file__).parents[3] / "shared" / "golden")
CASES = (
    "dense_one_lane",
    "no_early_comm",
    "pre_norm_agg_tied",
    "release_like",
    "tp_equivalent",
    "vocab_parallel_lane_norm",
)
pytestmark = pytest.mark.skipif(
    not FOLDER.is_dir(), reason="no golden vectors: LANEFORMER_GOLDEN and ../shared/golden name no folder"
)


def tolerance(case: str) -> float:
    """Absolute, as the golden vectors state it; the logits of one case are ten times larger."""
    return 2e-3 if case == "pre_norm_agg_tied" else 1e-4


def load(case: str) -> tuple[NumpyBackend, dict[str, np.ndarray]]:
    return NumpyBackend(Checkpoint(FOLDER / case)), load_file(FOLDER / case / "golden.safetensors")


def largest_difference(backend: NumpyBackend, golden: dict[str, np.ndarray]) -> float:
    rows = zip(golden["input_ids"], golden["logits"], strict=True)
    return max(float(np.abs(backend.logits(ids.tolist()) - logits).max()) for ids, logits in rows)


@pytest.mark.parametrize("chunk_size", [64, 7, 1], ids=["whole", "chunks", "token by token"])
@pytest.mark.parametrize("case", CASES)
def test_logits(case: str, chunk_size: int) -> None:
    backend, golden = load(case)
    backend.chunk_size = chunk_size
    assert largest_difference(backend, golden) < tolerance(case)


@pytest.mark.parametrize("chunk_size", [64, 5, 1])
@pytest.mark.parametrize("case", CASES)
def test_greedy(case: str, chunk_size: int) -> None:
    backend, golden = load(case)
    backend.chunk_size = chunk_size
    greedy = golden["greedy"].tolist()
    request = Request(tuple(greedy[:12]), max_new_tokens=40)
    assert [token_id for token_id, _ in backend.decode(request)] == greedy[12:]


def test_tolerance_bites_when_the_delayed_outputs_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    def send_nothing(self: Exchange, output: np.ndarray, layer: int, module: str) -> None:
        for receiver in range(self._config.num_hidden_layers):
            self._in_flight[receiver, module] = np.zeros_like(output)

    backend, golden = load("release_like")
    monkeypatch.setattr(Exchange, "_send", send_nothing)
    assert largest_difference(backend, golden) > tolerance("release_like")


@pytest.mark.parametrize("change", [-1, 1])
@pytest.mark.parametrize("case", ["release_like", "pre_norm_agg_tied"])
def test_tolerance_bites_when_the_window_is_off_by_one(case: str, change: int) -> None:
    backend, golden = load(case)
    window = backend.config.sliding_window
    assert window is not None
    backend.config = replace(backend.config, sliding_window=window + change)
    assert largest_difference(backend, golden) > tolerance(case)
