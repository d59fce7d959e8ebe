"""What a run computes and records."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from infer import Engine
from laneformer import LaneformerForCausalLM
from laneformer.errors import ConfigError, LaneformerError, TrainingError
from tests.tiny_models import tiny_config
from train import trainer as trainer_module
from train.config import (
    CheckpointConfig,
    EvaluationConfig,
    HeldOutConfig,
    LogConfig,
    OptimizerConfig,
    SamplesConfig,
    ScheduleConfig,
)
from train.data.packing import Batch, HeldOutBatches
from train.data.shards import TokenDataset
from train.held_out import held_out_loss
from train.optimizer import make_optimizer
from train.schedule import learning_rate
from train.step import StepResult, loss_sum, optimizer_step
from train.torch_backend import TorchBackend
from train.trainer import Trainer, train

from .conftest import MODEL, MakeRun

CPU = torch.device("cpu")


def metrics(run_dir: str) -> list[dict]:
    return [json.loads(line) for line in (Path(run_dir) / "metrics.jsonl").read_text().splitlines()]


def test_loss_falls_from_ln_vocabulary(make_run: MakeRun) -> None:
    config = make_run(held_out=HeldOutConfig(every=20, max_tokens=2000))
    result = train(config)
    lines = metrics(config.run_dir)
    training = [line["loss"] for line in lines if line["kind"] == "train"]
    assert len(training) == 60
    assert abs(training[0] - math.log(300)) < 0.1
    assert training[-1] < 0.5 * training[0]
    held_out = [line for line in lines if line["kind"] == "held_out"]
    assert [line["step"] for line in held_out] == [20, 40, 60]
    assert result.held_out is not None
    assert held_out[-1]["bits_per_byte"] == result.held_out.bits_per_byte
    assert {"gradient_norm", "learning_rate", "tokens", "tokens_per_second", "mfu"} <= lines[0].keys()
    assert lines[0]["mfu"] is None


def test_run_folder_holds_the_resolved_configuration(make_run: MakeRun) -> None:
    config = make_run(steps=1)
    train(config)
    written = yaml.safe_load((Path(config.run_dir) / "config.yaml").read_text())
    assert written["steps"] == 1
    assert written["optimizer"]["beta2"] == 0.95
    assert written["model"] == MODEL


def test_checkpoint_is_a_folder_that_the_engine_opens(make_run: MakeRun) -> None:
    config = make_run(steps=3, samples=SamplesConfig(every=3, prompts=["def "], max_new_tokens=5))
    result = train(config)
    engine = Engine(result.checkpoint)
    model = LaneformerForCausalLM.from_pretrained(result.checkpoint)
    ids = [5, 9, 200, 31]
    expected = model(torch.tensor([ids]))[0].detach().numpy()
    np.testing.assert_allclose(engine.logits(ids), expected, atol=1e-4)
    lines = (Path(config.run_dir) / "samples.jsonl").read_text().splitlines()
    (sample,) = [json.loads(line) for line in lines]
    assert sample["prompt"] == "def "
    assert sample["step"] == 3


def test_held_out_loss_is_that_of_one_token_at_a_time(make_run: MakeRun) -> None:
    """Sum over documents, each cut where sequences end, against the training loss function."""
    config = make_run(steps=1)
    train(config)
    dataset = TokenDataset(config.data.folder)
    model = LaneformerForCausalLM.from_pretrained(Path(config.run_dir) / "last")
    batches = HeldOutBatches(dataset.split("validation"), 32, 4, 600)

    def sum_of_losses(batch: Batch) -> torch.Tensor:
        return loss_sum(model, batch, CPU, torch.float32, attention_within_documents=True)

    result = held_out_loss(batches, sum_of_losses)
    assert result is not None
    split = dataset.split("validation")
    starts = split.document_starts
    nats, targets, size = 0.0, 0, 0
    for document in range(batches.num_documents):
        begin, end = int(starts[document]), int(starts[document + 1])
        size += int(split.document_bytes[document])
        for position in range(begin, end - 1):
            context_start = max(begin, position // 32 * 32)
            context = split.read(context_start, position + 1).astype(np.int64)
            with torch.no_grad():
                logits = model(torch.from_numpy(context)[None])[0, -1]
            target = int(split.read(position + 1, position + 2)[0])
            nats -= float(torch.log_softmax(logits, dim=-1)[target])
            targets += 1
    assert result.tokens == targets
    assert result.bytes == size
    assert result.nats_per_token == pytest.approx(nats / targets, rel=1e-5)
    assert result.bits_per_byte == pytest.approx(nats / math.log(2) / size, rel=1e-5)


def make_step(micro_batch_size: int) -> tuple[dict[str, torch.Tensor], StepResult]:
    """One step over the same eight sequences, cut into micro-batches; weights and result."""
    torch.manual_seed(0)
    model = LaneformerForCausalLM(tiny_config())
    generator = np.random.default_rng(1)
    ids = generator.integers(0, 320, (8, 16))
    labels = np.where(generator.random((8, 16)) < 0.3, -100, ids)  # unequal numbers of targets a row
    documents = np.zeros((8, 16), np.int32)
    batches = [
        Batch(
            ids[i : i + micro_batch_size],
            labels[i : i + micro_batch_size],
            documents[i : i + micro_batch_size],
        )
        for i in range(0, 8, micro_batch_size)
    ]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    result = optimizer_step(
        model, optimizer, batches, lambda b: loss_sum(model, b, CPU, torch.float32, True), 0.1, 1.0
    )
    return model.state_dict(), result


def test_gradient_accumulation_is_the_large_batch() -> None:
    whole, whole_result = make_step(8)
    parts, parts_result = make_step(2)
    assert parts_result.loss == pytest.approx(whole_result.loss, rel=1e-6)
    assert parts_result.gradient_norm == pytest.approx(whole_result.gradient_norm, rel=1e-4)
    for name in whole:
        torch.testing.assert_close(parts[name], whole[name], rtol=1e-4, atol=1e-6)


def test_non_finite_gradients_never_reach_the_weights(make_run: MakeRun, monkeypatch) -> None:
    config = make_run(steps=6, max_skipped_steps=2)
    real = Trainer._loss_sum

    def poisoned(self: Trainer, batch: Batch) -> torch.Tensor:
        loss = real(self, batch)
        return loss * float("nan") if self.step == 2 else loss

    monkeypatch.setattr(Trainer, "_loss_sum", poisoned)
    result = train(config)
    assert result.step == 6
    kinds = {line["step"]: line["kind"] for line in metrics(config.run_dir) if line["kind"] != "held_out"}
    assert kinds[3] == "skipped"
    assert kinds[4] == "train"
    LaneformerForCausalLM.from_pretrained(result.checkpoint)  # refuses NaN


def test_diverged_run_stops_and_keeps_finite_weights(make_run: MakeRun, monkeypatch) -> None:
    config = make_run(steps=20, max_skipped_steps=3)
    real = Trainer._loss_sum

    def poisoned(self: Trainer, batch: Batch) -> torch.Tensor:
        loss = real(self, batch)
        return loss * float("inf") if self.step >= 5 else loss

    monkeypatch.setattr(Trainer, "_loss_sum", poisoned)
    with pytest.raises(TrainingError, match="3 steps in a row with non-finite"):
        train(config)
    LaneformerForCausalLM.from_pretrained(Path(config.run_dir) / "last")


def test_weights_that_overflow_are_not_saved(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    config = make_run(steps=4, checkpoint=CheckpointConfig(every=2))
    real = trainer_module.optimizer_step
    steps = iter(range(1, 100))

    def overflowing(model: LaneformerForCausalLM, *arguments) -> StepResult:
        result = real(model, *arguments)
        if next(steps) == 3:
            with torch.no_grad():
                model.model.norm.weight.fill_(math.inf)
        return result

    monkeypatch.setattr(trainer_module, "optimizer_step", overflowing)
    with pytest.raises(TrainingError, match="weights are NaN or infinite after step 4"):
        train(config)
    LaneformerForCausalLM.from_pretrained(Path(config.run_dir) / "last")
    for line in (Path(config.run_dir) / "metrics.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=pytest.fail)  # NaN and Infinity are not JSON


def test_schedule_warms_up_stays_and_decays() -> None:
    schedule = ScheduleConfig(warmup_steps=4, decay_fraction=0.25, final_ratio=0.1)
    rates = [learning_rate(step, 20, 1.0, schedule) for step in range(20)]
    assert rates[:4] == pytest.approx([0.2, 0.4, 0.6, 0.8])
    assert rates[4:15] == [1.0] * 11
    assert rates[15:] == pytest.approx([0.1 + 0.9 * n / 6 for n in (5, 4, 3, 2, 1)])


def test_norm_scales_do_not_decay() -> None:
    model = LaneformerForCausalLM(tiny_config(replicated_rmsn_scale=False))
    decayed, kept = make_optimizer(model, OptimizerConfig(), CPU).param_groups
    assert kept["weight_decay"] == 0
    assert len(kept["params"]) == 2 * 5 + 1
    assert len(decayed["params"]) + len(kept["params"]) == len(list(model.parameters()))


def test_torch_back_end_is_the_model() -> None:
    torch.manual_seed(0)
    model = LaneformerForCausalLM(tiny_config())
    ids = list(range(40))
    expected = model(torch.tensor([ids]))[0].detach().numpy()
    np.testing.assert_allclose(Engine.from_backend(TorchBackend(model)).logits(ids), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 0}, "steps must be at least 1"),
        ({"precision": "float8"}, "precision must be one of"),
        ({"device": "abacus"}, "device 'abacus' is not known"),
        ({"sequence_length": 65}, r"sequence_length \(65\) exceeds"),
        ({"sequence_length": 64, "model": MODEL | {"num_lanes": 3}}, "num_lanes"),
        ({"model": MODEL | {"vocab_size": 200}}, "do not belong together"),
        ({"model": MODEL | {"activation": "relu"}}, "unknown key activation"),
        ({"log": LogConfig(wandb="loud")}, "log.wandb must be one of"),
        ({"device": "meta"}, "device 'meta' is not known"),
        ({"seed": 10**30}, r"seed must be below 2\*\*63"),
        (
            {"optimizer": OptimizerConfig(learning_rate=math.inf)},
            "learning_rate must be above zero and at most",
        ),
        ({"optimizer": OptimizerConfig(weight_decay=math.nan)}, "weight_decay must be zero or more"),
        ({"evaluation": EvaluationConfig(every=1, suites=["humanevil"])}, "unknown suite 'humanevil'"),
        ({"evaluation": EvaluationConfig(every=1, problems=0)}, "evaluation.problems must be at least 1"),
        ({"evaluation": EvaluationConfig(every=1, samples=2)}, "temperature 0 would give 2 identical"),
        ({"evaluation": EvaluationConfig(every=1, k=[1, 5])}, "pass@5 needs at least 5 samples"),
        ({"evaluation": EvaluationConfig(every=1, suites=["mbpp_plus"])}, "MbppPlus.jsonl"),
    ],
)
def test_bad_configurations_are_one_line(make_run: MakeRun, changes: dict, message: str) -> None:
    with pytest.raises(LaneformerError, match=message) as caught:
        train(make_run(**changes))
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_missing_gpu_is_said(make_run: MakeRun) -> None:
    with pytest.raises(ConfigError, match="torch finds 0 CUDA devices"):
        train(make_run(device="cuda"))


def test_suites_are_evaluated_on_the_way(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[tuple[int, dict]] = []

    class Run:
        def log(self, numbers: dict, step: int) -> None:
            logged.append((step, numbers))

        def finish(self) -> None:
            pass

    monkeypatch.setattr("train.metrics_log._start_wandb", lambda config, run_dir: Run())
    evaluation = EvaluationConfig(
        every=1, suites=["basics"], problems=3, samples=2, temperature=1.0, k=[1, 2], max_new_tokens=4
    )
    model = MODEL | {"max_position_embeddings": 1024}  # room for a prompt
    config = make_run(steps=2, model=model, evaluation=evaluation, log=LogConfig(wandb="offline"))
    train(config)
    numbers = {step: values for step, values in logged if "basics/pass@1" in values}
    assert set(numbers) == {1, 2}
    for k in (1, 2):
        low, value, high = (numbers[2][f"basics/pass@{k}{end}"] for end in ("_low", "", "_high"))
        assert 0 <= low <= value <= high <= 1
    folder = Path(config.run_dir) / "basics" / "step_00000002"
    report = json.loads((folder / "report.json").read_text())
    assert (report["problems"], report["samples"]) == (3, 6)
    assert (folder / "report.html").exists()


@pytest.mark.parametrize("mode", ["off", "offline"])
def test_wandb_is_imported_only_if_asked_for(make_run: MakeRun, tmp_path: Path, mode: str) -> None:
    import pickle

    config = make_run(steps=2, log=LogConfig(every=1, wandb=mode))
    (tmp_path / "config").write_bytes(pickle.dumps(config))
    code = (
        "import pickle, sys; from train.trainer import train; train(pickle.load(open(sys.argv[1], 'rb')));"
        "print('imported', 'wandb' in sys.modules)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "config")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])
    assert f"imported {mode != 'off'}" in done.stdout
    assert bool(list(Path(config.run_dir).glob("wandb/offline-run-*"))) == (mode == "offline")
