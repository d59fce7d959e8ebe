"""The engine must run where torch is not installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import importlib, pkgutil, sys
sys.modules["torch"] = None  # any import of torch now raises ImportError

import infer
for module in pkgutil.walk_packages(infer.__path__, "infer."):
    importlib.import_module(module.name)
engine = infer.Engine(sys.argv[1])
tokens = list(engine.generate(engine.tokenizer.encode("he"), max_new_tokens=5))
assert engine.logits([1, 2]).shape == (2, engine.config.vocab_size)
print([token.token_id for token in tokens])
try:
    import torch
except ImportError:
    print("blocked")
"""


def test_import_and_generate(checkpoint: Path) -> None:
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM, str(checkpoint)],
        cwd=root,
        env=os.environ
        | {"CUDA_VISIBLE_DEVICES": ""},  # beside a GPU, why these weights are not on it is a warning
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    ids, blocked = done.stdout.splitlines()
    assert len(ids.split(",")) == 5
    assert blocked == "blocked"
