"""The CPU back end against golden cases and the plain restatement; the same bits however it is run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from infer.backends import cpu_backend as cpu_backend_module
from infer.backends.cpu_backend import CpuBackend
from infer.backends.cpu_compile import ISA_FLAGS, chosen_isa
from infer.backends.numpy_backend import NumpyBackend
from infer.request import Request
from infer.sampling import log_probability
from laneformer.checkpoint import Checkpoint
from tests import plain_reference
from tests.golden_cases import CASES, OWN, answers, prompt_length, tolerance
from tests.infer.test_numpy_backend import CORNERS
from tests.plain_reference import reference_logits
from tests.tiny_models import RandomWeights, tiny_config, write_checkpoint

LENGTH = 40
# float32 rounding (6e-8) of logits of size about 5, over 10 modules of about 100 terms each.
TOLERANCE = 2e-5
WORKERS = (1, 2, 5)


def token_ids(vocab_size: int, length: int = LENGTH) -> list[int]:
    return np.random.default_rng(1).integers(vocab_size, size=length).tolist()


@pytest.mark.parametrize("folder", CASES)
def test_golden(folder: Path) -> None:
    golden, given = answers(folder), prompt_length(folder)
    greedy = golden["greedy"].tolist()
    request = Request(tuple(greedy[:given]), max_new_tokens=len(greedy) - given)
    first: list[np.ndarray] = []
    for workers in WORKERS:
        backend = CpuBackend(Checkpoint(folder), workers_per_lane=workers)
        logits = [backend.logits(ids.tolist()) for ids in golden["input_ids"]]
        for found, expected in zip(logits, golden["logits"], strict=True):
            assert np.abs(found - expected).max() < tolerance(folder)
        assert [token_id for token_id, _ in backend.decode(request)] == greedy[given:]
        first = first or logits
        for found, other in zip(logits, first, strict=True):
            np.testing.assert_array_equal(found, other, err_msg=f"{workers} workers per lane")


@pytest.mark.parametrize("corner", CORNERS)
def test_equals_the_plain_restatement(corner: str) -> None:
    weights = RandomWeights(tiny_config(**CORNERS[corner]))
    ids = token_ids(weights.config.vocab_size)
    expected = reference_logits(weights.config, weights.tensors, ids)
    found = CpuBackend(weights, workers_per_lane=3).logits(ids)
    scale = max(1.0, float(np.abs(expected).max()) / 5)
    assert np.abs(found - expected).max() < TOLERANCE * scale


ODD_SHAPES: dict[str, dict[str, Any]] = {
    "no multiple of anything": {
        "hidden_size": 33,
        "head_dim": 10,
        "num_lanes": 1,
        "num_attention_heads": 5,
        "num_key_value_heads": 1,
        "intermediate_size": 71,
        "vocab_size": 37,
    },
    "head of 80": {"head_dim": 80},
    "tiny": {
        "hidden_size": 2,
        "head_dim": 2,
        "num_lanes": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "intermediate_size": 2,
        "vocab_size": 5,
    },
}


@pytest.mark.parametrize("shape", ODD_SHAPES)
def test_odd_shapes_and_more_workers_than_rows(shape: str) -> None:
    weights = RandomWeights(tiny_config(**ODD_SHAPES[shape]))
    ids = token_ids(weights.config.vocab_size)
    expected = reference_logits(weights.config, weights.tensors, ids)
    logits = [CpuBackend(weights, workers_per_lane=workers).logits(ids) for workers in (1, 7)]
    scale = max(1.0, float(np.abs(expected).max()) / 5)
    assert np.abs(logits[0] - expected).max() < TOLERANCE * scale
    np.testing.assert_array_equal(*logits)


def test_chunks_of_a_prompt_change_no_bit() -> None:
    weights = RandomWeights(tiny_config())
    ids = token_ids(weights.config.vocab_size, length=60)
    whole, *others = [CpuBackend(weights, chunk=chunk).logits(ids) for chunk in (64, 7, 1)]
    for other in others:
        np.testing.assert_array_equal(whole, other)


def test_instruction_sets_give_the_same_bits() -> None:
    weights = RandomWeights(tiny_config())
    ids = token_ids(weights.config.vocab_size)
    isas = list(ISA_FLAGS)[list(ISA_FLAGS).index(chosen_isa()) :]  # narrower ones run here too
    first, *others = [CpuBackend(weights, isa=isa).logits(ids) for isa in isas]
    for isa, other in zip(isas[1:], others, strict=True):
        np.testing.assert_array_equal(first, other, err_msg=isa)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_16_bit_weights_equal_their_float32_values(tmp_path: Path, dtype: str) -> None:
    config = tiny_config(tie_word_embeddings=True)
    tensors = RandomWeights(config).tensors
    tensors["model.layers.0.feed_forward.w1.weight"][0, 0, :4] = [1e-5, -3e-6, 6e-8, 0]  # subnormal in fp16
    folder = write_checkpoint(
        tmp_path / "model", config, dtypes=dict.fromkeys(tensors, dtype), tensors=tensors
    )
    weights = Checkpoint(folder)
    wide = RandomWeights(config)
    wide.tensors = {name: weights.float32(name) for name in weights.names}
    ids = token_ids(config.vocab_size)
    narrow = CpuBackend(weights)
    np.testing.assert_array_equal(narrow.logits(ids), CpuBackend(wide).logits(ids))
    np.testing.assert_array_equal(
        CpuBackend(weights, isa="portable").logits(ids), CpuBackend(wide).logits(ids)
    )
    streamed = sum(weights.raw(name).size for name in weights.names if "norm" not in name) * 2
    assert narrow.weight_bytes_per_token is not None
    assert streamed <= narrow.weight_bytes_per_token < 2 * streamed


def test_types_may_be_mixed(tmp_path: Path) -> None:
    config = tiny_config()
    tensors = RandomWeights(config).tensors
    dtypes = {name: ("float32", "bfloat16", "float16")[place % 3] for place, name in enumerate(tensors)}
    weights = Checkpoint(write_checkpoint(tmp_path / "model", config, dtypes=dtypes, tensors=tensors))
    ids = token_ids(config.vocab_size)
    expected = NumpyBackend(weights).logits(ids)
    assert np.abs(CpuBackend(weights).logits(ids) - expected).max() < TOLERANCE


def test_norm_of_queries_and_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = RandomWeights(tiny_config())
    config, ids = weights.config, token_ids(weights.config.vocab_size)
    scale = np.linspace(0.5, 1.5, config.head_size, dtype=np.float32)
    table = np.broadcast_to(scale, (config.num_hidden_layers, 2, config.head_size)).copy()
    monkeypatch.setattr(cpu_backend_module, "head_norm_table", lambda *_: table)
    turned = plain_reference._turned

    def normed_and_turned(config: Any, x: np.ndarray) -> np.ndarray:
        normed = x / np.sqrt((x**2).mean(axis=1, keepdims=True) + config.norm_eps)
        return turned(config, normed * scale)

    monkeypatch.setattr(plain_reference, "_turned", normed_and_turned)
    expected = reference_logits(config, weights.tensors, ids)
    assert np.abs(CpuBackend(weights).logits(ids) - expected).max() < TOLERANCE


SAMPLING: dict[str, dict[str, Any]] = {
    "greedy": {},
    "greedy, penalised": {"repetition_penalty": 1.3},
    "temperature": {"temperature": 0.8},
    "cold": {"temperature": 1e-3},
    "top-k": {"temperature": 1.0, "top_k": 5},
    "top-k beyond the vocabulary": {"temperature": 1.5, "top_k": 10**12},
    "top-p": {"temperature": 1.0, "top_p": 0.7},
    "tiny top-p": {"temperature": 1.0, "top_p": 1e-9},
    "min-p": {"temperature": 1.0, "min_p": 0.1},
    "everything": {
        "temperature": 0.9,
        "top_k": 40,
        "top_p": 0.9,
        "min_p": 0.02,
        "repetition_penalty": 1.2,
    },
    "penalty below 1": {"temperature": 0.9, "repetition_penalty": 0.8},
}


@pytest.mark.parametrize("settings", SAMPLING)
def test_samples_the_tokens_of_the_numpy_back_end(settings: str) -> None:
    weights = RandomWeights(tiny_config())
    cpu, reference = CpuBackend(weights), NumpyBackend(weights)
    for seed in range(5):
        request = Request((1, 2, 3, 4, 5), max_new_tokens=40, seed=seed, **SAMPLING[settings])
        found, expected = list(cpu.decode(request)), list(reference.decode(request))
        assert [token_id for token_id, _ in found] == [token_id for token_id, _ in expected]
        np.testing.assert_allclose([p for _, p in found], [p for _, p in expected], atol=TOLERANCE)


def test_ties_go_to_the_lowest_id() -> None:
    weights = RandomWeights(tiny_config())
    weights.tensors["lm_head.weight"][:] = 0  # all logits are equal
    cpu, reference = CpuBackend(weights), NumpyBackend(weights)
    for values in ({}, {"temperature": 1.0, "top_k": 3}, {"temperature": 1.0, "top_p": 0.5}):
        request = Request((1, 2), max_new_tokens=20, **values)
        assert [t for t, _ in cpu.decode(request)] == [t for t, _ in reference.decode(request)]


def test_decode_follows_the_logits() -> None:
    weights = RandomWeights(tiny_config())
    backend, ids = CpuBackend(weights), token_ids(weights.config.vocab_size)
    out = list(backend.decode(Request(tuple(ids[:20]), max_new_tokens=40)))
    logits = backend.logits(ids[:20] + [token_id for token_id, _ in out[:-1]])[19:]
    assert [token_id for token_id, _ in out] == logits.argmax(axis=1).tolist()
    expected = [log_probability(row, token_id) for row, (token_id, _) in zip(logits, out, strict=True)]
    np.testing.assert_allclose([logprob for _, logprob in out], expected, atol=1e-6)


def test_decode_ends_at_a_stop_token_and_at_the_context() -> None:
    weights = RandomWeights(tiny_config())
    backend, ids = CpuBackend(weights), tuple(token_ids(weights.config.vocab_size))
    out = [token_id for token_id, _ in backend.decode(Request(ids, max_new_tokens=1000))]
    assert len(out) == weights.config.max_position_embeddings - LENGTH
    stop = frozenset({out[2], 10**12})
    stopped = [token_id for token_id, _ in backend.decode(Request(ids, 9, stop_token_ids=stop))]
    assert stopped == out[: out.index(out[2]) + 1]
    assert list(backend.decode(Request(ids, max_new_tokens=0))) == []
    whole = Request(tuple(token_ids(weights.config.vocab_size, length=63)), max_new_tokens=5)
    assert len(list(backend.decode(whole))) == 1


def test_large_gates_stay_finite() -> None:
    weights = RandomWeights(tiny_config())
    for name in weights.names:
        if ".w1." in name:
            weights.tensors[name] *= 1000
    expected = NumpyBackend(weights).logits([1, 2, 3])
    np.testing.assert_allclose(CpuBackend(weights).logits([1, 2, 3]), expected, rtol=1e-4, atol=1e-3)


def test_tolerance_bites_when_the_delayed_outputs_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = OWN / "delayed_sliding"
    golden = answers(folder)
    whole = cpu_backend_module.plan_tables

    def without_late_outputs(*arguments: Any) -> Any:
        tables = whole(*arguments)
        tables.phase[:, 4] = np.where(tables.phase[:, 2] == 1, -1, tables.phase[:, 4])
        return tables

    monkeypatch.setattr(cpu_backend_module, "plan_tables", without_late_outputs)
    logits = CpuBackend(Checkpoint(folder)).logits(golden["input_ids"][0].tolist())
    assert np.abs(logits - golden["logits"][0]).max() > tolerance(folder)
