"""The numpy back end against a plain restatement of the architecture, in every corner of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from infer.backends.numpy_backend import Exchange, NumpyBackend
from infer.request import Request
from infer.sampling import log_probability
from laneformer.config import RopeScaling
from tests.plain_reference import reference_logits
from tests.tiny_models import RandomWeights, tiny_config

CORNERS: dict[str, dict[str, Any]] = {
    "delayed": {},
    "dense": {"num_lanes": 1},
    "delay 0": {"broadcast_delay": 0},
    "delay 0, silent": {"broadcast_delay": 0, "use_attention_comm": False},
    "delay beyond depth": {"broadcast_delay": 9},
    "independent beginning": {"use_early_comm": False},
    "attention silent": {"use_attention_comm": False},
    "feed-forward silent": {"use_mlp_comm": False},
    "norm per lane": {"replicated_rmsn_scale": False},
    "lane head": {"lm_head_type": "lane"},
    "vocabulary in slices": {"lm_head_type": "vocab_parallel"},
    "vocabulary in slices, tied": {"lm_head_type": "vocab_parallel", "tie_word_embeddings": True},
    "tied": {"tie_word_embeddings": True},
    "lanes summed": {"pre_norm_lane_agg": True, "replicated_rmsn_scale": False},
    "all slide": {"sliding_layers": (0, 1, 2, 3, 4), "sliding_window": 1},
    "all full": {"sliding_layers": (), "sliding_window": None},
    "one key head per query head": {"num_key_value_heads": 8},
    "own head size": {"head_dim": 6},
    "queries and keys normed": {"qk_norm": True},
    "queries and keys normed, dense": {"qk_norm": True, "num_lanes": 1, "head_dim": 6},
    "stretched": {"rope_scaling": RopeScaling(4.0, 1.0, 4.0, 16), "rope_theta": 100.0},
}
LENGTH = 40  # the ring of 6 slots wraps six times
# float32 rounding (6e-8) of logits of size about 5, over 10 modules of about 100 terms each.  numpy's matrix
# products add in another order on another processor: the worst logit of all corners was 2.2e-5 off on an AMD
# EPYC, the median 4e-7.
TOLERANCE = 6e-5


def backend(**changes: Any) -> tuple[NumpyBackend, RandomWeights, list[int]]:
    weights = RandomWeights(tiny_config(**changes))
    ids = np.random.default_rng(1).integers(weights.config.vocab_size, size=LENGTH).tolist()
    return NumpyBackend(weights), weights, ids


@pytest.mark.parametrize("corner", CORNERS)
def test_equals_the_plain_restatement(corner: str) -> None:
    model, weights, ids = backend(**CORNERS[corner])
    expected = reference_logits(weights.config, weights.tensors, ids)
    for chunk_size in (LENGTH, 9, 4, 1):
        model.chunk_size = chunk_size
        found = model.logits(ids)
        assert found.dtype == np.float32
        assert found.shape == (LENGTH, weights.config.vocab_size)
        scale = max(1.0, float(np.abs(expected).max()) / 5)
        assert np.abs(found - expected).max() < TOLERANCE * scale, f"chunks of {chunk_size}"


def test_every_dropped_term_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    model, weights, ids = backend()
    expected = reference_logits(weights.config, weights.tensors, ids)
    whole = Exchange._send

    for dropped in [(2, "attention"), (2, "feed_forward"), (4, "attention"), (4, "feed_forward")]:

        def send(self, output, layer, module, dropped=dropped):
            whole(self, output, layer, module)
            if dropped in self._in_flight:
                self._in_flight[dropped] *= 0

        monkeypatch.setattr(Exchange, "_send", send)
        assert np.abs(model.logits(ids) - expected).max() > 100 * TOLERANCE, f"without {dropped}"


def test_only_outputs_with_a_receiver_are_kept() -> None:
    config = tiny_config(use_mlp_comm=False)
    exchange = Exchange(config)
    output = np.ones((4, 1, 32), dtype=np.float32)
    most = 0
    for layer in range(config.num_hidden_layers):
        exchange(output, layer, "attention")
        exchange(output, layer, "feed_forward")
        most = max(most, len(exchange._in_flight))
    assert most == config.broadcast_delay  # attention only: feed-forward does not communicate
    assert not exchange._in_flight


def test_decode_follows_the_logits() -> None:
    model, _, ids = backend()
    model.chunk_size = 16
    out = list(model.decode(Request(tuple(ids[:20]), max_new_tokens=30)))
    logits = model.logits(ids[:20] + [token_id for token_id, _ in out[:-1]])[19:]
    assert [token_id for token_id, _ in out] == logits.argmax(axis=1).tolist()
    expected = [log_probability(row, token_id) for row, (token_id, _) in zip(logits, out, strict=True)]
    np.testing.assert_allclose([logprob for _, logprob in out], expected, atol=TOLERANCE)


def test_decode_ends_at_a_stop_token_and_at_the_context() -> None:
    model, _, ids = backend()
    out = [token_id for token_id, _ in model.decode(Request(tuple(ids), max_new_tokens=1000))]
    assert len(out) == model.config.max_position_embeddings - LENGTH
    stopped = model.decode(Request(tuple(ids), max_new_tokens=9, stop_token_ids=frozenset({out[2]})))
    assert [token_id for token_id, _ in stopped] == out[: out.index(out[2]) + 1]
    assert list(model.decode(Request(tuple(ids), max_new_tokens=0))) == []


def test_large_gates_give_no_warning(recwarn: pytest.WarningsRecorder) -> None:
    weights = RandomWeights(tiny_config())
    for name in weights.names:
        if ".w1." in name:
            weights.tensors[name] *= 1000
    assert np.isfinite(NumpyBackend(weights).logits([1, 2, 3])).all()
    assert not recwarn.list


def test_weight_bytes_count_the_embedding_as_one_row() -> None:
    weights = RandomWeights(tiny_config())
    everything = sum(values.nbytes for values in weights.tensors.values())
    embedding = weights.tensors["model.tok_embeddings.weight"]
    assert NumpyBackend(weights).weight_bytes_per_token == everything - embedding.nbytes + embedding[0].nbytes


def test_a_huge_context_costs_nothing_until_it_is_used() -> None:
    huge = {"max_position_embeddings": 10**12, "sliding_window": 10**12}
    model, weights, ids = backend(**huge)
    assert len(model._rotation) == 0
    expected = reference_logits(weights.config, weights.tensors, ids)
    assert np.abs(model.logits(ids) - expected).max() < TOLERANCE * max(
        1.0, float(np.abs(expected).max()) / 5
    )
    assert len(model._rotation) == LENGTH


@pytest.mark.parametrize("window", [1, 63, 64, 65, 100])
def test_rings_grow_across_the_first_capacity(window: int) -> None:
    model, weights, _ = backend(max_position_embeddings=256, sliding_window=window)
    ids = np.random.default_rng(2).integers(weights.config.vocab_size, size=200).tolist()
    expected = reference_logits(weights.config, weights.tensors, ids)
    for chunk_size in (200, 37, 1):
        model.chunk_size = chunk_size
        scale = max(1.0, float(np.abs(expected).max()) / 5)
        assert np.abs(model.logits(ids) - expected).max() < TOLERANCE * scale, f"chunks of {chunk_size}"
