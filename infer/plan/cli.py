"""``laneformer plan``: what the engine would do with a model on given workers.

laneformer plan MODEL --workers 16 --devices 2 --draw --worker 3
"""

from __future__ import annotations

import argparse
from pathlib import Path

from infer.plan.check import check_plan
from infer.plan.draw import draw
from infer.plan.plan import Plan, make_plan
from infer.plan.workers import Layout, equal_shares, proportional_roles
from laneformer.config import LaneformerConfig
from laneformer.errors import RequestError

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def add_plan_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``laneformer plan``."""
    parser.add_argument("model", metavar="MODEL", help="engine file, checkpoint folder or config.json")
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="workers per lane (default: 1)")
    parser.add_argument("--devices", type=int, default=1, metavar="N", help="default: 1")
    parser.add_argument(
        "--roles", action="store_true", help="split a lane's workers into attention and feed-forward"
    )
    parser.add_argument(
        "--cluster", type=int, default=1, metavar="N", help="workers per cluster, with --roles (default: 1)"
    )
    parser.add_argument("--draw", action="store_true", help="draw one worker's timeline for a token")
    parser.add_argument("--worker", type=int, default=0, metavar="I", help="which one (default: 0)")


def run_plan(args: argparse.Namespace) -> int:
    """Check the plan and print its size, or a timeline."""
    config = _config(Path(args.model))
    plan = make_plan(config, _layout(config, args))
    if args.draw:
        if not 0 <= args.worker < len(plan.workers):
            raise RequestError(f"--worker {args.worker}: the plan has workers 0 to {len(plan.workers) - 1}")
        print(draw(plan, args.worker, BYTES[config.dtype]))
        return 0
    check_plan(plan)
    print(_summary(plan))
    return 0


def _summary(plan: Plan) -> str:
    sizes = [
        sum(len(page.rows) * page.columns for page in plan.pages(worker.index)) for worker in plan.workers
    ]
    return (
        f"{len(plan.workers)} workers in {plan.layout.lanes} lane(s) on {plan.layout.devices} device(s), "
        f"{len(plan.phases)} phases per token\n"
        f"weights per worker and token: {min(sizes):,} to {max(sizes):,}\n"
        "checked: each weight in one page, each packet with one writer, no deadlock, no early overwrite"
    )


def _layout(config: LaneformerConfig, args: argparse.Namespace) -> Layout:
    if args.roles:
        return proportional_roles(config, args.workers, args.devices, args.cluster)
    if args.cluster != 1:
        raise RequestError("--cluster needs --roles: equal shares have no clusters")
    return equal_shares(config, args.workers, args.devices)


def _config(path: Path) -> LaneformerConfig:
    if path.is_file() and path.suffix == ".json":
        return LaneformerConfig.from_file(path)
    if path.is_dir():
        return LaneformerConfig.from_file(path / "config.json")
    from infer.weights import open_model

    return open_model(path)[0].config
