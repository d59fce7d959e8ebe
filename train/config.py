"""Everything that a training run can be told, as the structured configuration that Hydra fills.

The defaults here and in ``configs/train.yaml`` are the same run; a key that does not exist is an error
before anything starts.  Plain dataclasses: the trainer itself does not need Hydra.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from laneformer.errors import ConfigError
from train.data.config import DataConfig

PRECISIONS = ("auto", "float32", "bfloat16")
LARGEST = 100.0  # of learning rates and the like: beyond, weights overflow at once
WANDB_MODES = ("off", "offline", "online")


@dataclass
class OptimizerConfig:
    """AdamW (Loshchilov & Hutter 2019); matrices decay, norms do not."""

    learning_rate: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-8
    weight_decay: float = 0.1
    max_gradient_norm: float = 1.0


@dataclass
class ScheduleConfig:
    """Warm-up, stable, decay: linear up, flat, then linear down to ``final_ratio`` of the peak."""

    warmup_steps: int = 100
    decay_fraction: float = 0.2
    final_ratio: float = 0.0


@dataclass
class HeldOutConfig:
    """Loss on documents never trained on, every ``every`` steps (0: only at the end)."""

    every: int = 500
    max_tokens: int = 500_000


@dataclass
class SamplesConfig:
    """Texts sampled during training, every ``every`` steps (0: never)."""

    every: int = 0
    prompts: list[str] = field(default_factory=lambda: ["def ", "import "])
    max_new_tokens: int = 64
    temperature: float = 0.8
    top_p: float = 0.95


@dataclass
class EvaluationConfig:
    """pass@k on problem suites, every ``every`` steps (0: never).

    Of each suite the first ``problems`` count (null: all).  Suites are those of ``evaluate``, asked in the
    base format; one greedy sample per problem, unless ``samples`` and ``temperature`` say otherwise.
    """

    every: int = 0
    suites: list[str] = field(default_factory=lambda: ["humaneval"])
    problems: int | None = None
    samples: int = 1
    temperature: float = 0.0
    k: list[int] = field(default_factory=lambda: [1])
    max_new_tokens: int = 256


@dataclass
class CheckpointConfig:
    """Save every ``every`` steps (0: only at the end) and keep the newest ``keep_last``."""

    every: int = 500
    keep_last: int = 2


@dataclass
class LogConfig:
    """``metrics.jsonl`` is always written; Weights & Biases beside it if asked for."""

    every: int = 10
    wandb: str = "off"
    wandb_project: str = "laneformer"


@dataclass
class TrainConfig:
    """One training run.

    ``batch_size`` counts sequences of ``sequence_length`` tokens in one forward pass; a step sees
    ``batch_size * gradient_accumulation`` of them.  ``stop_after`` ends this process after that many
    steps as a signal would, saving; the schedule still aims at ``steps``.  ``resume`` is ``auto`` (go on
    from the newest whole checkpoint of the run folder) or ``never`` (the folder must hold none).
    """

    name: str = "laneformer"
    run_dir: str = "runs/laneformer"
    seed: int = 0
    steps: int = 1000
    stop_after: int | None = None
    sequence_length: int = 256
    batch_size: int = 16
    gradient_accumulation: int = 1
    attention_within_documents: bool = True
    device: str = "auto"
    precision: str = "auto"
    compile: bool = False
    resume: str = "auto"
    max_skipped_steps: int = 10
    model: dict[str, Any] = field(default_factory=dict)
    data: DataConfig = field(default_factory=DataConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    held_out: HeldOutConfig = field(default_factory=HeldOutConfig)
    samples: SamplesConfig = field(default_factory=SamplesConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    log: LogConfig = field(default_factory=LogConfig)

    @property
    def sequences_per_step(self) -> int:
        """Sequences that one optimizer step sees."""
        return self.batch_size * self.gradient_accumulation

    @property
    def tokens_per_step(self) -> int:
        """Tokens that one optimizer step sees."""
        return self.sequences_per_step * self.sequence_length

    def validate(self) -> None:
        """Raise :class:`ConfigError` for a value that makes no sense."""
        self.data.validate()
        at_least_one = {
            "steps": self.steps,
            "sequence_length": self.sequence_length,
            "batch_size": self.batch_size,
            "gradient_accumulation": self.gradient_accumulation,
            "max_skipped_steps": self.max_skipped_steps,
            "held_out.max_tokens": self.held_out.max_tokens,
            "checkpoint.keep_last": self.checkpoint.keep_last,
            "log.every": self.log.every,
            "evaluation.problems": 1 if self.evaluation.problems is None else self.evaluation.problems,
            "evaluation.samples": self.evaluation.samples,
            "evaluation.max_new_tokens": self.evaluation.max_new_tokens,
        }
        not_negative = {
            "seed": self.seed,
            "schedule.warmup_steps": self.schedule.warmup_steps,
            "held_out.every": self.held_out.every,
            "samples.every": self.samples.every,
            "evaluation.every": self.evaluation.every,
            "evaluation.temperature": self.evaluation.temperature,
            "checkpoint.every": self.checkpoint.every,
            "optimizer.weight_decay": self.optimizer.weight_decay,
        }
        positive = {
            "optimizer.learning_rate": self.optimizer.learning_rate,
            "optimizer.epsilon": self.optimizer.epsilon,
            "optimizer.max_gradient_norm": self.optimizer.max_gradient_norm,
        }
        fractions = {
            "schedule.decay_fraction": self.schedule.decay_fraction,
            "schedule.final_ratio": self.schedule.final_ratio,
        }
        for name, count in at_least_one.items():
            _require(count >= 1, name, count, "at least 1")
        for name, amount in not_negative.items():
            _require(0 <= amount < math.inf, name, amount, "zero or more, and finite")
        _require(self.seed < 2**63, "seed", self.seed, "below 2**63")
        for name, amount in positive.items():
            _require(0 < amount <= LARGEST, name, amount, f"above zero and at most {LARGEST:g}")
        for name, fraction in fractions.items():
            _require(0 <= fraction <= 1, name, fraction, "between 0 and 1")
        for name, beta in (("beta1", self.optimizer.beta1), ("beta2", self.optimizer.beta2)):
            _require(0 <= beta < 1, f"optimizer.{name}", beta, "at least 0 and below 1")
        _require(self.stop_after is None or self.stop_after >= 1, "stop_after", self.stop_after, "at least 1")
        _require(self.precision in PRECISIONS, "precision", self.precision, f"one of {', '.join(PRECISIONS)}")
        _require(
            self.log.wandb in WANDB_MODES, "log.wandb", self.log.wandb, f"one of {', '.join(WANDB_MODES)}"
        )
        _require(self.resume in ("auto", "never"), "resume", self.resume, "'auto' or 'never'")


def _require(condition: bool, name: str, value: object, expected: str) -> None:
    if not condition:
        raise ConfigError(f"{name} must be {expected}, found {value!r}")
