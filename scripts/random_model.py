"""An engine file of random weights: those that ``bench_cuda.py`` makes up for a shape.

    python scripts/random_model.py release release.laneformer
    laneformer bench decode release.laneformer --backend cuda --context 256 1024 4096 --new-tokens 200

A shape gets the same weights each time, and so the same bytes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from infer.export import write_engine_file  # noqa: E402
from laneformer.config import LaneformerConfig  # noqa: E402
from laneformer.errors import LaneformerError  # noqa: E402
from scripts.bench_cuda import SHAPES, SeededWeights  # noqa: E402


def main(words: Sequence[str] | None = None) -> int:
    """Write; 2 where the file cannot be written."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("out", type=Path, help="engine file to write")
    parser.add_argument("--overwrite", action="store_true", help="replace a file that is there")
    arguments = parser.parse_args(words)
    try:
        weights = SeededWeights(LaneformerConfig(**SHAPES[arguments.shape]))
        summary = write_engine_file(weights, arguments.out, overwrite=arguments.overwrite)
    except LaneformerError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{summary.path}: {summary.tensors} tensors, {summary.size / 1e9:.2f} GB, {summary.dtype}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
