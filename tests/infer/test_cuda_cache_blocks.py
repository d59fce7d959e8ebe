"""Where the CUDA kernel keeps keys and values: its own header, run on a processor for whole requests."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from infer.backends.cuda_source import Kernel, model_header, split_count
from laneformer.config import LaneformerConfig
from tests.infer.cuda_kernels import shape_config
from tests.tiny_models import tiny_config

FOLDER = Path(__file__).parent / "cuda_cache_blocks"
KERNELS = Path(__file__).parents[2] / "kernels" / "cuda"
# Layers 1 and 3 slide.  Runs of one block, and, where attention is merged by shares, of eight.
ONE_LANE = "attention merged by shares"
MODELS = {
    "four lanes, window 6": tiny_config(max_position_embeddings=300),
    "four lanes, window 512": tiny_config(max_position_embeddings=2000, sliding_window=512),
    "four lanes, window of the context": tiny_config(max_position_embeddings=500, sliding_window=500),
    "one lane, window 6": shape_config(ONE_LANE, 5000, sliding_window=6),
    "one lane, window 129": shape_config(ONE_LANE, 5000, sliding_window=129),
    "one lane, window 1,000": shape_config(ONE_LANE, 6000, sliding_window=1000),
    "one lane, window 4,500": shape_config(ONE_LANE, 9100, sliding_window=4500),
}


def run(
    config: LaneformerConfig, splits: int, folder: Path, replaced: tuple[str, str] = ("", "")
) -> subprocess.CompletedProcess[str]:
    """The driver's run, with a text of shape.cuh replaced by another."""
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    kernel = Kernel(workers_per_lane=2, context=config.max_position_embeddings, splits=splits)
    # Quoted includes look beside the file first, so headers and the model's are put beside the driver.
    for file in (FOLDER / "driver.cpp", KERNELS / "cache_blocks.cuh"):
        shutil.copy(file, folder)
    shapes = (KERNELS / "shape.cuh").read_text(encoding="utf-8")
    assert replaced[0] in shapes
    (folder / "shape.cuh").write_text(shapes.replace(*replaced), encoding="utf-8")
    (folder / "model.cuh").write_text(model_header(config, kernel), encoding="utf-8")
    command = [compiler, "-std=c++17", "-O2", "-Wall", "-Wno-unknown-pragmas", "-o", folder / "driver"]
    subprocess.run([*command, folder / "driver.cpp"], check=True)
    return subprocess.run([folder / "driver"], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", MODELS)
def test_every_key_in_sight_is_found(name: str, tmp_path: Path) -> None:
    config = MODELS[name]
    done = run(config, split_count(config), tmp_path)
    assert done.returncode == 0, done.stdout
    assert f"runs of {16 if 'one lane' in name else 1}," in done.stdout


@pytest.mark.parametrize("splits", [1, 2, 4, 8, 16])
def test_any_number_of_splits(splits: int, tmp_path: Path) -> None:
    done = run(tiny_config(max_position_embeddings=700, sliding_window=100), splits, tmp_path)
    assert done.returncode == 0, done.stdout


def test_the_check_sees_a_block_that_was_overwritten(tmp_path: Path) -> None:
    config = tiny_config(max_position_embeddings=2000, sliding_window=512)
    fewer = ("slots_for(SLIDING_WINDOW + CHUNK))", "slots_for(SLIDING_WINDOW + CHUNK) - 1)")
    done = run(config, split_count(config), tmp_path, fewer)
    assert done.returncode == 1 and "not found" in done.stdout
