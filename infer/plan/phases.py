"""Phases: what happens in a step of one token, or of one chunk of a prompt, and in which order.

Every worker meets the phases in the same order and plays those of its role in which it has a share; in the
others it neither reads nor writes.  A phase waits for packets, computes, and publishes packets.  A
packet carries the epoch at which it was written, so that a reader knows it from the one before.

    embed                        token -> residual
    per layer
      project                    residual -> queries, keys, values (raw rows)
      append                     keys are turned and join the cache, values too
      attend                     one query head after the other -> mixed values
      attention_output           mixed -> output rows; residual rows where no lane is waited for
      attention_sum              only where lanes add each other's present outputs
      gate_up                    residual -> feed-forward units
      down                       units -> output rows; residual rows
      feed_forward_sum           like attention_sum
    head                         residual of all lanes -> logits
    sample                       logits -> token
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from infer.plan.workers import Role
from laneformer.config import LaneformerConfig, Module, ResidualMode


class Op(IntEnum):
    """What is computed in a phase; the numbers are those of ``kernels/cpu/plan_tables.h``."""

    EMBED = 0
    PROJECT = 1
    APPEND = 2
    ATTEND = 3
    ATTENTION_OUTPUT = 4
    ATTENTION_SUM = 5
    GATE_UP = 6
    DOWN = 7
    FEED_FORWARD_SUM = 8
    HEAD = 9
    SAMPLE = 10


class Packet(IntEnum):
    """What is published, by the buffer in which it lies."""

    RESIDUAL = 0  # rows of the lane's residual stream
    PROJECTED = 1  # raw rows of queries, keys, values
    CACHED = 2  # keys and values of this step are in the cache
    MIXED = 3  # attention's weighted values, by query head
    UNITS = 4  # feed-forward units
    ATTENTION_OUTPUT = 5  # raw output rows, for other lanes: the mailbox of the attention module
    FEED_FORWARD_OUTPUT = 6  # the same of the feed-forward module
    LOGITS = 7
    TOKEN = 8


class Scope(IntEnum):
    """Whose packets a wait is for: of the workers that have a share in the writing phase, those ..."""

    LANE = 0  # ... of the reader's lane
    SAME_ROWS = 1  # ... of the reader's lane whose rows the reader's own rows overlap
    OTHER_LANES = 2  # ... at the reader's place in every other lane
    EVERYONE = 3


@dataclass(frozen=True)
class Wait:
    """Wait for ``packet`` written in phase ``writer`` of this step, or of the step before."""

    packet: Packet
    writer: int
    scope: Scope
    previous_step: bool = False


@dataclass(frozen=True)
class Phase:
    """One phase.  ``mailbox`` is the slot that its raw output goes to, -1 where no lane will read it."""

    index: int
    op: Op
    layer: int  # -1 outside the layers
    role: Role  # of the workers that play it, beside those of role "all"
    waits: tuple[Wait, ...]
    writes: tuple[Packet, ...]
    mode: ResidualMode | None = None  # how an output joins the residual stream
    mailbox: int = -1
    reads_mailbox: int = -1  # the slot of the outputs that land here


def mailbox_slots(config: LaneformerConfig) -> int:
    """Mailbox slots per module and lane: a lane may be this many layers ahead of a slow reader.

    A sender at layer i has seen of each other lane the output of layer ``i - 1 - delay``, so that lane is
    done with what it read there, sent ``delay`` layers earlier.  The check of the plan holds us to it.
    """
    return min(config.num_hidden_layers, 2 * config.broadcast_delay + 2)


def phases_of(config: LaneformerConfig) -> tuple[Phase, ...]:
    """All phases of a step, in order."""
    return tuple(_Builder(config).build())


def sends(config: LaneformerConfig, layer: int, module: Module) -> bool:
    """Whether another lane reads the raw output of this layer's module, now or later."""
    if config.num_lanes == 1:
        return False
    if config.residual_mode(layer, module) is ResidualMode.PRESENT:
        return True
    receiver = layer + config.broadcast_delay
    return receiver < config.num_hidden_layers and (
        config.residual_mode(receiver, module) is ResidualMode.PAST
    )


