"""Training on one device.

What a run does:
  1. prepare the data (or find it prepared), build the model for its tokenizer;
  2. resume from the newest whole checkpoint of the run folder, or start;
  3. step: batches follow from seed and step alone, so resuming is exact: 30 + 30 steps are 60 to the bit;
  4. now and then: held-out loss, samples, problem suites, a checkpoint;
  5. stop at ``steps``, at ``stop_after`` or on SIGINT/SIGTERM, always with a checkpoint.

The run folder:
    config.yaml        every value of the configuration
    metrics.jsonl      one JSON object a line
    samples.jsonl      sampled texts
    humaneval/         one folder a suite: samples, verdicts and their report, by step
    checkpoints/       step_00000500/ ...
    last               link to the newest checkpoint

    result = train(TrainConfig(run_dir="runs/first", model={...}))
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from laneformer.errors import TrainingError
from laneformer.model import LaneformerForCausalLM
from laneformer.parameters import parameter_count
from train import checkpoints, random_state
from train.allocator import keep_freed_memory
from train.config import TrainConfig
from train.data.packing import Batch, HeldOutBatches, PackedSequences
from train.data.prepare import prepare
from train.data.shards import TokenDataset
from train.generation_checks import evaluate_model, load_suites, write_samples
from train.hardware import flops_per_token, peak_flops, select_device, select_precision
from train.held_out import HeldOutLoss, held_out_loss
from train.interruption import StopRequest, stop_on_signals
from train.metrics_log import MetricsLog, eta_text, progress_text
from train.model_shape import model_config
from train.optimizer import make_optimizer, restore_optimizer
from train.run_folder import check_same_run, open_run_folder, trained_on
from train.schedule import learning_rate
from train.step import loss_sum, optimizer_step


@dataclass(frozen=True)
class TrainResult:
    """Where a run stands when its process ends; ``held_out`` is None where it was interrupted."""

    step: int
    checkpoint: Path
    held_out: HeldOutLoss | None


def train(config: TrainConfig) -> TrainResult:
    """Run training as configured.

    Raises :class:`LaneformerError` for anything a user can fix; :class:`TrainingError` where loss or
    gradients stay non-finite, with the last good weights saved before.
    """
    config.validate()
    load_suites(config.evaluation)  # before all else, which may take hours: the files may be missing
    with open_run_folder(config) as run_dir:
        dataset = prepare(config.data)  # may be interrupted at any time: it resumes by itself
        with stop_on_signals() as stop:
            return Trainer(config, run_dir, dataset, stop).run()


class Trainer:
    """State of one process of a run."""

    def __init__(self, config: TrainConfig, run_dir: Path, dataset: TokenDataset, stop: StopRequest) -> None:
        self.config = config
        self.run_dir = run_dir
        self.dataset = dataset
        self.stop = stop
        self.suites = load_suites(config.evaluation)
        random_state.seed_everything(config.seed)
        self.device = select_device(config.device)
        self.precision = select_precision(config.precision, self.device)
        if self.device.type == "cpu":
            keep_freed_memory()
        self.model_config = model_config(config, self.dataset.tokenizer)
        self.trained_on = trained_on(config, self.model_config, self.dataset)
        self.step = 0
        saved = checkpoints.newest(run_dir)
        if saved is not None:
            check_same_run(saved.folder, saved.trained_on, self.trained_on)
            self.model = LaneformerForCausalLM.from_pretrained(saved.folder, torch.float32).to(self.device)
            self.step = saved.step
        else:
            self.model = LaneformerForCausalLM(self.model_config).to(self.device)
        self.optimizer = make_optimizer(self.model, config.optimizer, self.device)
        if saved is not None:
            restore_optimizer(self.optimizer, saved.state["optimizer"])
            random_state.restore(saved.state["random"])
        self.forward = torch.compile(self.model) if config.compile else self.model
        self.sequences = PackedSequences(self.dataset.split("train"), config.sequence_length, config.seed)
        self.log = MetricsLog(config, run_dir, self.step)
        self.log.say(
            f"{f'resuming {saved.folder.name}' if saved else 'starting'}: "
            f"{parameter_count(self.model_config):,} parameters in {self.model_config.num_lanes} lanes, "
            f"{self.dataset.split('train').num_tokens:,} tokens, "
            f"on {self.device} in {str(self.precision).removeprefix('torch.')}"
        )

    def run(self) -> TrainResult:
        """Train until the end, ``stop_after`` or a signal."""
        config = self.config
        last_step = config.steps
        if config.stop_after is not None:
            last_step = min(last_step, self.step + config.stop_after)
        try:
            self._train_until(last_step)
            if self.step >= config.steps and not self.stop.pending:
                result = self._held_out()
                if config.samples.every:
                    self._write_samples()
                if config.evaluation.every and not self.stop.pending:
                    self._evaluate()
            else:
                result = None
            folder = self._save()
            if self.stop.pending:
                self.log.say(f"{self.stop.signal_name}: saved step {self.step}; run again to go on")
            return TrainResult(self.step, folder, result)
        finally:
            self.log.close()

    def _train_until(self, last_step: int) -> None:
        config = self.config
        skipped = 0
        window_start, window_tokens = time.perf_counter(), 0
        first_step, started = self.step, time.perf_counter()
        while self.step < last_step and not self.stop.pending:
            rate = learning_rate(self.step, config.steps, config.optimizer.learning_rate, config.schedule)
            result = optimizer_step(
                self.model,
                self.optimizer,
                self._micro_batches(self.step),
                self._loss_sum,
                rate,
                config.optimizer.max_gradient_norm,
            )
            self.step += 1
            window_tokens += config.tokens_per_step
            skipped = 0 if result.applied else skipped + 1
            if not result.applied:
                self._report_skipped(result.loss, result.gradient_norm, skipped)
            elif self.step % config.log.every == 0 or self.step in (1, last_step):
                now = time.perf_counter()
                speed = window_tokens / (now - window_start)
                remaining = (now - started) / (self.step - first_step) * (last_step - self.step)
                self._report(result.loss, result.gradient_norm, rate, speed, remaining)
                window_start, window_tokens = now, 0
            if self.step < config.steps and self._periodic():
                window_start, window_tokens = time.perf_counter(), 0

    def _periodic(self) -> bool:
        """Whatever is due after this step; whether anything was."""
        config = self.config
        due = {
            self._held_out: config.held_out.every,
            self._write_samples: config.samples.every,
            self._evaluate: config.evaluation.every,
            self._save: config.checkpoint.every,
        }
        actions = [action for action, every in due.items() if every and self.step % every == 0]
        for action in actions:
            if not self.stop.pending:  # a checkpoint follows anyway
                action()
        return bool(actions)

    def _micro_batches(self, step: int) -> list[Batch]:
        first = step * self.config.sequences_per_step
        size = self.config.batch_size
        count = self.config.gradient_accumulation
        return [self.sequences.batch(first + number * size, size) for number in range(count)]

    def _loss_sum(self, batch: Batch) -> Tensor:
        within = self.config.attention_within_documents
        return loss_sum(self.forward, batch, self.device, self.precision, within)

    def _report(self, loss: float, norm: float, rate: float, speed: float, remaining: float) -> None:
        peak = peak_flops(self.device, self.precision)
        operations = flops_per_token(self.model_config, self.config.sequence_length) * speed
        utilization = operations / peak if peak else None
        line = progress_text(self.step, self.config.steps, loss, rate, speed, utilization)
        self.log.progress(f"{line}  ETA {eta_text(remaining)}")
        values = {
            "loss": loss,
            "gradient_norm": norm,
            "learning_rate": rate,
            "tokens": self.step * self.config.tokens_per_step,
            "tokens_per_second": speed,
            "mfu": utilization,
        }
        self.log.write("train", self.step, values)

    def _report_skipped(self, loss: float, norm: float, in_a_row: int) -> None:
        self.log.say(
            f"step {self.step}: loss {loss}, gradient norm {norm}: not finite, weights left as they were"
        )
        self.log.write("skipped", self.step, {"loss": loss, "gradient_norm": norm})
        if in_a_row >= self.config.max_skipped_steps:
            self._save()
            raise TrainingError(
                f"{in_a_row} steps in a row with non-finite loss or gradient, up to step {self.step}: the "
                "weights before them are saved; lower optimizer.learning_rate or look at the data"
            )

    def _held_out(self) -> HeldOutLoss | None:
        config = self.config
        batches = HeldOutBatches(
            self.dataset.split("validation"),
            config.sequence_length,
            config.batch_size,
            config.held_out.max_tokens,
        )
        result = held_out_loss(batches, self._loss_sum, self._stopping)
        if result is not None:
            self.log.write("held_out", self.step, asdict(result))
            self.log.say(
                f"held out, step {self.step}: {result.nats_per_token:.4f} nats per token, "
                f"{result.bits_per_byte:.4f} bits per byte ({result.tokens:,} tokens, {result.bytes:,} bytes)"
            )
        return result

    def _write_samples(self) -> None:
        path = self.run_dir / "samples.jsonl"
        samples = write_samples(self.model, self.dataset.tokenizer, self.config.samples, self.step, path)
        for sample in samples:
            self.log.say(f"sample, step {self.step}: {json.dumps(sample['prompt'] + sample['text'])}")

    def _evaluate(self) -> None:
        config = self.config.evaluation
        for suite in self.suites:
            folder = self.run_dir / suite.name / f"step_{self.step:08d}"
            values = evaluate_model(self.model, self.dataset.tokenizer, suite, config, folder, self._stopping)
            if values is None:
                return
            self.log.write(suite.name, self.step, values)
            scores = ", ".join(
                f"pass@{k} {values[f'pass@{k}']:.4f} "
                f"({values[f'pass@{k}_low']:.4f} to {values[f'pass@{k}_high']:.4f})"
                for k in sorted(set(config.k))
            )
            self.log.say(f"{suite.name}, step {self.step}: {scores}")

    def _stopping(self) -> bool:
        return self.stop.pending

    def _save(self) -> Path:
        if not all(bool(torch.isfinite(parameter).all()) for parameter in self.model.parameters()):
            raise TrainingError(
                f"weights are NaN or infinite after step {self.step}, so they are not saved; lower "
                "optimizer.learning_rate and run again from the last checkpoint"
            )
        state: dict[str, Any] = {
            "optimizer": self.optimizer.state_dict(),
            "random": random_state.capture(),
        }
        return checkpoints.save(
            self.run_dir,
            self.step,
            self.model,
            self.dataset.tokenizer,
            state,
            self.trained_on,
            self.config.checkpoint.keep_last,
        )
