"""The tape of tiles: bit for bit, in the order that the kernel reads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infer.plan import equal_shares, make_plan
from infer.tape import TileIndex, open_tape
from infer.tape.tile_layout import COLUMN_MULTIPLE, TILE, pack_tiles, tile_share, unpack_tiles
from laneformer.checkpoint import Checkpoint
from laneformer.errors import CheckpointError
from laneformer.parameters import parameter_shapes
from tests.tiny_models import RandomWeights, tiny_config, write_checkpoint


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANEFORMER_CACHE", str(tmp_path / "cache"))


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 30), st.integers(1, 4), st.integers(1, 4))
def test_tiles_come_back(tiles: int, columns: int, blocks: int) -> None:
    shape = tiles * TILE, columns * COLUMN_MULTIPLE
    values = np.arange(np.prod(shape), dtype=np.uint32).astype(np.uint16).reshape(shape)
    np.testing.assert_array_equal(unpack_tiles(pack_tiles(values, blocks), *shape, blocks), values)


def test_a_thread_reads_sixteen_bytes_of_two_rows() -> None:
    values = np.arange(32 * 64, dtype=np.uint16).reshape(32, 64)
    packed = pack_tiles(values, 1).reshape(4, 2, 32, 8)  # step of columns, tile, thread, number
    row, column = 3, 2  # of thread 4 * row + column
    want = [values[16 + r, 16 + 4 * column + c] for c, r in _order(row)]
    np.testing.assert_array_equal(packed[1, 1, 4 * row + column], want)


def _order(row: int) -> list[tuple[int, int]]:
    return [(c, r) for pair in (0, 2) for r in (row, row + 8) for c in (pair, pair + 1)]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tie_word_embeddings": True},
        {"lm_head_type": "vocab_parallel", "replicated_rmsn_scale": False},
        {"lm_head_type": "vocab_parallel", "tie_word_embeddings": True},
        {"lm_head_type": "lane", "head_dim": 6, "vocab_size": 323},
        {"num_lanes": 1, "hidden_size": 48, "qk_norm": True, "intermediate_size": 52},
    ],
    ids=str,
)
def test_unpacking_gives_the_same_bits(tmp_path: Path, changes: dict, dtype: str) -> None:
    config = tiny_config(**changes)
    dtypes = dict.fromkeys(parameter_shapes(config), dtype)
    weights = Checkpoint(write_checkpoint(tmp_path / "model", config, dtypes=dtypes))
    for workers in (1, 2):
        plan = make_plan(config, equal_shares(config, workers))
        tape = open_tape(weights, plan, TileIndex)
        tensors = tape.unpack()
        assert set(tensors) == set(weights.names)
        for name in weights.names:
            np.testing.assert_array_equal(tensors[name], weights.raw(name), err_msg=name)
        assert tape.index.run_offsets.shape == (2, len(plan.workers))


def test_workers_have_whole_tiles_and_all_of_them() -> None:
    shares = [tile_share(47, 5, worker) for worker in range(5)]
    assert [tile for share in shares for tile in share] == list(range(47))


def test_wide_weights_are_refused() -> None:
    weights = RandomWeights(tiny_config())
    plan = make_plan(weights.config, equal_shares(weights.config, 1))
    with pytest.raises(CheckpointError, match="bfloat16 or float16"):
        open_tape(weights, plan, TileIndex)
