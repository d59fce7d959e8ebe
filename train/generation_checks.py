"""What the model writes during training: samples, and problem suites through the public harness."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from evals.evaluate import check_samples, evaluate_suite
from evals.generate import EngineGenerator
from evals.report.report import build_report, write_report
from evals.report.run import read_run
from evals.suites import Suite, load_suite
from infer import Engine
from laneformer.model import LaneformerForCausalLM
from laneformer.tokenizer import Tokenizer
from train.config import EvaluationConfig, SamplesConfig
from train.torch_backend import TorchBackend


def write_samples(
    model: LaneformerForCausalLM, tokenizer: Tokenizer, config: SamplesConfig, step: int, path: Path
) -> list[dict[str, Any]]:
    """Continue every prompt once, append the texts to ``path`` and return them."""
    engine = Engine.from_backend(TorchBackend(model), tokenizer)
    samples: list[dict[str, Any]] = []
    for seed, prompt in enumerate(config.prompts):
        tokens = engine.generate(
            tokenizer.encode(prompt),
            max_new_tokens=config.max_new_tokens,
            temperature=config.temperature,
            top_p=config.top_p,
            seed=seed,
        )
        samples.append({"step": step, "prompt": prompt, "text": "".join(token.text for token in tokens)})
    with path.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(sample) + "\n" for sample in samples)
    return samples


class _StopRequestedError(Exception):
    """The run was asked to stop between two problems."""


class _StoppableGenerator(EngineGenerator):
    """Looks before every sample whether the run should stop."""

    def __init__(self, engine: Engine, stopping: Callable[[], bool]) -> None:
        super().__init__(engine)
        self._stopping = stopping

    def generate_text(
        self, prompt: str, *, max_new_tokens: int, temperature: float, top_p: float, seed: int
    ) -> Iterator[str]:
        """As :class:`EngineGenerator`."""
        if self._stopping():
            raise _StopRequestedError
        return super().generate_text(
            prompt, max_new_tokens=max_new_tokens, temperature=temperature, top_p=top_p, seed=seed
        )


def load_suites(config: EvaluationConfig) -> list[Suite]:
    """The suites that ``config`` asks for.  EvaluationError for what could not be evaluated later."""
    if not config.every:
        return []
    check_samples(config.samples, config.temperature, config.k)
    return [load_suite(name).first(config.problems) for name in config.suites]


def evaluate_model(
    model: LaneformerForCausalLM,
    tokenizer: Tokenizer,
    suite: Suite,
    config: EvaluationConfig,
    folder: Path,
    stopping: Callable[[], bool],
) -> dict[str, Any] | None:
    """pass@k with its interval (``_low``, ``_high``) and status counts; None where ``stopping`` became true.

    Samples, verdicts and their report go to ``folder``; what is there is of other weights and makes way.
    """
    shutil.rmtree(folder, ignore_errors=True)
    generator = _StoppableGenerator(Engine.from_backend(TorchBackend(model), tokenizer), stopping)
    try:
        evaluate_suite(
            generator,
            suite,
            samples_per_problem=config.samples,
            temperature=config.temperature,
            ks=config.k,
            max_new_tokens=config.max_new_tokens,
            output_dir=folder,
            must_run=True,  # little free memory is no reason to end a training run
            progress=False,
        )
    except _StopRequestedError:
        shutil.rmtree(folder, ignore_errors=True)
        return None
    run = read_run(folder)
    report = build_report(run)
    write_report(run, report, folder)
    values: dict[str, Any] = {}
    for row in report["pass_at_k"]:
        name = f"pass@{row['k']}"
        values |= {name: row["value"], f"{name}_low": row["low"], f"{name}_high": row["high"]}
    return values | {"statuses": report["status_counts"]}
