"""A worker's timeline for one token, as text for people.

Layers that do the same are drawn once.  Per phase: what the worker computes, the weights it reads for it,
for whose packets it waits, and who waits for its own.
"""

from __future__ import annotations

from collections.abc import Iterable

from infer.plan.phases import Op, Packet, Phase, Scope, Wait
from infer.plan.plan import Plan
from laneformer.config import ResidualMode

NAMES = {
    Op.EMBED: "embed",
    Op.PROJECT: "project",
    Op.APPEND: "append",
    Op.ATTEND: "attend",
    Op.ATTENTION_OUTPUT: "output",
    Op.ATTENTION_SUM: "sum",
    Op.GATE_UP: "gate, up",
    Op.DOWN: "down",
    Op.FEED_FORWARD_SUM: "sum",
    Op.HEAD: "head",
    Op.SAMPLE: "sample",
}
THINGS = {Op.APPEND: "key head", Op.ATTEND: "query head", Op.GATE_UP: "unit", Op.SAMPLE: "token"}
PACKETS = {
    Packet.RESIDUAL: "residual",
    Packet.PROJECTED: "queries, keys, values",
    Packet.CACHED: "cache",
    Packet.MIXED: "mixed values",
    Packet.UNITS: "units",
    Packet.ATTENTION_OUTPUT: "mail",
    Packet.FEED_FORWARD_OUTPUT: "mail",
    Packet.LOGITS: "logits",
    Packet.TOKEN: "token",
}
MODES = {
    ResidualMode.PRESENT: "all",
    ResidualMode.PAST: "own + late",
    ResidualMode.INDEPENDENT: "own",
}


def draw(plan: Plan, worker: int, bytes_per_weight: int = 2) -> str:
    """The timeline of ``worker``; page sizes in weights of ``bytes_per_weight`` bytes."""
    who, layout = plan.workers[worker], plan.layout
    groups = " + ".join(
        f"{group.size} worker(s) for {group.role.replace('_', '-')}" for group in layout.groups
    ).replace(" for all", "")
    lines = [
        f"worker {worker} of {len(plan.workers)}: lane {who.lane} of {layout.lanes}, device {who.device} of "
        f"{layout.devices}, place {who.place} of {who.group_size} ({who.role.replace('_', '-')})",
        f"a lane has {groups}; a token has {len(plan.phases)} phases",
        "",
        f"{'phase':10} {'computes':26} {'weights':>9}   waits for -> publishes",
    ]
    total = 0
    for title, first, phases in _sections(plan, worker):
        lines.append(title)
        for phase in phases:
            size = bytes_per_weight * sum(
                len(page.rows) * page.columns for page in plan.pages(worker) if page.phase == phase.index
            )
            lines.append(f"  {_phase_line(plan, worker, phase, size)}".rstrip())
        if first:
            lines.append("")
    for page in plan.pages(worker):
        total += bytes_per_weight * len(page.rows) * page.columns
    lines.append("a residual adds: [all] lanes' outputs, its [own], its [own + late] ones of the others")
    lines.append(f"weights per token: {_size(total)} in {len(list(plan.pages(worker)))} pages")
    return "\n".join(lines)


def _sections(plan: Plan, worker: int) -> Iterable[tuple[str, bool, list[Phase]]]:
    """Title and phases, with runs of layers that look alike as one."""
    layers: dict[int, list[Phase]] = {}
    for phase in plan.phases:
        layers.setdefault(phase.layer, []).append(phase)
    outside = layers.pop(-1)
    yield "before the layers", False, outside[:1]
    runs: list[tuple[int, int]] = []
    for layer in layers:
        if runs and _looks(plan, worker, layers[runs[-1][0]]) == _looks(plan, worker, layers[layer]):
            runs[-1] = (runs[-1][0], layer)
        else:
            runs.append((layer, layer))
    for first, last in runs:
        title = f"layer {first}" if first == last else f"layers {first} to {last}, each"
        yield title, False, layers[first]
    yield "after the layers", True, outside[1:]


def _looks(plan: Plan, worker: int, phases: list[Phase]) -> list[tuple[object, ...]]:
    """What a drawn layer shows, without its number."""
    return [
        (phase.op, phase.mode, phase.mailbox >= 0, phase.reads_mailbox >= 0, plan.share(worker, phase.index))
        for phase in phases
    ]


def _phase_line(plan: Plan, worker: int, phase: Phase, size: int) -> str:
    share = plan.share(worker, phase.index)
    name = NAMES[phase.op]
    if not share:
        return f"{name:10} -"
    thing = THINGS.get(phase.op, "row")
    what = f"{thing} {share.start}" if len(share) == 1 else f"{thing}s {share.start} to {share.stop - 1}"
    waits = [_wait_text(plan, worker, phase, wait) for wait in phase.waits]
    sends = [PACKETS[packet] for packet in phase.writes]
    added = f"  [{MODES[phase.mode]}]" if phase.mode and Packet.RESIDUAL in phase.writes else ""
    text = f"{', '.join(filter(None, waits)) or 'nothing'} -> {', '.join(sends)}{added}"
    return f"{name:10} {what:26} {_size(size) if size else '':>9}   {text}"


def _wait_text(plan: Plan, worker: int, phase: Phase, wait: Wait) -> str:
    if wait.scope is Scope.SAME_ROWS:
        return ""  # its own rows, or rows that it has waited for already: not worth a line
    count = len(plan.writers(worker, phase.index, wait))
    sender = plan.phases[wait.writer]
    late = f" of layer {sender.layer - phase.layer:+d}" if 0 <= sender.layer < phase.layer != -1 else ""
    late = late if wait.scope is Scope.OTHER_LANES else ""
    return f"{PACKETS[wait.packet]} of {count}{late}"


def _size(count: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"
