"""Proof that a plan is sound: weights, packets, waiting, and buffers that are written again.

:func:`check_plan` plays the plan over a few steps with one clock per worker (vector clocks, Fidge and
Mattern 1988).  A worker's clock says which phases of every other worker it knows to be over; it learns
this from packets, which carry the writer's clock.

- *No deadlock.*  Each wait is for a packet of an earlier phase of the same order that all workers
  follow, or of the step before, and some worker writes it.  Then the earliest phase that anyone is
  in can always go on: also where one thread plays many workers, phase by phase.
- *No packet lost.*  Who writes into a buffer again knows that every reader of the old contents is
  through.  So a reader finds the epoch that it expects, and never a later one.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from infer.plan.phases import Op, Packet, Phase, Wait
from infer.plan.plan import Plan, Share, overlap, shared_tensors
from laneformer.parameters import parameter_shapes

STEPS = 3  # one to fill every buffer, one to write it again, one more for what lags behind
MAILBOXES = {Packet.ATTENTION_OUTPUT, Packet.FEED_FORWARD_OUTPUT}


class PlanError(AssertionError):
    """A plan that breaks one of its promises: a bug in the plan, never in an input."""


def check_plan(plan: Plan) -> None:
    """Raise :class:`PlanError` where a promise is broken."""
    check_pages(plan)
    check_order(plan)
    _Play(plan, with_head=True).run()
    _Play(plan, with_head=False).run()


def check_pages(plan: Plan) -> None:
    """Every weight element is in exactly one page, or in the shared run."""
    counts: Counter[str] = Counter()
    covered: dict[tuple[str, int], list[Share]] = {}
    shapes = parameter_shapes(plan.config)
    for worker in plan.workers:
        for page in plan.pages(worker.index):
            counts[page.tensor] += len(page.rows) * page.columns
            covered.setdefault((page.tensor, page.lane), []).append(page.rows)
    for (tensor, lane), shares in covered.items():
        rows = sorted((share.start, share.stop) for share in shares)
        ends = [0, *(stop for _, stop in rows)]
        if any(start != end for (start, _), end in zip(rows, ends, strict=False)):
            raise PlanError(f"{tensor}, lane {lane}: rows {rows} do not join")
    for tensor in shared_tensors(plan):
        counts[tensor] += int(np.prod(shapes[tensor]))
    wanted = {name: int(np.prod(shape)) for name, shape in shapes.items()}
    if dict(counts) != wanted:
        raise PlanError(f"elements in pages {dict(counts)} are not those of the model {wanted}")


def check_order(plan: Plan) -> None:
    """Each wait is for something written before it, by someone, and each row has one writer."""
    for phase in plan.phases:
        for wait in phase.waits:
            writer = plan.phases[wait.writer]
            if wait.packet not in writer.writes:
                raise PlanError(
                    f"{_name(phase)} waits for {wait.packet.name}, which {_name(writer)} does not write"
                )
            if not wait.previous_step and wait.writer >= phase.index:
                raise PlanError(f"{_name(phase)} waits for the later phase {_name(writer)}")
            for worker in plan.workers:
                if plan.share(worker.index, phase.index) and not _enough(plan, worker.index, phase, wait):
                    raise PlanError(
                        f"{_name(phase)}: worker {worker.index} waits for rows that nobody writes"
                    )
        lanes: dict[int, list[Share]] = {}
        for worker in plan.workers:
            lanes.setdefault(worker.lane, []).append(plan.share(worker.index, phase.index))
        for lane, shares in lanes.items():
            taken = sorted((share.start, share.stop) for share in shares if share)
            if any(stop > start for (_, stop), (start, _) in pairwise(taken)):
                raise PlanError(f"{_name(phase)}, lane {lane}: two workers write the same rows {taken}")


def _enough(plan: Plan, reader: int, phase: Phase, wait: Wait) -> bool:
    """Whether the packets waited for cover what is read: whole lanes, or the reader's own rows."""
    writers = plan.writers(reader, phase.index, wait)
    lanes = {plan.workers[writer].lane for writer in writers}
    others = plan.config.num_lanes - 1
    return len(lanes) == others if wait.scope.name == "OTHER_LANES" else bool(writers)


