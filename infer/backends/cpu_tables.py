"""The plan as the flat tables that ``kernels/cpu/plan_tables.h`` describes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from infer.plan import Op, Page, Plan, Scope
from infer.tape import Tape
from laneformer.config import LaneformerConfig, ResidualMode
from laneformer.errors import ConfigError
from laneformer.parameters import final_norm_name, norm_name
from laneformer.rope import rotation_table
from laneformer.tensors import bfloat16_to_float32

MOST_WAITS = 3
MOST_PAGES = 3
COLUMN_GROUP = 32
LONGEST_CONTEXT = 1 << 21  # positions: at a head size of 128 the rotary tables are 1 GB
MODES = {ResidualMode.PRESENT: 0, ResidualMode.PAST: 1, ResidualMode.INDEPENDENT: 2, None: -1}
STORED = {"float32": 0, "bfloat16": 1, "float16": 2}
PAGE = np.dtype(
    [("offset", "<i8"), ("rows", "<i4"), ("first", "<i4"), ("stored", "<i4"), ("unused", "<i4")], align=True
)


@dataclass(frozen=True)
class PlanTables:
    """Arrays in the layout of the C structures."""

    phase: np.ndarray  # int32 [phases, 7 + 3 * MOST_WAITS]
    lane: np.ndarray  # int32 [workers]
    share: np.ndarray  # int32 [workers, phases, 2]
    page: np.ndarray  # PAGE [workers, phases, MOST_PAGES]
    wait_start: np.ndarray  # int32 [workers * phases * MOST_WAITS + 1]
    wait_writer: np.ndarray  # int32


def plan_tables(plan: Plan, tape: Tape) -> PlanTables:
    """Tables of a plan whose weights lie in ``tape``."""
    workers, phases = len(plan.workers), plan.phases
    share = np.array(
        [[_bounds(plan.share(worker, phase.index)) for phase in phases] for worker in range(workers)],
        np.int32,
    )
    page = np.zeros((workers, len(phases), MOST_PAGES), PAGE)
    page["offset"] = -1
    for entry in tape.index.pages:
        row = page[entry.worker, entry.page.phase]
        place = int(np.count_nonzero(row["offset"] >= 0))
        first = _first_output_row(plan.config, phases[entry.page.phase].op, entry.page)
        row[place] = (entry.offset, len(entry.page.rows), first, STORED[entry.dtype], 0)
    wait_start, wait_writer = _waits(plan)
    return PlanTables(
        phase=np.array([_phase_row(plan, index) for index in range(len(phases))], np.int32),
        lane=np.array([worker.lane for worker in plan.workers], np.int32),
        share=share,
        page=page,
        wait_start=wait_start,
        wait_writer=wait_writer,
    )


def norm_table(config: LaneformerConfig, tape: Tape) -> np.ndarray:
    """All norm scales, float32 ``[2 * layers + 1, lanes, padded hidden]``, zero in the padding."""
    names = [
        norm_name(config, f"model.layers.{layer}.{norm}")
        for layer in range(config.num_hidden_layers)
        for norm in ("attention_norm", "ffn_norm")
    ]
    names.append(final_norm_name(config))
    width = -(-config.hidden_size // COLUMN_GROUP) * COLUMN_GROUP
    table = np.zeros((len(names), config.num_lanes, width), np.float32)
    for row, name in zip(table, names, strict=True):
        row[:, : config.hidden_size] = stored_float32(tape, name)  # one for all lanes, or one per lane
    return table


def head_norm_table(config: LaneformerConfig, tape: Tape) -> np.ndarray | None:
    """Norm scales of queries and keys, float32 ``[layers, 2, head]``; None where the model has none."""
    if not config.qk_norm:
        return None
    names = [
        [f"model.layers.{layer}.attention.{norm}.weight" for norm in ("q_norm", "k_norm")]
        for layer in range(config.num_hidden_layers)
    ]
    return np.stack([[stored_float32(tape, name) for name in pair] for pair in names])


def check_context(config: LaneformerConfig) -> None:
    """:class:`ConfigError` where rotary tables for the whole context would not be reasonable to hold."""
    if config.max_position_embeddings > LONGEST_CONTEXT:
        raise ConfigError(
            f"max_position_embeddings ({config.max_position_embeddings}) exceeds the {LONGEST_CONTEXT} "
            "positions of the cpu back end; lower it in config.json or choose the numpy back end"
        )


def rotation_tables(config: LaneformerConfig) -> tuple[np.ndarray, np.ndarray]:
    """Cosines and sines, each float32 ``[context, head / 2]``."""
    cosines, sines = rotation_table(config, np.arange(config.max_position_embeddings))
    return np.ascontiguousarray(cosines, np.float32), np.ascontiguousarray(sines, np.float32)


def head_type_code(config: LaneformerConfig) -> int:
    """``HeadType`` of plan_tables.h."""
    if config.pre_norm_lane_agg:
        return 3
    return {"replicate": 0, "lane": 1, "vocab_parallel": 2}[config.lm_head_type]


def stored_float32(tape: Tape, name: str) -> np.ndarray:
    """A tensor of the shared run, widened."""
    values = tape.shared(name)
    return bfloat16_to_float32(values) if values.dtype == np.uint16 else values.astype(np.float32)


def _bounds(share: range) -> tuple[int, int]:
    return (share.start, share.stop) if share else (0, 0)


def _phase_row(plan: Plan, index: int) -> list[int]:
    phase = plan.phases[index]
    row = [phase.op, phase.layer, MODES[phase.mode], phase.mailbox, phase.reads_mailbox]
    row += [sum(1 << packet for packet in phase.writes), len(phase.waits)]
    for wait in phase.waits:
        row += [wait.packet, wait.writer, int(wait.previous_step)]
    return row + [0] * (7 + 3 * MOST_WAITS - len(row))


def _first_output_row(config: LaneformerConfig, op: Op, page: Page) -> int:
    """The row of the phase's output that the page's first row gives."""
    lanes, start = config.num_lanes, page.rows.start
    if op is Op.PROJECT:
        queries = config.num_attention_heads * config.head_size // lanes
        keys = config.num_key_value_heads * config.head_size // lanes
        return start + {"wq": 0, "wk": queries, "wv": queries + keys}[page.tensor.split(".")[-2]]
    if op is Op.HEAD and config.lm_head_type == "vocab_parallel":
        slice_size = config.vocab_size // lanes
        return start + max(page.lane, 0) * slice_size
    return start


def _waits(plan: Plan) -> tuple[np.ndarray, np.ndarray]:
    """For each worker, phase and wait, where its writers start in one list of workers."""
    known: dict[tuple[int, Op, Op, Scope], list[int]] = {}  # layers repeat
    starts, writers = [0], list[int]()
    for worker in plan.workers:
        for phase in plan.phases:
            for place in range(MOST_WAITS):
                if place < len(phase.waits) and plan.share(worker.index, phase.index):
                    wait = phase.waits[place]
                    key = (worker.index, phase.op, plan.phases[wait.writer].op, wait.scope)
                    if key not in known:
                        known[key] = plan.writers(worker.index, phase.index, wait)
                    writers += known[key]
                starts.append(len(writers))
    return np.array(starts, np.int32), np.array(writers, np.int32)
