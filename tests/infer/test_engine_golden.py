"""The numpy back end against the golden cases, and proof that their tolerance bites."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from infer.backends.numpy_backend import Exchange, NumpyBackend
from infer.request import Request
from laneformer.checkpoint import Checkpoint
from tests.golden_cases import CASES, OWN, PUBLIC, answers, needs_public, prompt_length, tolerance


def load(folder: Path) -> tuple[NumpyBackend, dict[str, np.ndarray]]:
    return NumpyBackend(Checkpoint(folder)), answers(folder)


def largest_difference(backend: NumpyBackend, golden: dict[str, np.ndarray]) -> float:
    rows = zip(golden["input_ids"], golden["logits"], strict=True)
    return max(float(np.abs(backend.logits(ids.tolist()) - logits).max()) for ids, logits in rows)


@pytest.mark.parametrize("chunk_size", [64, 7, 1], ids=["whole", "chunks", "token by token"])
@pytest.mark.parametrize("folder", CASES)
def test_logits(folder: Path, chunk_size: int) -> None:
    backend, golden = load(folder)
    backend.chunk_size = chunk_size
    assert largest_difference(backend, golden) < tolerance(folder)


@pytest.mark.parametrize("chunk_size", [64, 5, 1])
@pytest.mark.parametrize("folder", CASES)
def test_greedy(folder: Path, chunk_size: int) -> None:
    backend, golden = load(folder)
    backend.chunk_size = chunk_size
    greedy = golden["greedy"].tolist()
    given = prompt_length(folder)
    request = Request(tuple(greedy[:given]), max_new_tokens=len(greedy) - given)
    assert [token_id for token_id, _ in backend.decode(request)] == greedy[given:]


def test_tolerance_bites_when_the_delayed_outputs_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    def send_nothing(self: Exchange, output: np.ndarray, layer: int, module: str) -> None:
        for receiver in range(self._config.num_hidden_layers):
            self._in_flight[receiver, module] = np.zeros_like(output)

    backend, golden = load(OWN / "delayed_sliding")
    monkeypatch.setattr(Exchange, "_send", send_nothing)
    assert largest_difference(backend, golden) > tolerance(OWN / "delayed_sliding")


@pytest.mark.parametrize("change", [-1, 1])
@pytest.mark.parametrize(
    "folder",
    [OWN / "delayed_sliding", pytest.param(PUBLIC / "release_like", marks=needs_public)],
    ids=lambda folder: folder.name,
)
def test_tolerance_bites_when_the_window_is_off_by_one(folder: Path, change: int) -> None:
    backend, golden = load(folder)
    window = backend.config.sliding_window
    assert window is not None
    backend.config = replace(backend.config, sliding_window=window + change)
    assert largest_difference(backend, golden) > tolerance(folder)
