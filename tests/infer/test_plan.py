"""Properties of the plan, for configurations and workers drawn at random."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infer.plan import Layout, Op, Packet, Plan, equal_shares, make_plan, roles
from infer.plan.check import PlanError, check_pages, check_plan
from infer.plan.plan import balanced, shared_tensors
from infer.plan.workers import proportional_roles
from laneformer.config import LaneformerConfig
from laneformer.errors import ConfigError
from tests.tiny_models import tiny_config


@st.composite
def configs(draw: st.DrawFn) -> LaneformerConfig:
    lanes = draw(st.sampled_from([1, 2, 3, 4, 8]))
    key_heads = lanes * draw(st.integers(1, 3))
    layers = draw(st.integers(1, 7))
    head_type = draw(st.sampled_from(["replicate", "lane", "vocab_parallel"]))
    return LaneformerConfig(
        hidden_size=draw(st.integers(1, 50)),
        head_dim=2 * draw(st.integers(1, 5)),
        num_hidden_layers=layers,
        num_attention_heads=key_heads * draw(st.integers(1, 3)),
        num_key_value_heads=key_heads,
        intermediate_size=lanes * draw(st.integers(1, 40)),
        vocab_size=lanes * draw(st.integers(1, 60)),
        max_position_embeddings=64,
        num_lanes=lanes,
        broadcast_delay=draw(st.integers(0, layers + 1)),
        use_attention_comm=draw(st.booleans()),
        use_mlp_comm=draw(st.booleans()),
        use_early_comm=draw(st.booleans()),
        lm_head_type=head_type,
        pre_norm_lane_agg=head_type == "replicate" and draw(st.booleans()),
        tie_word_embeddings=draw(st.booleans()) and not (head_type == "lane" and lanes > 1),
    )


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    config = draw(configs())
    devices = draw(st.integers(1, min(8, config.num_lanes)))
    if draw(st.booleans()):
        layout = equal_shares(config, draw(st.integers(1, 6)), devices)
    else:
        layout = roles(config, draw(st.integers(1, 4)), draw(st.integers(1, 4)), devices)
    return make_plan(config, layout)


@settings(max_examples=80, deadline=None)
@given(plans())
def test_pages_packets_waits_and_buffers(plan: Plan) -> None:
    check_plan(plan)


@settings(max_examples=60, deadline=None)
@given(plans())
def test_shares_are_balanced(plan: Plan) -> None:
    for phase in plan.phases:
        by_lane: dict[int, list[int]] = {}
        for worker in plan.workers:
            if phase.op is not Op.SAMPLE and worker.role in ("all", phase.role):
                by_lane.setdefault(worker.lane, []).append(len(plan.share(worker.index, phase.index)))
        for sizes in by_lane.values():
            assert max(sizes) - min(sizes) <= 1


@given(st.integers(0, 1000), st.integers(1, 50))
def test_balanced_runs_join(total: int, parts: int) -> None:
    shares = [balanced(total, parts, index) for index in range(parts)]
    assert [place for share in shares for place in share] == list(range(total))


def test_devices_hold_whole_lanes_in_order() -> None:
    config = tiny_config(num_attention_heads=8, num_key_value_heads=8, num_lanes=8, intermediate_size=64)
    for devices in range(1, 9):
        workers = equal_shares(config, 3, devices).workers
        lanes = [{worker.lane for worker in workers if worker.device == device} for device in range(devices)]
        assert sorted(lane for group in lanes for lane in group) == list(range(8))
        assert max(map(len, lanes)) - min(map(len, lanes)) <= 1


def test_a_tied_embedding_is_in_the_pages_of_the_head() -> None:
    tied = make_plan(tiny_config(tie_word_embeddings=True), equal_shares(tiny_config(), 2))
    assert "model.tok_embeddings.weight" not in shared_tensors(tied)
    untied = make_plan(tiny_config(), equal_shares(tiny_config(), 2))
    assert "model.tok_embeddings.weight" in shared_tensors(untied)


def test_roles_divide_in_proportion_to_weights() -> None:
    released = tiny_config(
        hidden_size=3072,
        num_attention_heads=32,
        num_key_value_heads=16,
        intermediate_size=12288,
        num_lanes=8,
        head_dim=96,
    )
    attention, feed_forward = proportional_roles(released, 120, cluster_size=8).groups
    assert (attention.size, feed_forward.size) == (24, 96)
    layout = proportional_roles(released, 120, cluster_size=8)
    assert {worker.cluster for worker in layout.workers if worker.role == "attention"} == {0, 1, 2}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda config: equal_shares(config, 0), "at least one worker"),
        (lambda config: equal_shares(config, 1, devices=9), "between 1 and 8"),
        (lambda config: equal_shares(config, 1, devices=5), "a lane is not split"),
        (lambda config: roles(config, 3, 4, cluster_size=2), "do not divide"),
        (lambda config: proportional_roles(config, 3, cluster_size=2), "whole clusters"),
    ],
)
def test_bad_layouts_are_named(make, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(tiny_config())


# The check must notice a broken plan: each of these breaks one promise.


def plan_of(**changes) -> Plan:
    config = tiny_config(**changes)
    return make_plan(config, equal_shares(config, 2))


def test_check_notices_a_wait_for_a_later_phase() -> None:
    plan = plan_of()
    project = next(phase for phase in plan.phases if phase.op is Op.PROJECT)
    later = next(p for p in plan.phases if p.index > project.index and Packet.RESIDUAL in p.writes)
    waits = (replace(project.waits[0], writer=later.index),)
    phases = tuple(replace(phase, waits=waits) if phase is project else phase for phase in plan.phases)
    with pytest.raises(PlanError, match="later phase"):
        check_plan(replace(plan, phases=phases))


def test_check_notices_a_missing_wait() -> None:
    plan = plan_of()
    phases = tuple(replace(p, waits=()) if p.op is Op.DOWN else p for p in plan.phases)
    with pytest.raises(PlanError, match="may still be reading"):
        check_plan(replace(plan, phases=phases))


def test_check_notices_too_few_mailboxes() -> None:
    plan = plan_of(use_early_comm=False)

    def squeezed(slot: int) -> int:
        return 0 if slot >= 0 else slot

    phases = tuple(
        replace(p, mailbox=squeezed(p.mailbox), reads_mailbox=squeezed(p.reads_mailbox)) for p in plan.phases
    )
    with pytest.raises(PlanError, match="overwrites"):
        check_plan(replace(plan, phases=phases))


def test_check_notices_rows_that_are_nobodys() -> None:
    plan = plan_of()

    class Short(Plan):
        def share(self, worker: int, phase: int) -> range:
            share = super().share(worker, phase)
            return share[:-1] if self.phases[phase].op is Op.GATE_UP else share

    with pytest.raises(PlanError):
        check_pages(Short(plan.config, plan.layout, plan.phases))


def test_layout_is_a_value() -> None:
    assert equal_shares(tiny_config(), 2) == Layout(4, equal_shares(tiny_config(), 2).groups, 1)
