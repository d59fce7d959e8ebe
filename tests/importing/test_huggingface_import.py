"""Hugging Face folders become checkpoints that compute the same, or are refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from infer import Engine
from laneformer import LaneformerForCausalLM
from laneformer.checkpoint import Checkpoint
from laneformer.config import RopeScaling
from laneformer.errors import CheckpointError, ConfigError, LaneformerError, TokenizerError
from laneformer.importing import import_checkpoint
from laneformer.tokenizer import Tokenizer
from tests.importing.dense_models import (
    as_type,
    dense_config,
    dense_tensors,
    in_halves,
    their_name,
    write_huggingface,
    write_tensors,
)
from tests.plain_reference import reference_logits
from tests.tiny_models import RandomWeights, byte_fallback_tokenizer, byte_level_tokenizer

GOLDEN = Path(__file__).parent / "golden"
TOLERANCE = 1e-4  # logits of size 4 in float32: hundreds of roundings of 2**-24
CORNERS: dict[str, dict[str, Any]] = {
    "llama": {},
    "tied": {"tie_word_embeddings": True},
    "one key head per query head": {"num_key_value_heads": 8},
    "head_dim": {"head_dim": 6},
    "stretched": {"rope_scaling": RopeScaling(8.0, 1.0, 4.0, 32), "rope_theta": 500000.0},
    "qwen3": {"qk_norm": True, "head_dim": 10, "tie_word_embeddings": True},
}


@pytest.mark.parametrize("lanes", [1, 2])
@pytest.mark.parametrize("name", ["llama", "qwen3"])
@torch.no_grad()
def test_logits_are_those_of_transformers(tmp_path: Path, name: str, lanes: int) -> None:
    import_checkpoint(GOLDEN / name, tmp_path / "out", lanes=lanes)
    golden = load_file(GOLDEN / name / "expected.safetensors")
    model = LaneformerForCausalLM.from_pretrained(tmp_path / "out")
    found = model(torch.from_numpy(golden["input_ids"])).numpy()
    assert np.abs(found - golden["logits"]).max() < TOLERANCE
    engine = Engine(tmp_path / "out", backend="numpy")
    for ids, expected in zip(golden["input_ids"], golden["logits"], strict=True):
        assert np.abs(engine.logits(ids.tolist()) - expected).max() < TOLERANCE


def test_the_golden_comparison_notices_the_order_of_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("laneformer.importing.huggingface.interleave_pairs", lambda values, _: values)
    golden = load_file(GOLDEN / "llama" / "expected.safetensors")
    import_checkpoint(GOLDEN / "llama", tmp_path / "out")
    found = Engine(tmp_path / "out", backend="numpy").logits(golden["input_ids"][0].tolist())
    assert np.abs(found - golden["logits"][0]).max() > 100 * TOLERANCE


@pytest.mark.parametrize("corner", CORNERS)
def test_one_lane_gives_every_bit_back(tmp_path: Path, corner: str) -> None:
    config = dense_config(**CORNERS[corner])
    tensors = dense_tensors(config)
    write_huggingface(tmp_path / "in", config, tensors)
    summary = import_checkpoint(tmp_path / "in", tmp_path / "out")
    checkpoint = Checkpoint(tmp_path / "out")
    assert replace(checkpoint.config, head_dim=None) == replace(config, head_dim=None)
    assert checkpoint.config.head_size == config.head_size
    assert summary.tensors == len(tensors)
    for name in checkpoint.names:
        found = checkpoint.raw(name)
        assert np.array_equal(found[0] if found.ndim == 3 else found, tensors[name]), name


@pytest.mark.parametrize("lanes", [2, 4])
@pytest.mark.parametrize("corner", CORNERS)
def test_lanes_keep_the_function(tmp_path: Path, corner: str, lanes: int) -> None:
    config = dense_config(**CORNERS[corner])
    tensors = dense_tensors(config)
    write_huggingface(tmp_path / "in", config, tensors)
    import_checkpoint(tmp_path / "in", tmp_path / "out", lanes=lanes)
    found = Checkpoint(tmp_path / "out").config
    assert (found.num_lanes, found.broadcast_delay, found.lm_head_type) == (lanes, 0, "replicate")
    ids = np.random.default_rng(1).integers(config.vocab_size, size=20).tolist()
    expected = reference_logits(config, RandomWeights(config).tensors, ids)
    logits = Engine(tmp_path / "out", backend="numpy").logits(ids)
    assert np.abs(logits - expected).max() < 1e-5 * max(1.0, np.abs(expected).max())


@pytest.mark.parametrize("stored", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("asked", ["keep", "float32", "float16", "bfloat16"])
def test_types(tmp_path: Path, stored: str, asked: str) -> None:
    config = dense_config()
    tensors = dense_tensors(config)
    write_huggingface(tmp_path / "in", config, tensors, dtype=stored)
    summary = import_checkpoint(tmp_path / "in", tmp_path / "out", dtype=asked)
    dtype = stored if asked == "keep" else asked
    checkpoint = Checkpoint(tmp_path / "out")
    assert summary.dtype == checkpoint.config.dtype == dtype
    name = "model.layers.1.attention.wq.weight"
    values = as_type(tensors[name], stored)
    if stored == "bfloat16":
        values = (values.astype(np.uint32) << 16).view(np.float32)
    assert checkpoint.dtype(name) == dtype
    assert np.array_equal(checkpoint.raw(name)[0], as_type(values.astype(np.float32), dtype))


def test_norms_in_float32_join_their_matrices_where_nothing_is_lost(tmp_path: Path) -> None:
    config = dense_config()
    tensors = dense_tensors(config)
    folder = write_huggingface(tmp_path / "in", config, tensors, dtype="float16")
    tensors["model.norm.weight"][:] = 1.5
    theirs = {their_name(name, 0): values for name, values in in_halves(config, tensors).items()}
    (folder / "model.safetensors").unlink()
    norms = {name: values for name, values in theirs.items() if values.ndim == 1}
    write_tensors(folder / "a.safetensors", norms)
    matrices = {name: values for name, values in theirs.items() if values.ndim == 2}
    write_tensors(folder / "b.safetensors", matrices, "float16")
    index = {"weight_map": dict.fromkeys(norms, "a.safetensors") | dict.fromkeys(matrices, "b.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    summary = import_checkpoint(folder, tmp_path / "out")
    checkpoint = Checkpoint(tmp_path / "out")
    assert (summary.dtype, checkpoint.config.dtype) == ("mixed", "float16")
    assert checkpoint.dtype("model.norm.weight") == "float16"
    assert checkpoint.dtype("model.layers.0.ffn_norm.weight") == "float32"
    assert np.array_equal(
        checkpoint.raw("model.layers.0.ffn_norm.weight"), tensors["model.layers.0.ffn_norm.weight"]
    )


def test_large_models_are_written_in_shards(tmp_path: Path) -> None:
    config = dense_config()
    tensors = dense_tensors(config)
    write_huggingface(tmp_path / "in", config, tensors)
    import_checkpoint(tmp_path / "in", tmp_path / "out", lanes=2, max_shard_bytes=20_000)
    assert len(list((tmp_path / "out").glob("model-*-of-*.safetensors"))) > 3
    checkpoint = Checkpoint(tmp_path / "out")
    rows = checkpoint.raw("model.layers.1.feed_forward.w2.weight")
    assert np.array_equal(
        np.concatenate(list(rows), axis=1), tensors["model.layers.1.feed_forward.w2.weight"]
    )


def test_a_tied_head_may_be_stored_twice_if_it_is_the_same(tmp_path: Path) -> None:
    config = dense_config(tie_word_embeddings=True)
    tensors = dense_tensors(config)
    tensors["lm_head.weight"] = tensors["model.tok_embeddings.weight"].copy()
    write_huggingface(tmp_path / "in", config, tensors)
    import_checkpoint(tmp_path / "in", tmp_path / "out")
    assert "lm_head.weight" not in Checkpoint(tmp_path / "out").names
    tensors["lm_head.weight"][0, 0] += 1
    write_huggingface(tmp_path / "in", config, tensors)
    with pytest.raises(CheckpointError, match=r"lm_head\.weight differs"):
        import_checkpoint(tmp_path / "in", tmp_path / "out2")


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"architectures": ["MistralForCausalLM"], "sliding_window": 4096}, "architecture MistralForCausalLM"),
    ({"architectures": ["GemmaForCausalLM"]}, "architecture GemmaForCausalLM is not supported"),
    ({"architectures": ["PhiForCausalLM"]}, "architecture PhiForCausalLM is not supported"),
    ({"architectures": ["MixtralForCausalLM"]}, "architecture MixtralForCausalLM is not supported"),
    ({"architectures": None}, "architectures must name one class"),
    ({"attention_bias": True}, "attention_bias: only False is supported"),
    ({"mlp_bias": True}, "mlp_bias: only False is supported"),
    ({"hidden_act": "gelu"}, "hidden_act: only 'silu' is supported"),
    ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope_scaling of type 'yarn' is not supported"),
    ({"rope_scaling": {"type": "dynamic", "factor": 4.0}}, "type 'dynamic' is not supported"),
    ({"rope_scaling": {"type": "linear", "factor": 4.0}}, "type 'linear' is not supported"),
    ({"partial_rotary_factor": 0.5}, "partial_rotary_factor: only 1 is supported"),
    (
        {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}, "rope_scaling": None},
        "partial_rotary_factor: only 1 is supported",
    ),
    ({"rope_interleaved": True}, "rope_interleaved: only False is supported"),
    ({"qk_norm": True}, "qk_norm: not a key of LlamaForCausalLM"),
    ({"quantization_config": {"quant_method": "gptq"}}, "weights quantized by 'gptq' are not supported"),
    ({"sliding_window": 4096}, "sliding_window (4096): sliding attention is not supported"),
    ({"use_sliding_window": True, "sliding_window": 8}, "sliding_window (8): sliding attention"),
    ({"layer_types": ["full_attention", "sliding_attention"]}, "only 'full_attention' is supported"),
    ({"num_local_experts": 8}, "unknown key num_local_experts"),
    ({"logit_scale": 2.0}, "unknown key logit_scale"),
    ({"hidden_size": None}, "required key missing: hidden_size"),
    ({"num_hidden_layers": 3}, "tensor model.layers.2.input_layernorm.weight is missing"),
    ({"vocab_size": 300}, "tensor model.embed_tokens.weight has shape [260, 32]"),
    ({"tie_word_embeddings": True}, "lm_head.weight differs from model.embed_tokens.weight"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_what_is_not_supported_is_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    config = dense_config()
    write_huggingface(tmp_path / "in", config, dense_tensors(config), **changes)
    with pytest.raises(LaneformerError) as caught:
        import_checkpoint(tmp_path / "in", tmp_path / "out")
    assert message in str(caught.value)
    assert str(tmp_path / "in") in str(caught.value)
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def change_tensors(change: Callable[[dict[str, np.ndarray]], object]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        config = dense_config()
        theirs = {their_name(name, 0): values for name, values in dense_tensors(config).items()}
        change(theirs)
        write_tensors(folder / "model.safetensors", theirs)

    return damage


def poison(tensors: dict[str, np.ndarray]) -> None:
    tensors["model.layers.1.mlp.up_proj.weight"][3, 4] = np.inf


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing tensor": (
        change_tensors(lambda t: t.pop("model.layers.1.self_attn.k_proj.weight")),
        "tensor model.layers.1.self_attn.k_proj.weight is missing",
    ),
    "bias": (
        change_tensors(lambda t: t.update({"model.layers.0.self_attn.q_proj.bias": np.ones(32, np.float32)})),
        "unexpected tensor model.layers.0.self_attn.q_proj.bias",
    ),
    "not finite": (change_tensors(poison), "w3.weight holds 1 values that are NaN or infinite"),
    "truncated": (
        lambda f: (f / "model.safetensors").write_bytes((f / "model.safetensors").read_bytes()[:-10]),
        "truncated or not a safetensors file",
    ),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "neither model.safetensors nor"),
    "no config": (lambda f: (f / "config.json").unlink(), "no config.json"),
    "broken config": (lambda f: (f / "config.json").write_text("{"), "cannot be read as JSON"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_damage_is_named_and_leaves_nothing(tmp_path: Path, case: str) -> None:
    config = dense_config()
    write_huggingface(tmp_path / "in", config, dense_tensors(config))
    damage, message = DAMAGE[case]
    damage(tmp_path / "in")
    with pytest.raises(LaneformerError) as caught:
        import_checkpoint(tmp_path / "in", tmp_path / "out")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_values_too_large_for_float16_are_an_error(tmp_path: Path) -> None:
    config = dense_config()
    tensors = dense_tensors(config)
    tensors["model.layers.0.attention.wo.weight"][0, 0] = 1e6
    write_huggingface(tmp_path / "in", config, tensors)
    with pytest.raises(CheckpointError, match=r"wo\.weight holds 1 values too large for float16"):
        import_checkpoint(tmp_path / "in", tmp_path / "out", dtype="float16")
    assert not (tmp_path / "out").exists()


def test_lanes_that_do_not_divide_are_told_which_do(tmp_path: Path) -> None:
    config = dense_config(num_attention_heads=6, num_key_value_heads=6, intermediate_size=64, head_dim=4)
    write_huggingface(tmp_path / "in", config, dense_tensors(config))
    with pytest.raises(ConfigError, match=r"4 lanes do not divide num_key_value_heads \(6\).*can have 1, 2$"):
        import_checkpoint(tmp_path / "in", tmp_path / "out", lanes=4)
    with pytest.raises(ConfigError, match="--lanes must be at least 1"):
        import_checkpoint(tmp_path / "in", tmp_path / "out", lanes=0)


def test_old_leftovers_and_newer_spellings_are_accepted(tmp_path: Path) -> None:
    config = dense_config(rope_scaling=RopeScaling(8.0, 1.0, 4.0, 32), rope_theta=500.0)
    tensors = dense_tensors(config)
    newer = {
        "rope_scaling": None,
        "rope_theta": None,
        "torch_dtype": None,
        "dtype": "float32",
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 500.0,
            "partial_rotary_factor": 1.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
        "use_sliding_window": False,
        "sliding_window": 4096,
        "max_window_layers": 28,
        "layer_types": ["full_attention"] * 2,
        "pretraining_tp": 1,
    }
    folder = write_huggingface(tmp_path / "in", config, tensors, **newer)
    theirs = {their_name(name, 0): values for name, values in in_halves(config, tensors).items()}
    theirs["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(2, np.float32)
    write_tensors(folder / "model.safetensors", theirs)
    import_checkpoint(folder, tmp_path / "out")
    assert Checkpoint(tmp_path / "out").config == config


def test_generation_config_says_what_ends_an_answer(tmp_path: Path) -> None:
    config = dense_config()
    folder = write_huggingface(tmp_path / "in", config, dense_tensors(config), eos_token_id=2)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 9]}))
    import_checkpoint(folder, tmp_path / "out")
    assert Checkpoint(tmp_path / "out").config.eos_token_ids == (7, 9)


@pytest.mark.parametrize("stated", [None, True, False])
def test_the_tokenizer_comes_along(tmp_path: Path, stated: bool | None) -> None:
    config = dense_config()
    tokenizer = byte_level_tokenizer("{{ bos_token }}{{ messages[0].content }}")
    folder = write_huggingface(tmp_path / "in", config, dense_tensors(config), tokenizer=tokenizer)
    settings = json.loads((folder / "tokenizer_config.json").read_text()) | {"model_max_length": 99}
    if stated is not None:
        settings["add_bos_token"] = stated
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    summary = import_checkpoint(folder, tmp_path / "out")
    found = Tokenizer.from_folder(tmp_path / "out")
    assert summary.tokenizer_ids == 260
    assert found.chat_template == tokenizer.chat_template
    # Without the key it is the post-processor that adds BOS, and this tokenizer has none.
    assert found.encode("hello") == [*([found.bos_id] if stated else []), *tokenizer.encode("hello")[1:]]
    assert (tmp_path / "out" / "tokenizer.json").read_bytes() == (folder / "tokenizer.json").read_bytes()


def test_a_post_processor_that_adds_bos_is_noticed(tmp_path: Path) -> None:
    from tokenizers.processors import TemplateProcessing

    config = dense_config()
    tokenizer = byte_level_tokenizer()
    tokenizer.library_tokenizer.post_processor = TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", tokenizer.bos_id)]
    )
    folder = write_huggingface(tmp_path / "in", config, dense_tensors(config), tokenizer=tokenizer)
    import_checkpoint(folder, tmp_path / "out")
    found = Tokenizer.from_folder(tmp_path / "out")
    assert found.encode("hello") == tokenizer.library_tokenizer.encode("hello").ids


def test_a_tokenizer_of_another_model_is_refused(tmp_path: Path) -> None:
    config = dense_config()
    folder = write_huggingface(
        tmp_path / "in", config, dense_tensors(config), tokenizer=byte_fallback_tokenizer()
    )
    with pytest.raises(TokenizerError, match="ids up to 267, the model's vocab_size is 260"):
        import_checkpoint(folder, tmp_path / "out")
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(TokenizerError, match=r"not a tokenizer\.json"):
        import_checkpoint(folder, tmp_path / "out")
    (folder / "tokenizer.json").rename(folder / "tokenizer.model")
    with pytest.raises(TokenizerError, match=r"tokenizer\.model without tokenizer\.json"):
        import_checkpoint(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()
