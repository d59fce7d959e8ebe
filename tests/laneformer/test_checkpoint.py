"""Reading, checking and writing checkpoint folders."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from laneformer import LaneformerForCausalLM
from laneformer.checkpoint import Checkpoint
from laneformer.errors import CheckpointError, LaneformerError
from laneformer.parameters import parameter_shapes
from laneformer.tensors import bfloat16_to_float32, float32_to_bfloat16
from tests.tiny_models import RandomWeights, tiny_config, write_checkpoint


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"lm_head_type": "lane"},
        {"lm_head_type": "vocab_parallel", "replicated_rmsn_scale": False},
        {"tie_word_embeddings": True, "pre_norm_lane_agg": True, "replicated_rmsn_scale": False},
        {"head_dim": 6},
        {"head_dim": 6, "qk_norm": True},
        {"num_lanes": 1, "lm_head_type": "lane", "tie_word_embeddings": True},
    ],
)
def test_model_has_exactly_the_published_tensors(changes: dict) -> None:
    config = tiny_config(**changes)
    state = LaneformerForCausalLM(config).state_dict()
    assert {name: tuple(tensor.shape) for name, tensor in state.items()} == parameter_shapes(config)


@pytest.mark.parametrize("max_shard_bytes", [10**9, 20_000])
def test_saving_and_loading_keeps_every_bit(tmp_path: Path, max_shard_bytes: int) -> None:
    model = LaneformerForCausalLM(tiny_config()).to(torch.bfloat16)
    model.save_pretrained(tmp_path, max_shard_bytes)
    sharded = (tmp_path / "model.safetensors.index.json").exists()
    assert sharded == (max_shard_bytes == 20_000)
    loaded = LaneformerForCausalLM.from_pretrained(tmp_path)
    assert loaded.config.dtype == "bfloat16"
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, loaded.state_dict()[name]), name
    assert not list(tmp_path.glob(".*"))


def test_saving_over_another_layout_leaves_one(tmp_path: Path) -> None:
    model = LaneformerForCausalLM(tiny_config())
    model.save_pretrained(tmp_path, 20_000)
    (tmp_path / "model-notes.safetensors").write_text("not ours")
    model.save_pretrained(tmp_path, 40_000)
    listed = json.loads((tmp_path / "model.safetensors.index.json").read_text())["weight_map"].values()
    assert {path.name for path in tmp_path.glob("model-0*")} == set(listed)
    model.save_pretrained(tmp_path)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"config.json", "model.safetensors", "model-notes.safetensors"}
    Checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("dtypes", "expected"),
    [
        (("bfloat16", "float32"), torch.float32),
        (("bfloat16", "float16"), torch.float32),  # neither holds the other's values
        (("float16", "float16"), torch.float16),
    ],
)
@torch.no_grad()
def test_mixed_types_load_in_the_narrowest_that_holds_all(tmp_path: Path, dtypes, expected) -> None:
    config = tiny_config(dtype=dtypes[0])
    stored = {name: dtypes["norm" in name] for name in parameter_shapes(config)}
    write_checkpoint(tmp_path, config, dtypes=stored)
    model = LaneformerForCausalLM.from_pretrained(tmp_path)
    assert {parameter.dtype for parameter in model.parameters()} == {expected}
    for name, tensor in model.state_dict().items():
        assert np.array_equal(tensor.float().numpy(), Checkpoint(tmp_path).float32(name)), name
    assert bool(model(torch.tensor([[1, 2, 3]])).isfinite().all())


def test_a_model_of_mixed_types_keeps_every_bit(tmp_path: Path) -> None:
    model = LaneformerForCausalLM(tiny_config()).bfloat16()
    model.model.norm.float()
    model.save_pretrained(tmp_path)
    checkpoint = Checkpoint(tmp_path)
    assert checkpoint.config.dtype == "float32"
    assert checkpoint.dtype("model.norm.weight") == "float32"
    assert checkpoint.dtype("model.tok_embeddings.weight") == "bfloat16"
    with pytest.raises(CheckpointError, match=r"weights of torch\.float64 are not stored"):
        model.double().save_pretrained(tmp_path / "wide")
    assert not (tmp_path / "wide" / "config.json").exists()


def break_truncated(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def break_garbage(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"not a safetensors file at all")


def break_missing_file(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def break_missing_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def break_missing_tensor(folder: Path) -> None:
    tensors = RandomWeights(tiny_config()).tensors
    del tensors["model.layers.1.attention.wq.weight"]
    write_checkpoint(folder, tiny_config(), tensors=tensors)


def break_extra_tensor(folder: Path) -> None:
    tensors = RandomWeights(tiny_config()).tensors
    tensors["model.layers.0.attention.q_norm.weight"] = np.ones(4, np.float32)
    write_checkpoint(folder, tiny_config(), tensors=tensors)


def break_shape(folder: Path) -> None:
    tensors = RandomWeights(tiny_config()).tensors
    tensors["model.norm.weight"] = np.ones(31, np.float32)
    write_checkpoint(folder, tiny_config(), tensors=tensors)


def break_with_nan(folder: Path) -> None:
    tensors = RandomWeights(tiny_config()).tensors
    tensors["model.layers.2.feed_forward.w1.weight"][1, 2, 3] = np.nan
    write_checkpoint(folder, tiny_config(), tensors=tensors)


def break_lanes(folder: Path) -> None:
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(values | {"num_lanes": 3}))


DAMAGE = [
    (break_truncated, "truncated or not a safetensors file"),
    (break_garbage, "truncated or not a safetensors file"),
    (break_missing_file, "neither model.safetensors nor model.safetensors.index.json"),
    (break_missing_config, "config.json: no such file"),
    (break_missing_tensor, "tensor model.layers.1.attention.wq.weight is missing"),
    (break_extra_tensor, "unexpected tensor model.layers.0.attention.q_norm.weight"),
    (break_shape, "tensor model.norm.weight has shape [31], config.json asks for [32]"),
    (break_with_nan, "tensor model.layers.2.feed_forward.w1.weight holds"),
    (break_lanes, "num_lanes (3) does not divide"),
]


@pytest.mark.parametrize(("damage", "message"), DAMAGE, ids=[damage.__name__ for damage, _ in DAMAGE])
def test_damage_is_one_clear_error(tmp_path: Path, damage, message: str) -> None:
    write_checkpoint(tmp_path, tiny_config())
    LaneformerForCausalLM.from_pretrained(tmp_path)
    damage(tmp_path)
    with pytest.raises(LaneformerError) as caught:
        LaneformerForCausalLM.from_pretrained(tmp_path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def sharded(folder: Path) -> dict[str, str]:
    LaneformerForCausalLM(tiny_config()).save_pretrained(folder, 20_000)
    weight_map: dict[str, str] = json.loads((folder / "model.safetensors.index.json").read_text())[
        "weight_map"
    ]
    return weight_map


def test_missing_shard_is_named(tmp_path: Path) -> None:
    first = next(iter(sharded(tmp_path).values()))
    (tmp_path / first).unlink()
    with pytest.raises(CheckpointError, match=f"{first}: no such file"):
        Checkpoint(tmp_path)


def test_index_must_agree_with_the_shards(tmp_path: Path) -> None:
    weight_map = sharded(tmp_path)
    moved = next(iter(weight_map))
    other = next(file for file in weight_map.values() if file != weight_map[moved])
    (tmp_path / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": weight_map | {moved: other}})
    )
    with pytest.raises(CheckpointError, match=f"tensor {moved} is not in {other}"):
        Checkpoint(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "{}",
        "[1]",
        '{"weight_map": 3}',
        '{"weight_map": {"a": "../b"}}',
        '{"weight_map": {"a": ["b"]}}',
        '{"weight_map": {"a": "b", "a": "c"}}',
        '{"a": ' * 10**5,
        '{"a": ' + "9" * 5000 + "}",
    ],
)
def test_broken_index_is_named(tmp_path: Path, text: str) -> None:
    sharded(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"index\.json"):
        Checkpoint(tmp_path)


@pytest.mark.parametrize("same", [True, False])
def test_tied_head_may_be_stored_if_it_is_the_same(tmp_path: Path, same: bool) -> None:
    config = tiny_config(tie_word_embeddings=True)
    tensors = RandomWeights(config).tensors
    tensors["lm_head.weight"] = tensors["model.tok_embeddings.weight"] + (0 if same else 1)
    write_checkpoint(tmp_path, config, tensors=tensors)
    if same:
        assert "lm_head.weight" not in Checkpoint(tmp_path).names
    else:
        with pytest.raises(CheckpointError, match=r"lm_head\.weight differs"):
            Checkpoint(tmp_path)


def test_bfloat16_rounds_like_torch() -> None:
    values = np.random.default_rng(0).standard_normal(10_000).astype(np.float32)
    values[:4] = [0.0, -0.0, 1.00390625, 1.01171875]  # the last two lie half-way: ties go to even
    expected = torch.from_numpy(values).to(torch.bfloat16)
    bits = float32_to_bfloat16(values)
    assert np.array_equal(bits, expected.view(torch.uint16).numpy())
    assert np.array_equal(bfloat16_to_float32(bits), expected.float().numpy())
