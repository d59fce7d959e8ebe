"""Golden cases: the three that the project ships, and the public ones where they are at hand.

``LANEFORMER_GOLDEN`` names the folder of the public ones; without it, ``../shared/golden`` beside the
checkout is looked for.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

OWN = Path(__file__).parent / "golden"
PUBLIC = Path(os.environ.get("LANEFORMER_GOLDEN") or Path(__file__).parents[2] / "shared" / "golden")
PUBLIC_NAMES = (
    "dense_one_lane",
    "no_early_comm",
    "pre_norm_agg_tied",
    "release_like",
    "tp_equivalent",
    "vocab_parallel_lane_norm",
)
needs_public = pytest.mark.skipif(
    not PUBLIC.is_dir(),
    reason="no public golden cases: LANEFORMER_GOLDEN and ../shared/golden name no folder",
)
CASES: list[Any] = [
    *(pytest.param(folder, id=folder.name) for folder in sorted(OWN.iterdir())),
    *(pytest.param(PUBLIC / name, id=name, marks=needs_public) for name in PUBLIC_NAMES),
]


def tolerance(folder: Path) -> float:
    """Largest absolute error of a float32 implementation; one case has logits ten times larger."""
    return 2e-3 if folder.name == "pre_norm_agg_tied" else 1e-4


def answers(folder: Path) -> dict[str, np.ndarray]:
    """``input_ids`` int64 [2, n], ``logits`` float32 [2, n, vocab], ``greedy`` int64 [prompt + new]."""
    return load_file(folder / "golden.safetensors")


def prompt_length(folder: Path) -> int:
    """How many of ``greedy`` were given."""
    return 12 if folder.parent == PUBLIC else 8
