"""The weight tape: bit for bit, cached by content, and whole or not there."""

from __future__ import annotations

import errno
import tracemalloc
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infer.plan import Plan, equal_shares, make_plan, roles
from infer.tape import Tape, cache_folder, open_tape
from infer.tape import tape_file as tape_file_module
from infer.tape.page_layout import pack_rows, unpack_rows
from infer.tape.tape_file import VERSION
from laneformer.checkpoint import Checkpoint
from laneformer.config import LaneformerConfig
from laneformer.errors import CheckpointError
from laneformer.parameters import parameter_shapes
from tests.tiny_models import RandomWeights, tiny_config, write_checkpoint


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("LANEFORMER_CACHE", str(folder))
    return folder


def plan_for(config: LaneformerConfig, workers: int = 2) -> Plan:
    return make_plan(config, equal_shares(config, workers))


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.integers(1, 100))
def test_rows_come_back_from_a_page(rows: int, columns: int) -> None:
    values = np.arange(rows * columns, dtype=np.uint16).reshape(rows, columns)
    np.testing.assert_array_equal(unpack_rows(pack_rows(values), rows, columns), values)


def test_a_page_is_read_straight_through() -> None:
    rows = np.arange(16 * 64).reshape(16, 64)
    page = pack_rows(rows).reshape(2, 2, 8, 32)  # block, group of columns, row, column
    np.testing.assert_array_equal(page[1, 0, 3], rows[11, :32])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tie_word_embeddings": True},
        {"lm_head_type": "vocab_parallel", "replicated_rmsn_scale": False},
        {"lm_head_type": "lane", "head_dim": 6, "vocab_size": 323},
        {"num_lanes": 1, "hidden_size": 48},
    ],
    ids=str,
)
def test_unpacking_gives_the_same_bits(tmp_path: Path, changes: dict, dtype: str) -> None:
    config = tiny_config(**changes)
    dtypes = dict.fromkeys(parameter_shapes(config), dtype)
    weights = Checkpoint(write_checkpoint(tmp_path / "model", config, dtypes=dtypes))
    for plan in (plan_for(config, 1), plan_for(config, 5), make_plan(config, roles(config, 1, 3))):
        tensors = open_tape(weights, plan).unpack()
        assert tensors.keys() == set(weights.names)
        for name, values in tensors.items():
            np.testing.assert_array_equal(values.view(np.uint8), weights.raw(name).view(np.uint8))


def test_types_may_be_mixed(tmp_path: Path) -> None:
    config = tiny_config()
    names = list(parameter_shapes(config))
    dtypes = {name: ("float32", "bfloat16", "float16")[place % 3] for place, name in enumerate(names)}
    weights = Checkpoint(write_checkpoint(tmp_path / "model", config, dtypes=dtypes))
    for name, values in open_tape(weights, plan_for(config)).unpack().items():
        np.testing.assert_array_equal(values.view(np.uint8), weights.raw(name).view(np.uint8))


def test_each_worker_has_one_run_in_order_of_use() -> None:
    weights = RandomWeights(tiny_config())
    tape = open_tape(weights, plan_for(weights.config, 3))
    pages = tape.index.pages
    assert [page.worker for page in pages] == sorted(page.worker for page in pages)
    for before, after in pairwise(pages):
        assert before.offset + before.size <= after.offset
        assert before.worker < after.worker or before.page.phase <= after.page.phase
        assert after.worker > before.worker or after.offset - before.offset - before.size < 64


def test_the_cache_goes_by_content(cache: Path) -> None:
    weights = RandomWeights(tiny_config())
    open_tape(weights, plan_for(weights.config))
    first = files(cache)
    assert cache_folder() == cache
    assert len(first) == 1
    open_tape(RandomWeights(tiny_config()), plan_for(weights.config))
    assert files(cache) == first
    weights.tensors["model.norm.weight"][3] += 1
    open_tape(weights, plan_for(weights.config))
    open_tape(weights, plan_for(weights.config, 3))
    assert len(files(cache)) == 3


def damage_truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def damage_version(path: Path) -> None:
    text, own = path.read_bytes(), f'"version": {VERSION}'.encode()
    assert own in text
    path.write_bytes(text.replace(own, b'"version": 7', 1))


def damage_header(path: Path) -> None:
    path.write_bytes(b"\0" * 5000)


def damage_empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("damage", [damage_truncate, damage_version, damage_header, damage_empty])
def test_a_damaged_tape_is_made_again(cache: Path, damage, caplog: pytest.LogCaptureFixture) -> None:
    weights = RandomWeights(tiny_config())
    plan = plan_for(weights.config)
    tape = open_tape(weights, plan)
    good = tape.path.read_bytes()
    damage(tape.path)
    with pytest.raises(CheckpointError):
        Tape(tape.path, plan, tape.path.stem)
    open_tape(weights, plan)
    assert tape.path.read_bytes() == good
    assert "packing the weights again" in caplog.text


def test_a_full_disk_leaves_the_cache_valid(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = RandomWeights(tiny_config())
    open_tape(weights, plan_for(weights.config))
    before = files(cache)

    def packed(*args: object) -> object:
        yield from list(pages(*args))[:20]
        raise OSError(errno.ENOSPC, "No space left on device")

    pages = tape_file_module._packed
    monkeypatch.setattr(tape_file_module, "_packed", packed)
    with pytest.raises(CheckpointError, match=r"No space left on device.*LANEFORMER_CACHE"):
        open_tape(weights, plan_for(weights.config, 3))
    assert files(cache) == before
    monkeypatch.undo()
    monkeypatch.setenv("LANEFORMER_CACHE", str(cache))
    open_tape(weights, plan_for(weights.config))
    assert files(cache) == before


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LANEFORMER_CACHE", str(tmp_path / "file" / "cache"))
    weights = RandomWeights(tiny_config())
    with pytest.raises(CheckpointError, match="LANEFORMER_CACHE"):
        open_tape(weights, plan_for(weights.config))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", ["model.norm.weight", "model.layers.2.feed_forward.w2.weight"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_weights_that_are_not_finite_are_refused(
    tmp_path: Path, cache: Path, name: str, bad: float, dtype: str
) -> None:
    config = tiny_config()
    tensors = RandomWeights(config).tensors
    tensors[name].reshape(-1)[5] = bad
    dtypes = dict.fromkeys(tensors, dtype)
    weights = Checkpoint(write_checkpoint(tmp_path / "model", config, dtypes=dtypes, tensors=tensors))
    with pytest.raises(CheckpointError, match=f"{name} holds 1"):
        open_tape(weights, plan_for(config))
    assert files(cache) == []


def test_packing_needs_little_memory(tmp_path: Path) -> None:
    config = tiny_config(hidden_size=512, intermediate_size=2048, vocab_size=2048)
    weights = Checkpoint(write_checkpoint(tmp_path / "model", config))
    plan = plan_for(config, 4)
    size = sum(weights.raw(name).nbytes for name in weights.names)
    tracemalloc.start()
    tape = open_tape(weights, plan)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert tape.index.size >= size
    assert peak < size / 3, f"{peak / 1e6:.1f} MB for {size / 1e6:.1f} MB of weights"
