"""Training on one CUDA device."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from infer import Engine
from laneformer import LaneformerForCausalLM
from tests.tiny_models import tiny_config
from train.torch_backend import TorchBackend
from train.trainer import train

from .conftest import MakeRun

pytestmark = pytest.mark.gpu


def losses(run_dir: str) -> list[float]:
    lines = [json.loads(line) for line in (Path(run_dir) / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if line["kind"] == "train"]


@pytest.mark.parametrize("compile_model", [False, True])
def test_bfloat16_training_follows_the_cpu(make_run: MakeRun, compile_model: bool) -> None:
    cpu = make_run("cpu", steps=30)
    gpu = make_run("gpu", steps=30, device="cuda", precision="auto", compile=compile_model)
    train(cpu)
    train(gpu)
    assert losses(gpu.run_dir)[0] == pytest.approx(math.log(300), abs=0.1)
    # bfloat16 products (8 bits) in a model of 4 layers: a few per cent of the loss over 30 steps
    np.testing.assert_allclose(losses(gpu.run_dir), losses(cpu.run_dir), rtol=0.05)
    LaneformerForCausalLM.from_pretrained(Path(gpu.run_dir) / "last")


def test_float32_logits_equal_the_cpu() -> None:
    torch.manual_seed(0)
    model = LaneformerForCausalLM(tiny_config())
    ids = list(range(40))
    expected = Engine.from_backend(TorchBackend(model)).logits(ids)
    found = Engine.from_backend(TorchBackend(model.cuda())).logits(ids)
    np.testing.assert_allclose(found, expected, atol=1e-4)
