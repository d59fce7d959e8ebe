"""The engine's plan: who computes which rows, in which order, and who waits for whom.

A plan is arithmetic on indices, made from a configuration and a number of workers.  The tape packs
weights by it and every back end plays it; :mod:`infer.plan.check` proves that it cannot deadlock.

    plan = make_plan(config, equal_shares(config, workers_per_lane=16, devices=2))
    plan.pages(worker=3)
"""

from infer.plan.phases import Op, Packet, Phase, Scope, Wait, phases_of
from infer.plan.plan import Page, Plan, make_plan
from infer.plan.workers import Layout, Worker, equal_shares, roles

__all__ = [
    "Layout",
    "Op",
    "Packet",
    "Page",
    "Phase",
    "Plan",
    "Scope",
    "Wait",
    "Worker",
    "equal_shares",
    "make_plan",
    "phases_of",
    "roles",
]
