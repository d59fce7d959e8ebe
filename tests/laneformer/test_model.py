"""The PyTorch model against plain loops in float64, and what attention may see."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from laneformer import LaneformerForCausalLM
from laneformer.config import RopeScaling
from laneformer.errors import RequestError
from laneformer.key_value_cache import KeyValueCache
from tests.plain_reference import reference_logits
from tests.tiny_models import RandomWeights, tiny_config, write_checkpoint

IDS = [3, 17, 250, 9, 9, 41, 300, 5, 77, 120, 3, 17, 8, 1, 66]
SCALING = RopeScaling(8.0, 1.0, 4.0, 32)
CORNERS = [
    {},
    {"broadcast_delay": 0},
    {"broadcast_delay": 5},
    {"broadcast_delay": 1, "use_early_comm": False},
    {"use_attention_comm": False},
    {"use_mlp_comm": False, "broadcast_delay": 3},
    {"num_lanes": 1},
    {"num_lanes": 2, "head_dim": 10},
    {"qk_norm": True},
    {"qk_norm": True, "num_lanes": 1, "head_dim": 6},
    {"lm_head_type": "lane"},
    {"lm_head_type": "vocab_parallel"},
    {"lm_head_type": "vocab_parallel", "tie_word_embeddings": True},
    {"tie_word_embeddings": True},
    {"pre_norm_lane_agg": True, "replicated_rmsn_scale": False},
    {"replicated_rmsn_scale": False},
    {"rope_scaling": SCALING, "rope_theta": 500000.0},
    {"sliding_layers": (), "sliding_window": None},
    {"sliding_layers": (0, 1, 2, 3, 4), "sliding_window": 1},
]


def load(folder: Path, **changes) -> tuple[LaneformerForCausalLM, dict[str, np.ndarray]]:
    config = tiny_config(**changes)
    tensors = RandomWeights(config).tensors
    write_checkpoint(folder, config, tensors=tensors)
    return LaneformerForCausalLM.from_pretrained(folder), tensors


@pytest.mark.parametrize("changes", CORNERS, ids=str)
@torch.no_grad()
def test_equals_plain_loops(tmp_path: Path, changes: dict) -> None:
    model, tensors = load(tmp_path, **changes)
    expected = reference_logits(model.config, tensors, IDS)
    logits = model(torch.tensor([IDS]))[0].numpy()
    # float32 rounding (2**-24) over a few thousand operations, relative to the largest logit
    assert np.abs(logits - expected).max() < 1e-5 * np.abs(expected).max()


@pytest.mark.parametrize("changes", [{}, {"num_lanes": 1}, {"sliding_window": 3}, {"qk_norm": True}], ids=str)
@torch.no_grad()
def test_cache_gives_what_the_whole_sequence_gives(tmp_path: Path, changes: dict) -> None:
    model, _ = load(tmp_path, **changes)
    whole = model(torch.tensor([IDS]))
    cache = KeyValueCache(model.config.num_hidden_layers)
    parts = [model(torch.tensor([IDS[:4]]), cache=cache), model(torch.tensor([IDS[4:9]]), cache=cache)]
    parts += [model(torch.tensor([[token]]), cache=cache) for token in IDS[9:]]
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=1e-5, atol=1e-4)


@torch.no_grad()
def test_attention_stays_inside_documents(tmp_path: Path) -> None:
    model, _ = load(tmp_path)
    documents = torch.tensor([[0] * 6 + [1] * (len(IDS) - 6)])
    logits = model(torch.tensor([IDS]), document_ids=documents)
    changed = [4, 4, 4, 4, 4, 4, *IDS[6:]]
    other = model(torch.tensor([changed]), document_ids=documents)
    assert torch.equal(logits[:, 6:], other[:, 6:])
    assert not torch.equal(logits[:, :6], other[:, :6])
    crossing = model(torch.tensor([IDS]))
    assert not torch.allclose(crossing[:, 6:], logits[:, 6:], atol=1e-3)
    torch.testing.assert_close(crossing[:, :6], logits[:, :6], rtol=1e-5, atol=1e-4)


@torch.no_grad()
def test_rows_of_a_batch_do_not_meet(tmp_path: Path) -> None:
    model, _ = load(tmp_path)
    batch = model(torch.tensor([IDS, IDS[::-1]]))
    torch.testing.assert_close(batch[1:], model(torch.tensor([IDS[::-1]])), rtol=1e-5, atol=1e-4)


def test_context_is_a_limit(tmp_path: Path) -> None:
    model, _ = load(tmp_path)
    with pytest.raises(RequestError, match="65 positions exceed the context of 64"):
        model(torch.zeros((1, 65), dtype=torch.long))


def test_fresh_weights_predict_nothing() -> None:
    torch.manual_seed(0)
    model = LaneformerForCausalLM(tiny_config(hidden_size=128, num_attention_heads=8))
    ids = torch.randint(0, 320, (4, 32))
    loss = torch.nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.roll(-1, 1).flatten())
    assert abs(loss.item() - np.log(320)) < 0.1


@pytest.mark.parametrize(
    "cast",
    [lambda m: m.bfloat16(), lambda m: m.to(torch.bfloat16), lambda m: m.to("cpu", torch.bfloat16)],
    ids=["bfloat16", "to dtype", "to device and dtype"],
)
@torch.no_grad()
def test_casting_the_model_leaves_its_angles_in_float32(tmp_path: Path, cast) -> None:
    model, _ = load(tmp_path, max_position_embeddings=600)
    ids = torch.arange(600)[None] % 320
    expected = LaneformerForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)(ids)
    cast(model)
    assert model.model.inverse_frequencies.dtype == torch.float32
    assert torch.equal(model(ids), expected)
    rounded = model.model.inverse_frequencies.bfloat16().float()
    model.model.inverse_frequencies = rounded
    assert not torch.equal(model(ids), expected)


@torch.no_grad()
def test_frequencies_survive_a_model_without_memory(tmp_path: Path) -> None:
    model, _ = load(tmp_path)
    with torch.device("meta"):
        empty = LaneformerForCausalLM(model.config).half()
    empty = empty.to_empty(device="cpu").float()
    empty.load_state_dict(model.state_dict())
    assert torch.equal(empty(torch.tensor([IDS])), model(torch.tensor([IDS])))


def test_documents_and_a_cache_are_refused_together(tmp_path: Path) -> None:
    model, _ = load(tmp_path)
    ids = torch.tensor([IDS])
    with pytest.raises(RequestError, match="document_ids and cache cannot be combined"):
        model(ids, document_ids=torch.zeros_like(ids), cache=KeyValueCache(5))