@dataclass
class _Contents:
    """What lies in a buffer: rows by writer, and who has read them in which moment."""

    rows: Share
    reads: list[tuple[int, int]] = field(default_factory=list)  # (reader, moment)


class _Play:
    """Several steps of a plan with vector clocks.  A moment is step * phases + phase."""

    def __init__(self, plan: Plan, *, with_head: bool) -> None:
        self._plan = plan
        self._with_head = with_head
        count = len(plan.workers)
        self._clocks = np.full((count, count), -1, dtype=np.int64)  # last moment known to be over
        self._sent: dict[tuple[int, Packet, int], np.ndarray] = {}  # clock in a packet, by writer and moment
        self._buffers: dict[tuple[int, Packet, int], list[_Contents]] = {}  # by lane, packet, mailbox slot

    def run(self) -> None:
        for step in range(STEPS):
            for phase in self._plan.phases:
                if phase.op is Op.HEAD and not self._with_head:
                    continue
                for worker in self._plan.workers:
                    share = self._plan.share(worker.index, phase.index)
                    if share:
                        self._play(worker.index, phase, step, share)

    def _play(self, worker: int, phase: Phase, step: int, share: Share) -> None:
        moment = step * len(self._plan.phases) + phase.index
        # A raw output is sent before the outputs of other lanes are read: it carries the clock as
        # it was, so nobody concludes from it that this phase is over.
        early = [packet for packet in phase.writes if packet in MAILBOXES]
        first = [wait for wait in phase.waits if wait.packet not in MAILBOXES]
        later = [wait for wait in phase.waits if wait.packet in MAILBOXES]
        for wait in first:
            self._receive(worker, phase, wait, step, moment)
        for packet in early:
            self._publish(worker, phase, packet, share, moment)
        for wait in later:
            self._receive(worker, phase, wait, step, moment)
        self._clocks[worker, worker] = moment
        for packet in phase.writes:
            if packet not in MAILBOXES:
                self._publish(worker, phase, packet, share, moment)

    def _receive(self, worker: int, phase: Phase, wait: Wait, step: int, moment: int) -> None:
        written = (step - wait.previous_step) * len(self._plan.phases) + wait.writer
        if written < 0 or (wait.packet is Packet.LOGITS and not self._with_head):
            return
        for writer in self._plan.writers(worker, phase.index, wait):
            key = (writer, wait.packet, written)
            if key not in self._sent:
                raise PlanError(
                    f"{_name(phase)}: worker {worker} waits for worker {writer}, which sends nothing"
                )
            np.maximum(self._clocks[worker], self._sent[key], out=self._clocks[worker])
            lane = self._plan.workers[writer].lane
            slot = self._plan.phases[wait.writer].mailbox if wait.packet in MAILBOXES else 0
            rows = self._plan.share(writer, wait.writer)
            for contents in self._buffers[lane, wait.packet, slot]:
                if overlap(contents.rows, rows):
                    contents.reads.append((worker, moment))

    def _publish(self, worker: int, phase: Phase, packet: Packet, share: Share, moment: int) -> None:
        slot = phase.mailbox if packet in MAILBOXES else 0
        buffer = self._buffers.setdefault((self._plan.workers[worker].lane, packet, slot), [])
        for contents in [old for old in buffer if overlap(old.rows, share)]:
            for reader, when in contents.reads:
                if reader != worker and self._clocks[worker, reader] < when:
                    raise PlanError(
                        f"{_name(phase)}: worker {worker} overwrites {packet.name} that worker {reader} may "
                        f"still be reading in {_name(self._plan.phases[when % len(self._plan.phases)])}"
                    )
            buffer.remove(contents)
        buffer.append(_Contents(share))
        self._sent[worker, packet, moment] = self._clocks[worker].copy()


def _name(phase: Phase) -> str:
    return phase.op.name.lower() + (f" of layer {phase.layer}" if phase.layer >= 0 else "")
