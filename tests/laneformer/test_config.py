"""Reading and checking config.json."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from laneformer.config import LaneformerConfig, ResidualMode
from laneformer.errors import ConfigError
from laneformer.parameters import parameter_count

RELEASE: dict[str, Any] = {
    "model_type": "laneformer",
    "hidden_size": 3072,
    "num_hidden_layers": 15,
    "num_attention_heads": 32,
    "num_key_value_heads": 16,
    "intermediate_size": 12288,
    "max_position_embeddings": 4096,
    "vocab_size": 32000,
    "rope_theta": 10000.0,
    "norm_eps": 1e-5,
    "num_lanes": 8,
    "broadcast_delay": 2,
    "use_attention_comm": True,
    "use_mlp_comm": True,
    "use_early_comm": True,
    "lm_head_type": "replicate",
    "pre_norm_lane_agg": False,
    "replicated_rmsn_scale": True,
    "tie_word_embeddings": False,
    "sliding_window": 512,
    "swa_layers": list(range(10)),
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "bfloat16",
}
OLDER = {
    name: value
    for name, value in RELEASE.items()
    if name not in ("use_attention_comm", "use_mlp_comm", "swa_layers")
} | {"model_type": "laneformer_tp", "use_comm": True, "sliding_window_n_layers": 10}


def test_release_shape_has_the_published_number_of_parameters() -> None:
    assert parameter_count(LaneformerConfig.from_dict(RELEASE)) == 2_320_069_632


def test_both_dialects_mean_the_same() -> None:
    assert LaneformerConfig.from_dict(OLDER) == LaneformerConfig.from_dict(RELEASE)


def test_written_config_is_read_back() -> None:
    for changes in (
        {},
        {"eos_token_id": [2, 7]},
        {"head_dim": 64},
        {"rope_scaling": LLAMA3},
        {"qk_norm": True},
    ):
        config = LaneformerConfig.from_dict(RELEASE | changes)
        assert LaneformerConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 1024,
}


@pytest.mark.parametrize(
    ("count", "full", "expected"),
    [
        (3, [], (0, 1, 2)),
        (-2, [], (13, 14)),
        (4, [1, 2], (0, 3)),
        (0, [], ()),
        (-15, [0], tuple(range(1, 15))),
    ],
)
def test_older_sliding_layers(count: int, full: list[int], expected: tuple[int, ...]) -> None:
    values = OLDER | {"sliding_window_n_layers": count, "unclamped_layers": full}
    assert LaneformerConfig.from_dict(values).sliding_layers == expected


def test_one_dialects_switch_covers_both_modules() -> None:
    config = LaneformerConfig.from_dict(OLDER | {"use_comm": False})
    assert not config.use_attention_comm
    assert not config.use_mlp_comm


@pytest.mark.parametrize(
    ("changes", "layer", "module", "expected"),
    [
        ({}, 0, "attention", ResidualMode.PRESENT),
        ({}, 1, "feed_forward", ResidualMode.PRESENT),
        ({}, 2, "attention", ResidualMode.PAST),
        ({"use_early_comm": False}, 1, "attention", ResidualMode.INDEPENDENT),
        ({"use_attention_comm": False}, 2, "attention", ResidualMode.INDEPENDENT),
        ({"use_attention_comm": False}, 2, "feed_forward", ResidualMode.PAST),
        ({"use_attention_comm": False}, 1, "attention", ResidualMode.PRESENT),
        ({"broadcast_delay": 0}, 0, "attention", ResidualMode.PRESENT),
        ({"broadcast_delay": 0, "use_mlp_comm": False}, 0, "feed_forward", ResidualMode.INDEPENDENT),
        ({"broadcast_delay": 20}, 14, "attention", ResidualMode.PRESENT),
    ],
)
def test_residual_modes(changes: dict[str, Any], layer: int, module: Any, expected: ResidualMode) -> None:
    assert LaneformerConfig.from_dict(RELEASE | changes).residual_mode(layer, module) is expected


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_lanes": 3}, "num_lanes (3) does not divide num_attention_heads (32)"),
        ({"num_lanes": 32}, "num_lanes (32) does not divide num_key_value_heads (16)"),
        ({"intermediate_size": 12290}, "does not divide intermediate_size (12290)"),
        ({"num_key_value_heads": 24}, "num_key_value_heads (24) does not divide"),
        ({"hidden_size": 3080}, "does not divide hidden_size (3080)"),
        ({"head_dim": 95}, "even head size, found 95"),
        ({"lm_head_type": "vocab_parallel", "vocab_size": 32001}, "does not divide vocab_size (32001)"),
        ({"lm_head_type": "mean"}, "lm_head_type must be one of"),
        ({"lm_head_type": "lane", "pre_norm_lane_agg": True}, "pre_norm_lane_agg needs"),
        ({"lm_head_type": "lane", "tie_word_embeddings": True}, "cannot be tied"),
        ({"swa_layers": [15]}, "sliding layer 15 is outside the 15 layers"),
        ({"swa_layers": "0-9"}, "swa_layers must be a list"),
        ({"sliding_window": None}, "sliding_window is not given"),
        ({"sliding_window_n_layers": 4}, "keys disagree: swa_layers"),
        ({"use_comm": False}, "keys disagree: use_comm=False, use_attention_comm=True"),
        ({"broadcast_delay": -1}, "broadcast_delay must be at least 0"),
        ({"num_hidden_layers": 0}, "num_hidden_layers must be at least 1"),
        ({"hidden_size": "3072"}, "hidden_size must be a whole number"),
        ({"norm_eps": float("nan")}, "norm_eps must be a finite number"),
        ({"use_early_comm": 1}, "use_early_comm must be true or false"),
        ({"eos_token_id": 32000}, "eos_token_id[0] (32000) is outside the vocabulary"),
        ({"torch_dtype": "int8"}, "dtype must be one of"),
        ({"qk_norm": "yes"}, "qk_norm must be true or false"),
        ({"hidden_act": "gelu"}, "hidden_act: only 'silu' is supported"),
        ({"attention_bias": True}, "attention_bias"),
        ({"logit_softcap": 30.0}, "unknown key logit_softcap"),
        ({"model_type": "llama"}, "model_type 'llama'"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "type 'yarn' is not supported"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 2.0}}, "rope_scaling"),
        ({"rope_scaling": LLAMA3 | {"high_freq_factor": 1.0}}, "must be above low_freq_factor"),
        ({"num_hidden_layers": 3_000_000}, "num_hidden_layers must be at most 10000"),
        (
            {"num_hidden_layers": 10**15, "swa_layers": None, "sliding_window_n_layers": 10**15},
            "at most 10000",
        ),
        ({"hidden_size": 10**4000}, "hidden_size must be at most"),
        ({"max_position_embeddings": 1e12}, "max_position_embeddings must be a whole number"),
        ({"rope_theta": 10**400}, "rope_theta must be a finite number"),
        ({"rope_theta": 1e300}, "rope_theta must be from 1 to 1e+30, found 1e+300"),
        ({"rope_theta": 1e-9}, "rope_theta must be from 1 to 1e+30, found 1e-09"),
        ({"norm_eps": 1e-300}, "norm_eps must be from 1e-30 to 1e+30"),
        ({"rope_scaling": LLAMA3 | {"factor": 1e300}}, "rope_scaling.factor must be from"),
        ({"eos_token_id": 2.5}, "eos_token_id must be a token id or a list of them, found 2.5"),
        ({"eos_token_id": {"a": 1}}, "eos_token_id must be a token id"),
        ({"eos_token_id": [2.5]}, "eos_token_id[0] must be a whole number, found 2.5"),
        ({"unclamped_layers": [[1]]}, "unclamped_layers must be a list of layer indices, found [[1]]"),
        ({"unclamped_layers": 3}, "unclamped_layers must be a list of layer indices, found 3"),
        ({"swa_layers": [{}]}, "swa_layers must be a list of layer indices"),
        (
            {"rope_parameters": {"rope_type": "default", "rope_theta": 500000}},
            "keys disagree: rope_theta=10000.0, rope_parameters.rope_theta=500000",
        ),
    ],
)
def test_bad_values_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        LaneformerConfig.from_dict(RELEASE | changes)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_bookkeeping_of_other_software_is_accepted() -> None:
    extra = {"architectures": ["X"], "transformers_version": "4.57", "use_cache": True, "auto_map": {}}
    neutral = {"hidden_act": "silu", "attention_bias": False, "attention_dropout": 0.0}
    assert LaneformerConfig.from_dict(RELEASE | extra | neutral) == LaneformerConfig.from_dict(RELEASE)


def test_rope_theta_may_be_in_either_place_or_the_same_in_both() -> None:
    inner = {"rope_parameters": {"rope_type": "default", "rope_theta": 500000}}
    without = {name: value for name, value in RELEASE.items() if name != "rope_theta"}
    assert LaneformerConfig.from_dict(without | inner).rope_theta == 500000
    assert LaneformerConfig.from_dict(RELEASE | inner | {"rope_theta": 500000.0}).rope_theta == 500000


def test_missing_key_is_named() -> None:
    values = {name: value for name, value in RELEASE.items() if name != "hidden_size"}
    with pytest.raises(ConfigError, match="required key missing: hidden_size"):
        LaneformerConfig.from_dict(values)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "no such file"),
        ("{", "cannot be read"),
        ("[]", "object"),
        ('{"a": ' * 10**5, "nested too deep"),
        ('{"hidden_size": ' + "9" * 5000 + "}", "cannot be read as JSON"),
        ('{"num_lanes": 2, "num_lanes": 4}', "key 'num_lanes' is given twice"),
        ('{"rope_scaling": {"factor": 2, "factor": 4}}', "key 'factor' is given twice"),
    ],
)
def test_unreadable_files_are_named(tmp_path: Path, text: str | None, message: str) -> None:
    path = tmp_path / "config.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        LaneformerConfig.from_file(path)
    assert str(path) in str(caught.value)


def test_configuration_needs_no_torch() -> None:
    code = "import sys; sys.modules['torch'] = None; from laneformer import LaneformerConfig"
    subprocess.run([sys.executable, "-c", code], check=True)