class _Builder:
    """Appends phase after phase and remembers who wrote each packet last."""

    def __init__(self, config: LaneformerConfig) -> None:
        self._config = config
        self._phases: list[Phase] = []
        self._residual = 0  # the phase that wrote the residual stream last
        self._output_phase: dict[tuple[Module, int], int] = {}

    def build(self) -> list[Phase]:
        config = self._config
        sample = self._count_phases() - 1
        token = Wait(Packet.TOKEN, sample, Scope.EVERYONE, previous_step=True)
        self._add(Op.EMBED, -1, "attention", (token,), (Packet.RESIDUAL,))
        for layer in range(config.num_hidden_layers):
            self._attention(layer)
            self._feed_forward(layer)
        scope = Scope.LANE if config.lm_head_type == "vocab_parallel" else Scope.EVERYONE
        residual = Wait(Packet.RESIDUAL, self._residual, scope)
        head = self._add(Op.HEAD, -1, "all", (residual,), (Packet.LOGITS,))
        everything = (
            # A step without logits, a prompt's inner chunk, still ends here: no lane starts the next one
            # while another might read a mailbox of this one.
            Wait(Packet.RESIDUAL, self._residual, Scope.EVERYONE),
            Wait(Packet.LOGITS, head, Scope.EVERYONE),
        )
        self._add(Op.SAMPLE, -1, "all", everything, (Packet.TOKEN,))
        return self._phases

    def _attention(self, layer: int) -> None:
        residual = Wait(Packet.RESIDUAL, self._residual, Scope.LANE)
        project = self._add(Op.PROJECT, layer, "attention", (residual,), (Packet.PROJECTED,))
        projected = Wait(Packet.PROJECTED, project, Scope.LANE)
        append = self._add(Op.APPEND, layer, "attention", (projected,), (Packet.CACHED,))
        cached = Wait(Packet.CACHED, append, Scope.LANE)
        attend = self._add(Op.ATTEND, layer, "attention", (projected, cached), (Packet.MIXED,))
        self._output(layer, "attention", Wait(Packet.MIXED, attend, Scope.LANE))

    def _feed_forward(self, layer: int) -> None:
        residual = Wait(Packet.RESIDUAL, self._residual, Scope.LANE)
        gate_up = self._add(Op.GATE_UP, layer, "feed_forward", (residual,), (Packet.UNITS,))
        self._output(layer, "feed_forward", Wait(Packet.UNITS, gate_up, Scope.LANE))

    def _output(self, layer: int, module: Module, inputs: Wait) -> None:
        """The phase that ends a module and, where lanes add present outputs, the sum after it."""
        config = self._config
        op, sum_op, packet = {
            "attention": (Op.ATTENTION_OUTPUT, Op.ATTENTION_SUM, Packet.ATTENTION_OUTPUT),
            "feed_forward": (Op.DOWN, Op.FEED_FORWARD_SUM, Packet.FEED_FORWARD_OUTPUT),
        }[module]
        mode, slots = config.residual_mode(layer, module), mailbox_slots(config)
        own_rows = Wait(Packet.RESIDUAL, self._residual, Scope.SAME_ROWS)
        late = mode is ResidualMode.PRESENT and config.num_lanes > 1  # the residual is written by the sum
        waits, reads = [inputs] if late else [inputs, own_rows], -1
        if mode is ResidualMode.PAST and config.num_lanes > 1:
            sender = layer - config.broadcast_delay
            waits.append(Wait(packet, self._output_phase[module, sender], Scope.OTHER_LANES))
            reads = sender % slots
        slot = layer % slots if sends(config, layer, module) else -1
        writes = ((packet,) if slot >= 0 else ()) + (() if late else (Packet.RESIDUAL,))
        phase = self._add(op, layer, module, tuple(waits), writes, mode, slot, reads)
        self._output_phase[module, layer] = phase
        if late:
            others = Wait(packet, phase, Scope.OTHER_LANES)
            phase = self._add(sum_op, layer, module, (own_rows, others), (Packet.RESIDUAL,), mode, slot, slot)
        self._residual = phase

    def _add(
        self,
        op: Op,
        layer: int,
        role: Role,
        waits: tuple[Wait, ...],
        writes: tuple[Packet, ...],
        mode: ResidualMode | None = None,
        mailbox: int = -1,
        reads_mailbox: int = -1,
    ) -> int:
        index = len(self._phases)
        self._phases.append(Phase(index, op, layer, role, waits, writes, mode, mailbox, reads_mailbox))
        return index

    def _count_phases(self) -> int:
        config = self._config
        sums = sum(
            config.num_lanes > 1 and config.residual_mode(layer, module) is ResidualMode.PRESENT
            for layer in range(config.num_hidden_layers)
            for module in ("attention", "feed_forward")
        )
        return 1 + 6 * config.num_hidden_layers + sums + 2
