"""The house rules that a machine can check: lint, types, and which package may import which."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# Who may import whom.  laneformer/cli.py finds commands by name, at run time.
ALLOWED = {
    "laneformer": {"laneformer"},
    "infer": {"infer", "laneformer"},
    "evals": {"evals", "infer", "laneformer"},
    "train": {"train", "evals", "infer", "laneformer"},
}
NEEDS_TORCH = {"laneformer/model.py", "laneformer/pretrained.py", "laneformer/attention_mask.py"}
NEEDS_TORCH |= {"laneformer/key_value_cache.py", "laneformer/doctor.py"}


def imported(path: Path, *, top_level_only: bool = False) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = tree.body if top_level_only else list(ast.walk(tree))
    names: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return names


@pytest.mark.parametrize("package", ALLOWED)
def test_imports_run_one_way(package: str) -> None:
    for path in (ROOT / package).rglob("*.py"):
        ours = {name.split(".")[0] for name in imported(path)} & ALLOWED.keys()
        assert ours <= ALLOWED[package], path


@pytest.mark.parametrize("package", ["laneformer", "infer", "evals"])
def test_torch_stays_where_it_is_needed(package: str) -> None:
    for path in (ROOT / package).rglob("*.py"):
        if str(path.relative_to(ROOT)) not in NEEDS_TORCH:
            assert "torch" not in {name.split(".")[0] for name in imported(path)}, path


@pytest.mark.parametrize(
    "command", [["ruff", "check"], ["ruff", "format", "--check"], ["mypy"]], ids=" ".join
)
def test_lint_and_types(command: list[str]) -> None:
    done = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
