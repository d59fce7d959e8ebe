"""The whole chain on a model that trains in seconds, through the commands a user types."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from infer import Engine
from laneformer import LaneformerForCausalLM
from tests.environment import ENVIRONMENT
from tests.train.conftest import write_texts
from train.torch_backend import TorchBackend

MODEL = [
    "model.hidden_size=32",
    "model.num_hidden_layers=4",
    "model.swa_layers=[0,1]",
    "model.intermediate_size=64",
]


def run(module: str, *arguments: str, cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=cwd,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_text_to_tokens(tmp_path: Path) -> None:
    write_texts(tmp_path / "texts")
    data = ["data=files", "data.paths=[texts/*.py]", "data.folder=shards", "data.vocab_size=300"]
    data.append("data.held_out_fraction=0.2")
    assert "train: " in run("laneformer", "prepare", *data, cwd=tmp_path)
    printed = run(
        "laneformer", "train", *data, *MODEL, "run_dir=run", "steps=30", "batch_size=4", "sequence_length=64",
        "schedule.warmup_steps=5", "optimizer.learning_rate=1e-2", "evaluation.every=20",
        "evaluation.suites=[humaneval,basics]", "evaluation.problems=2", "evaluation.max_new_tokens=8",
        cwd=tmp_path,
    )  # fmt: skip
    assert printed.strip().endswith("step_00000030")
    metrics = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    for suite in ("humaneval", "basics"):
        lines = [line for line in metrics if line["kind"] == suite]
        assert [line["step"] for line in lines] == [20, 30]
        assert all(0 <= line["pass@1_low"] <= line["pass@1"] <= line["pass@1_high"] <= 1 for line in lines)
        for step in (20, 30):
            folder = tmp_path / "run" / suite / f"step_{step:08d}"
            assert {"samples.jsonl", "report.json", "report.md", "report.html"} <= set(os.listdir(folder))

    score = run(
        "evals.cli", "humaneval", "--model", "run/last", "--limit", "3", "--max-new-tokens", "8",
        "--output", "scores", cwd=tmp_path,
    )  # fmt: skip
    assert "3 problems, 3 samples" in score
    run("laneformer", "export", "run/last", "model.engine", cwd=tmp_path)
    prompt = "def f1_2(a, b):\n"
    text = run(
        "laneformer", "generate", "model.engine", "--prompt", prompt, "--max-new-tokens", "20", cwd=tmp_path
    )

    engine = Engine(tmp_path / "model.engine")
    assert engine.tokenizer is not None
    ids = engine.tokenizer.encode(prompt)
    ours = list(engine.generate(ids, max_new_tokens=20))
    model = LaneformerForCausalLM.from_pretrained(tmp_path / "run" / "last", torch.float32)
    theirs = list(Engine.from_backend(TorchBackend(model), engine.tokenizer).generate(ids, max_new_tokens=20))
    assert [token.token_id for token in ours] == [token.token_id for token in theirs]
    assert "".join(token.text for token in ours) in text
