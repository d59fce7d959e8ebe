"""The whole chain on one small model: data, training, HumanEval, export, engine.

Run by ``make demo``; each command is printed as one would type it.  Ends with the engine's greedy tokens
held against PyTorch's.  A second run finds data and checkpoint in place and goes on from there.

    python scripts/demo.py [--steps 1000] [--limit 164]
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import time
from pathlib import Path

import torch

from infer import Engine
from laneformer import LaneformerForCausalLM
from train.torch_backend import TorchBackend

RUN = Path("runs/demo")
ENGINE_FILE = RUN / "model.engine"
TRAINING = (
    f"run_dir={RUN}",
    "data.folder=data/demo",
    "model=small",
    "batch_size=4",
    "optimizer.learning_rate=3e-3",
    "schedule.warmup_steps=50",
    "schedule.decay_fraction=0.4",
    "checkpoint.every=200",
    "held_out.every=200",
    "held_out.max_tokens=200000",
    "log.every=40",
)
PROMPTS = ("def fibonacci(n):\n", "import os\n\n\nclass ", "for index, value in enumerate(")
NEW_TOKENS = 48


def main() -> int:
    """Run the chain; returns 1 where the engine's tokens differ from PyTorch's."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=1000, help="optimizer steps of 1,024 tokens")
    parser.add_argument("--limit", type=int, default=164, help="HumanEval problems")
    arguments = parser.parse_args()
    started = time.perf_counter()

    heading("1. Data and training: an 8-lane, delay-2 Laneformer on this machine's Python files")
    run("laneformer", "train", *TRAINING, f"steps={arguments.steps}")

    heading("2. HumanEval: does what it writes pass the tests?")
    scores = RUN / "humaneval" / f"after_{arguments.steps}_steps"
    problems = ["--limit", str(arguments.limit), "--max-new-tokens", "128"]
    run("evaluate", "humaneval", "--model", f"{RUN}/last", "--output", str(scores), *problems)

    heading("3. Export to the framework-free engine")
    run("laneformer", "export", f"{RUN}/last", str(ENGINE_FILE), "--overwrite")

    heading("4. The engine, held against PyTorch")
    same = compare_with_pytorch()
    print(f"\ndemo: {time.perf_counter() - started:.0f} s without set-up")
    return 0 if same else 1


def heading(text: str) -> None:
    """Print a section title."""
    print(f"\n== {text}", flush=True)


def run(command: str, *arguments: str) -> None:
    """Run a console script of this environment and stop the demo where it fails."""
    print(f"$ {shlex.join((command, *arguments))}", flush=True)
    code = subprocess.run([Path(sys.executable).parent / command, *arguments], check=False).returncode
    if code != 0:
        sys.exit(code)


def compare_with_pytorch() -> bool:
    """Generate for every prompt with both; True where all greedy tokens are the same."""
    engine = Engine(ENGINE_FILE)
    model = LaneformerForCausalLM.from_pretrained(RUN / "last", torch.float32)
    reference = Engine.from_backend(TorchBackend(model), engine.tokenizer)
    assert engine.tokenizer is not None  # the exported checkpoint has one
    all_same = True
    for prompt in PROMPTS:
        prompt_ids = engine.tokenizer.encode(prompt)
        begin = time.perf_counter()
        tokens = list(engine.generate(prompt_ids, max_new_tokens=NEW_TOKENS))
        seconds = time.perf_counter() - begin
        expected = [token.token_id for token in reference.generate(prompt_ids, max_new_tokens=NEW_TOKENS)]
        same = [token.token_id for token in tokens] == expected
        all_same &= same
        print(f"\n--- {prompt!r}: {len(tokens) / seconds:,.0f} tokens/s, prompt included; "
              f"tokens {'equal' if same else 'DIFFER FROM'} PyTorch's")  # fmt: skip
        print(prompt + "".join(token.text for token in tokens))
    print(f"\nengine's greedy tokens equal PyTorch's: {'yes' if all_same else 'NO'}")
    return all_same


if __name__ == "__main__":
    raise SystemExit(main())
