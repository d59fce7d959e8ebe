"""The CUDA-graph baseline on the CPU: the model is a right Transformer, and what measures it runs."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from infer.backends.numpy_backend import NumpyBackend
from laneformer.config import LaneformerConfig
from tests.environment import ENVIRONMENT, ROOT
from tests.tiny_models import RandomWeights, tiny_config

torch = pytest.importorskip("torch", reason="no torch")

from scripts import baseline_cuda_graph, bench_cuda  # noqa: E402
from scripts.dense_transformer import DenseTransformer  # noqa: E402


def dense(**changes: Any) -> LaneformerConfig:
    return tiny_config(**({"num_lanes": 1, "broadcast_delay": 0} | changes))


@pytest.mark.parametrize("tied", [False, True])
def test_the_dense_model_is_the_one_lane_model_of_the_engine(tied: bool) -> None:
    weights = RandomWeights(dense(tie_word_embeddings=tied))
    ids = [int(token) for token in np.random.default_rng(0).integers(320, size=30)]  # five windows of 6
    wanted = NumpyBackend(weights).logits(ids)
    model = DenseTransformer(weights.config, context=64)
    model.load(weights.tensors)
    with torch.no_grad():
        steps = [model(torch.tensor([token]), torch.tensor([at])) for at, token in enumerate(ids)]
    logits = torch.cat([logits for _, logits in steps]).numpy()
    assert np.abs(logits - wanted).max() < 1e-5 * np.abs(wanted).max()
    assert [int(token) for token, _ in steps] == wanted.argmax(-1).tolist()
    matrices = sum(values.nbytes for values in weights.tensors.values())
    assert model.weight_bytes_per_token() == matrices - (0 if tied else 320 * 32 * 4)


@pytest.mark.slow
def test_measuring_on_the_cpu() -> None:
    found = baseline_cuda_graph.measure(
        dense(num_hidden_layers=2, sliding_layers=(1,)),
        [40, 64],
        new_tokens=20,
        runs=2,
        device="cpu",
        mode="default",
    )
    assert [each["context"] for each in found["decode"]] == [40, 64]
    for each in found["decode"]:
        assert len(each["tokens_per_second"]) == 2 and min(each["tokens_per_second"]) > 0
        assert 0 < each["eager_error"] < 0.1  # of bfloat16
    assert found["contexts_left_out_by_time_limit"] == []
    assert (
        baseline_cuda_graph.counters["stats"]["unique_graphs"] == 1
    )  # nothing was compiled while it was timed
    assert found["dtype"] == "bfloat16" and found["mode"] == "default"


def test_a_step_that_is_wrong_is_not_measured() -> None:
    model = baseline_cuda_graph.build(dense(), 32, "cpu", torch.bfloat16)

    def without_attention_of_a_layer(token: Any, position: Any) -> Any:
        model.layers[0].values.zero_()
        return model(token, position)

    assert baseline_cuda_graph.check(model, model, 12)["compiled_error"] < 0.1
    with pytest.raises(RuntimeError, match="the compiled model's logits are wrong: relative error"):
        baseline_cuda_graph.check(model, without_attention_of_a_layer, 12)


def test_contexts_after_the_time_limit_are_listed() -> None:
    found = baseline_cuda_graph.measure(dense(), [40, 64], device="cpu", mode="default", time_limit=-1)
    assert found["decode"] == [] and found["contexts_left_out_by_time_limit"] == [40, 64]


def test_without_a_gpu_the_script_says_so() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    command = [sys.executable, "scripts/baseline_cuda_graph.py", "--json", "-"]
    done = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stdout == ""
    assert "finds no CUDA device" in done.stderr


def test_the_benchmark_runs_it_and_compares(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = {"decode": [{"context": 256, "tokens_per_second": [400.0, 500.0, 600.0]}]}

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        words = "--shape release --contexts 256 1024 --new-tokens 64 --runs 3 --json -"
        assert command[2:] == words.split()
        return subprocess.CompletedProcess(command, 0, json.dumps(answer), "")

    monkeypatch.setattr(bench_cuda.subprocess, "run", run)
    decode = [
        {"context": 256, "tokens_per_second": [900.0, 1000.0, 990.0]},
        {"context": 1024, "tokens_per_second": [950.0]},
    ]
    found = bench_cuda.baseline("release", decode, 64, 3)
    assert found["times_baseline"] == {"256": pytest.approx(1.98)}
    assert found["decode"] == answer["decode"]


def test_a_baseline_that_fails_ends_the_benchmark_with_its_last_line(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = subprocess.CompletedProcess([], 1, "", "Traceback\nRuntimeError: no graph\n")
    monkeypatch.setattr(bench_cuda.subprocess, "run", lambda *_, **__: failed)
    found = bench_cuda.baseline("release", [{"context": 256, "tokens_per_second": [1.0]}], 64, 3)
    assert found == {"error": "RuntimeError: no graph"}
