"""GGUF files become checkpoints that hold the same values, or are refused by name."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from infer import Engine
from laneformer.checkpoint import Checkpoint
from laneformer.config import RopeScaling
from laneformer.errors import CheckpointError, LaneformerError
from laneformer.importing import import_checkpoint
from tests.importing.dense_models import as_type, dense_config, dense_tensors
from tests.importing.gguf_files import BYTE_LEVEL, write_gguf
from tests.plain_reference import reference_logits
from tests.tiny_models import RandomWeights

CORNERS: dict[str, dict[str, Any]] = {
    "llama": {},
    "tied": {"tie_word_embeddings": True},
    "head_dim": {"head_dim": 8, "rope_theta": 100000.0},
    "qwen3": {"qk_norm": True, "head_dim": 8, "tie_word_embeddings": True},
}
SCALING = RopeScaling(8.0, 1.0, 4.0, 8192)


def divisors(scaling: RopeScaling, theta: float, head_size: int) -> np.ndarray:
    """What a converter stores for a Llama-3 scaling, pair by pair."""
    result = []
    for pair in range(head_size // 2):
        turns = scaling.original_max_position_embeddings * theta ** (-2 * pair / head_size) / (2 * math.pi)
        keep = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
        keep = min(max(keep, 0.0), 1.0)
        result.append(1 / ((1 - keep) / scaling.factor + keep))
    return np.array(result, np.float32)


@pytest.mark.parametrize("corner", CORNERS)
def test_one_lane_gives_every_bit_back(tmp_path: Path, corner: str) -> None:
    config = dense_config(**CORNERS[corner])
    tensors = dense_tensors(config)
    write_gguf(tmp_path / "model.gguf", config, tensors)
    import_checkpoint(tmp_path / "model.gguf", tmp_path / "out")
    checkpoint = Checkpoint(tmp_path / "out")
    assert checkpoint.config == replace(config, head_dim=checkpoint.config.head_dim)
    assert checkpoint.config.head_size == config.head_size
    for name in checkpoint.names:
        found = checkpoint.raw(name)
        assert np.array_equal(found[0] if found.ndim == 3 else found, tensors[name]), name


@pytest.mark.parametrize("corner", CORNERS)
def test_lanes_keep_the_function(tmp_path: Path, corner: str) -> None:
    config = dense_config(**CORNERS[corner])
    write_gguf(tmp_path / "model.gguf", config, dense_tensors(config))
    import_checkpoint(tmp_path / "model.gguf", tmp_path / "out", lanes=4)
    ids = np.random.default_rng(1).integers(config.vocab_size, size=20).tolist()
    expected = reference_logits(config, RandomWeights(config).tensors, ids)
    logits = Engine(tmp_path / "out", backend="numpy").logits(ids)
    assert np.abs(logits - expected).max() < 1e-5 * max(1.0, np.abs(expected).max())


@pytest.mark.parametrize(("kind", "dtype"), [("F16", "float16"), ("BF16", "bfloat16")])
def test_sixteen_bits_are_kept(tmp_path: Path, kind: str, dtype: str) -> None:
    config = dense_config()
    tensors = dense_tensors(config)
    write_gguf(tmp_path / "model.gguf", config, tensors, kind=kind)
    import_checkpoint(tmp_path / "model.gguf", tmp_path / "out")
    checkpoint = Checkpoint(tmp_path / "out")
    name = "model.layers.1.feed_forward.w2.weight"
    assert checkpoint.config.dtype == checkpoint.dtype(name) == dtype
    assert np.array_equal(checkpoint.raw(name)[0], as_type(tensors[name], dtype))
    assert checkpoint.dtype("model.norm.weight") == "float32"


def test_quantized_blocks_are_widened(tmp_path: Path) -> None:
    config = dense_config()
    tensors = dense_tensors(config)
    write_gguf(tmp_path / "model.gguf", config, tensors, kind="Q8_0")
    summary = import_checkpoint(tmp_path / "model.gguf", tmp_path / "out")
    assert summary.dtype == "float32"
    checkpoint = Checkpoint(tmp_path / "out")
    name = "model.layers.0.attention.wq.weight"
    # Q8_0: 32 whole numbers up to 127, times one scale in float16.
    blocks = tensors[name].reshape(-1, 32)
    scales = (np.abs(blocks).max(axis=1, keepdims=True) / 127).astype(np.float32)
    numbers = np.round(blocks / scales)
    expected = (numbers * scales.astype(np.float16).astype(np.float32)).reshape(tensors[name].shape)
    assert np.allclose(checkpoint.raw(name)[0], expected, rtol=1e-6, atol=0)
    assert not np.array_equal(expected, tensors[name])


def test_llama3_scaling_is_found_in_its_table(tmp_path: Path) -> None:
    config = dense_config(head_dim=32, rope_theta=500000.0, rope_scaling=SCALING)
    table = {"rope_freqs.weight": divisors(SCALING, 500000.0, 32)}
    assert len(set(table["rope_freqs.weight"].tolist())) > 2  # some pairs lie between
    write_gguf(tmp_path / "model.gguf", config, dense_tensors(config), extra=table)
    import_checkpoint(tmp_path / "model.gguf", tmp_path / "out")
    assert Checkpoint(tmp_path / "out").config == config


@pytest.mark.parametrize("wrong", [0, 8, 15])
def test_another_table_is_refused(tmp_path: Path, wrong: int) -> None:
    config = dense_config(head_dim=32, rope_theta=500000.0)
    table = divisors(SCALING, 500000.0, 32)
    table[wrong] *= 1.001
    extra = {"rope_freqs.weight": table}
    write_gguf(tmp_path / "model.gguf", config, dense_tensors(config), extra=extra)
    with pytest.raises(LaneformerError, match=r"rope_freqs\.weight is not the table of a published Llama-3"):
        import_checkpoint(tmp_path / "model.gguf", tmp_path / "out")


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"general__architecture": "gemma3"}, "architecture gemma3 is not supported; known: llama, qwen3"),
    ({"llama__expert_count": 8}, "a mixture of 8 experts is not supported"),
    ({"llama__rope__scaling__type": "yarn"}, "rope scaling of type 'yarn' is not supported"),
    ({"llama__rope__scaling__type": "linear"}, "rope scaling of type 'linear' is not supported"),
    ({"llama__attention__sliding_window": 8}, "unknown metadata llama.attention.sliding_window"),
    ({"llama__logit_scale": 0.5}, "unknown metadata llama.logit_scale"),
    ({"llama__rope__dimension_count": 2}, "rope.dimension_count (2) other than the head size (4)"),
    ({"llama__attention__value_length": 8}, "attention.value_length (8) other than the head size (4)"),
    ({"llama__attention__key_length": 5}, "attention.value_length (4) other than the head size (5)"),
    ({"llama__block_count": None}, "metadata llama.block_count is missing"),
    ({"llama__block_count": "two"}, "metadata llama.block_count has an unexpected value 'two'"),
    ({"llama__block_count": 3}, "tensor blk.2.attn_norm.weight is missing"),
    ({"llama__block_count": 1}, "unexpected tensor blk.1.attn_norm.weight"),
    ({"llama__feed_forward_length": 32}, "tensor blk.0.ffn_gate.weight has shape [64, 32]"),
    ({"llama__vocab_size": 300}, "the embedding has 260 rows, vocab_size is 300"),
    ({"split__count": 2}, "one part of a split GGUF file"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_what_is_not_supported_is_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    config = dense_config()
    write_gguf(tmp_path / "model.gguf", config, dense_tensors(config), **changes)
    with pytest.raises(LaneformerError) as caught:
        import_checkpoint(tmp_path / "model.gguf", tmp_path / "out")
    assert message in str(caught.value)
    assert str(tmp_path / "model.gguf") in str(caught.value)
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["model.gguf"]


def test_biases_and_values_that_are_not_finite_are_named(tmp_path: Path) -> None:
    config = dense_config()
    tensors = dense_tensors(config)
    bias = {"blk.0.attn_q.bias": np.ones(32, np.float32)}
    write_gguf(tmp_path / "bias.gguf", config, tensors, extra=bias)
    with pytest.raises(CheckpointError, match=r"unexpected tensor blk\.0\.attn_q\.bias"):
        import_checkpoint(tmp_path / "bias.gguf", tmp_path / "out")
    tensors["model.norm.weight"][3] = np.nan
    write_gguf(tmp_path / "nan.gguf", config, tensors)
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight holds 1 values that are NaN"):
        import_checkpoint(tmp_path / "nan.gguf", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kept", [0.0, 0.0001, 0.01, 0.05, 0.5, 0.999])
def test_a_truncated_file_is_one_clear_error(tmp_path: Path, kept: float) -> None:
    config = dense_config()
    path = write_gguf(tmp_path / "model.gguf", config, dense_tensors(config), **dunder(BYTE_LEVEL))
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * kept)])
    with pytest.raises(CheckpointError, match="truncated or not a GGUF file") as caught:
        import_checkpoint(path, tmp_path / "out")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("place", "damage", "message"),
    [
        (0, b"GGML", "it does not begin with GGUF"),
        (4, b"\0\0\0\3", "big-endian files are not supported"),
        (4, b"\1\0\0\0", "version 1; known: 2, 3"),
        (14, b"\1", r"281474976710\d+ entries"),  # a count of tensors that would take days to loop over
        (24, b"\xff\xff\xff", "it ends too early"),  # the length of the first name
    ],
)
def test_damage_of_the_head_is_found_at_once(tmp_path: Path, place: int, damage: bytes, message: str) -> None:
    config = dense_config()
    path = write_gguf(tmp_path / "model.gguf", config, dense_tensors(config))
    data = bytearray(path.read_bytes())
    data[place : place + len(damage)] = damage
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=message):
        import_checkpoint(path, tmp_path / "out")


def test_random_damage_is_an_error_or_harmless(tmp_path: Path) -> None:
    config = dense_config()
    path = write_gguf(tmp_path / "model.gguf", config, dense_tensors(config), **dunder(BYTE_LEVEL))
    data = bytearray(path.read_bytes())
    random = np.random.default_rng(0)
    refused = 0
    for _ in range(60):
        damaged = bytearray(data)
        for place in random.integers(4, 9000, size=3):  # in the metadata and the list of tensors
            damaged[place] = int(random.integers(256))
        path.write_bytes(damaged)
        try:
            import_checkpoint(path, tmp_path / "out", overwrite=True)
        except LaneformerError as error:
            assert "\n" not in str(error)
            refused += 1
    assert refused > 10


def test_other_files_are_no_gguf(tmp_path: Path) -> None:
    pytest.importorskip("gguf", reason="needs the gguf package")
    path = tmp_path / "model.gguf"
    path.write_text("a text")
    with pytest.raises(CheckpointError, match="truncated or not a GGUF file"):
        import_checkpoint(path, tmp_path / "out")
    with pytest.raises(CheckpointError, match="no such file or folder"):
        import_checkpoint(tmp_path / "nowhere", tmp_path / "out")


def test_without_the_package_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(LaneformerError, match=r"GGUF files need gguf: pip install 'laneformer\[import\]'"):
        import_checkpoint(tmp_path / "model.gguf", tmp_path / "out")


def dunder(values: dict[str, Any]) -> dict[str, Any]:
    """Metadata as keyword arguments."""
    return {name.replace(".", "__"): value for name, value in values.items()}
