"""What the model writes during training: samples, and HumanEval through the public harness."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from evals.generate import EngineGenerator
from evals.humaneval import evaluate_humaneval
from evals.problems import load_problems
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


def run_humaneval(
    model: LaneformerForCausalLM, tokenizer: Tokenizer, config: HumanEvalConfig, folder: Path
) -> dict[str, Any]:
    """Greedy pass@1 and status counts; samples and verdicts are kept in ``folder``."""
    engine = Engine.from_backend(TorchBackend(model), tokenizer)
    result = evaluate_humaneval(
        EngineGenerator(engine),
        load_problems()[: config.problems],
        max_new_tokens=config.max_new_tokens,
        output_dir=folder,
        progress=False,
    )
    return {"pass@1": result.pass_at_k[1], "statuses": dict(result.status_counts)}
