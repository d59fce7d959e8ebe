"""What the model writes during training: samples, and HumanEval through the public harness."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from evals.evaluate import evaluate_suite
from evals.generate import EngineGenerator
from evals.suites import load_suite
from infer import Engine
from laneformer.model import LaneformerForCausalLM
from laneformer.tokenizer import Tokenizer
from train.config import HumanEvalConfig, SamplesConfig
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


def run_humaneval(
    model: LaneformerForCausalLM,
    tokenizer: Tokenizer,
    config: HumanEvalConfig,
    folder: Path,
    stopping: Callable[[], bool],
) -> dict[str, Any] | None:
    """Greedy pass@1 and status counts, None where ``stopping`` became true on the way.

    Samples and verdicts go to ``folder``; what is there is of other weights and makes way.
    """
    shutil.rmtree(folder, ignore_errors=True)
    generator = _StoppableGenerator(Engine.from_backend(TorchBackend(model), tokenizer), stopping)
    try:
        result = evaluate_suite(
            generator,
            load_suite("humaneval").first(config.problems),
            max_new_tokens=config.max_new_tokens,
            output_dir=folder,
            progress=False,
        )
    except _StopRequestedError:
        shutil.rmtree(folder, ignore_errors=True)
        return None
    return {"pass@1": result.pass_at_k[1], "statuses": dict(result.status_counts)}
