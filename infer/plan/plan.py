"""The plan of one model on given workers: shares, pages in order of use, and who waits for whom."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from infer.plan.phases import Op, Phase, Scope, Wait, phases_of
from infer.plan.workers import Layout, Worker
from laneformer.config import LaneformerConfig
from laneformer.parameters import head_name, parameter_shapes

Share = range  # rows, heads or units, by their index within the lane (head rows: within the vocabulary)
SAMPLER = 0  # the worker that chooses tokens


@dataclass(frozen=True)
class Page:
    """Rows of one weight matrix that one worker reads in one phase; a lane's matrix where it has lanes."""

    phase: int
    tensor: str
    lane: int  # -1 where the tensor has no lane axis
    rows: Share
    columns: int


@dataclass(frozen=True)
class Plan:
    """What :func:`make_plan` made.  Everything else is arithmetic on it."""

    config: LaneformerConfig
    layout: Layout
    phases: tuple[Phase, ...]

    @cached_property
    def workers(self) -> tuple[Worker, ...]:
        """All workers, by index."""
        return self.layout.workers

    def share(self, worker: int, phase: int) -> Share:
        """What ``worker`` computes in ``phase``; empty where it has nothing to do there.

        Residual rows of embed, outputs and sums; query, key and value rows joined in that order in
        project; key heads in append; query heads in attend; units in gate_up; vocabulary rows in head.
        """
        who, what = self.workers[worker], self.phases[phase]
        if what.op is Op.SAMPLE:
            return range(1 if worker == SAMPLER else 0)
        if what.op is Op.HEAD:
            return self._head_share(who)
        if who.role not in ("all", what.role):
            return range(0)
        return balanced(self._units(what.op), who.group_size, who.place)

    def pages(self, worker: int) -> Iterator[Page]:
        """The worker's weights in the order in which it uses them for one token."""
        for phase in self.phases:
            yield from self._phase_pages(worker, phase)

    def writers(self, worker: int, phase: int, wait: Wait) -> list[int]:
        """Workers whose packets ``worker`` waits for in ``phase``."""
        reader, own = self.workers[worker], self.share(worker, phase)
        found = []
        for writer in self.workers:
            theirs = self.share(writer.index, wait.writer)
            if not theirs or (wait.scope in (Scope.LANE, Scope.SAME_ROWS) and writer.lane != reader.lane):
                continue
            if wait.scope is Scope.SAME_ROWS and not overlap(own, theirs):
                continue
            if wait.scope is Scope.OTHER_LANES and (writer.lane == reader.lane or theirs != own):
                continue
            found.append(writer.index)
        return found

    def _units(self, op: Op) -> int:
        """How many rows, heads or units a lane has in a phase."""
        config = self.config
        query_heads = config.num_attention_heads // config.num_lanes
        key_heads = config.num_key_value_heads // config.num_lanes
        return {
            Op.PROJECT: (query_heads + 2 * key_heads) * config.head_size,
            Op.APPEND: key_heads,
            Op.ATTEND: query_heads,
            Op.GATE_UP: config.intermediate_size // config.num_lanes,
        }.get(op, config.hidden_size)

    def _head_share(self, worker: Worker) -> Share:
        """Every worker of every lane has rows of the head; in slices, rows of its own lane's slice."""
        per_lane, lanes = self.layout.workers_per_lane, self.config.num_lanes
        if self.config.lm_head_type != "vocab_parallel":
            return balanced(self.config.vocab_size, per_lane * lanes, worker.index)
        slice_size = self.config.vocab_size // lanes
        rows = balanced(slice_size, per_lane, worker.index % per_lane)
        return range(worker.lane * slice_size + rows.start, worker.lane * slice_size + rows.stop)

    def _phase_pages(self, worker: int, phase: Phase) -> Iterator[Page]:
        share, lane = self.share(worker, phase.index), self.workers[worker].lane
        if not share:
            return
        shapes, prefix = self._shapes, f"model.layers.{phase.layer}"
        if phase.op is Op.PROJECT:
            start = 0
            for name in ("wq", "wk", "wv"):
                tensor = f"{prefix}.attention.{name}.weight"
                rows = shapes[tensor][1]
                part = range(max(share.start - start, 0), min(share.stop - start, rows))
                if part:
                    yield Page(phase.index, tensor, lane, part, shapes[tensor][2])
                start += rows
        elif phase.op is Op.HEAD:
            tensor = head_name(self.config)
            shape = shapes[tensor]
            sliced = len(shape) == 3
            first = lane * shape[1] if sliced else 0
            rows_here = range(share.start - first, share.stop - first)
            yield Page(phase.index, tensor, lane if sliced else -1, rows_here, shape[-1])
        else:
            names = {
                Op.ATTENTION_OUTPUT: ("attention.wo",),
                Op.GATE_UP: ("feed_forward.w1", "feed_forward.w3"),
                Op.DOWN: ("feed_forward.w2",),
            }.get(phase.op, ())
            for name in names:
                tensor = f"{prefix}.{name}.weight"
                yield Page(phase.index, tensor, lane, share, shapes[tensor][2])

    @cached_property
    def _shapes(self) -> dict[str, tuple[int, ...]]:
        return parameter_shapes(self.config)


def make_plan(config: LaneformerConfig, layout: Layout) -> Plan:
    """The plan of a model on the workers of ``layout``."""
    return Plan(config, layout, phases_of(config))


def balanced(total: int, parts: int, index: int) -> Share:
    """Part ``index`` of ``total`` things in ``parts`` runs whose lengths differ by at most one."""
    return range(total * index // parts, total * (index + 1) // parts)


def overlap(left: Share, right: Share) -> bool:
    """Whether two runs have something in common."""
    return max(left.start, right.start) < min(left.stop, right.stop)


def shared_tensors(plan: Plan) -> list[str]:
    """Tensors that no worker streams because all of them look into them: embedding and norm scales.

    A tied embedding is not among them: it lies in the pages of the head.
    """
    streamed = {page.tensor for worker in plan.workers for page in plan.pages(worker.index)}
    return [name for name in parameter_shapes(plan.config) if name not in streamed]
