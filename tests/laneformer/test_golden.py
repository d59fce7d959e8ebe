"""The PyTorch model against the golden cases, and proof that their tolerance bites."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from laneformer import LaneformerForCausalLM, model
from laneformer.config import ResidualMode
from laneformer.key_value_cache import KeyValueCache
from tests.golden_cases import CASES, OWN, answers, prompt_length, tolerance


def load(folder: Path) -> LaneformerForCausalLM:
    return LaneformerForCausalLM.from_pretrained(folder, torch.float32)


@torch.no_grad()
def largest_error(folder: Path) -> float:
    golden = answers(folder)
    logits = load(folder)(torch.from_numpy(golden["input_ids"]))
    return (logits - torch.from_numpy(golden["logits"])).abs().max().item()


@pytest.mark.parametrize("folder", CASES)
def test_logits(folder: Path) -> None:
    assert largest_error(folder) < tolerance(folder)


@pytest.mark.parametrize("folder", CASES)
@torch.no_grad()
def test_greedy_tokens(folder: Path) -> None:
    laneformer = load(folder)
    expected = answers(folder)["greedy"].tolist()
    ids = expected[: prompt_length(folder)]
    cache = KeyValueCache(laneformer.config.num_hidden_layers)
    new = ids
    while len(ids) < len(expected):
        token = int(laneformer(torch.tensor([new]), cache=cache)[0, -1].argmax())
        new = [token]
        ids = ids + new
    assert ids == expected


def test_tolerance_bites_when_one_past_partial_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    real = model.exchange

    def without_last_lane(output: Tensor, past: Tensor | None, mode: ResidualMode) -> Tensor:
        if past is not None:
            past = past.clone()
            past[:, :, -1] = 0
        return real(output, past, mode)

    folder = OWN / "delayed_sliding"
    assert largest_error(folder) < tolerance(folder)
    monkeypatch.setattr(model, "exchange", without_last_lane)
    assert largest_error(folder) > 10 * tolerance(folder)


def test_tolerance_bites_when_the_window_is_one_too_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    real = model.attention_mask

    def wider(positions: Tensor, stop: int, window: int | None, document_ids: Tensor | None) -> Tensor | None:
        return real(positions, stop, window and window + 1, document_ids)

    folder = OWN / "delayed_sliding"
    monkeypatch.setattr(model, "attention_mask", wider)
    assert largest_error(folder) > 10 * tolerance(folder)
