"""Importing a model must not need torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import importlib, pkgutil, sys
sys.modules["torch"] = None  # any import of torch now raises ImportError

import laneformer.importing
for module in pkgutil.walk_packages(laneformer.importing.__path__, "laneformer.importing."):
    importlib.import_module(module.name)
assert "gguf" not in sys.modules
print(laneformer.importing.import_checkpoint(*sys.argv[1:]).tensors)
"""


def test_import_without_torch(tmp_path: Path) -> None:
    source = Path(__file__).parent / "golden" / "qwen3"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM, str(source), str(tmp_path / "out")],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "24\n"
