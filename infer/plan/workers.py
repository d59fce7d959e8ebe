"""Workers: how many there are, which lane each serves, and what it does there.

A worker is one thread, one streaming multiprocessor or one compute unit.  The workers of a lane form
groups.  With *equal shares* there is one group, which plays every phase.  With *roles* one group plays
attention and another the feed-forward module: fewer workers then wait for each exchange.  All lanes
have the same groups, so the same place in another lane owns the same rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from laneformer.config import LaneformerConfig
from laneformer.errors import ConfigError

Role = Literal["all", "attention", "feed_forward"]
MAX_DEVICES = 8


@dataclass(frozen=True)
class Group:
    """Workers of one lane with the same phases; ``cluster_size`` of them exchange by a faster way."""

    role: Role
    size: int
    cluster_size: int = 1


@dataclass(frozen=True)
class Worker:
    """One worker.  ``index`` counts over all lanes, lane by lane, group by group."""

    index: int
    device: int
    lane: int
    role: Role
    place: int  # within the group
    group_size: int
    cluster: int  # within the group


@dataclass(frozen=True)
class Layout:
    """Groups of a lane, the same in every lane, and the devices over which lanes are spread."""

    lanes: int
    groups: tuple[Group, ...]
    devices: int = 1

    @property
    def workers_per_lane(self) -> int:
        """Workers of all groups of one lane."""
        return sum(group.size for group in self.groups)

    @property
    def workers(self) -> tuple[Worker, ...]:
        """All workers, by index."""
        return tuple(
            Worker(
                index=lane * self.workers_per_lane + offset + place,
                # The balanced split of lanes over devices, seen from a lane.
                device=((lane + 1) * self.devices - 1) // self.lanes,
                lane=lane,
                role=group.role,
                place=place,
                group_size=group.size,
                cluster=place // group.cluster_size,
            )
            for lane in range(self.lanes)
            for offset, group in zip(_offsets(self.groups), self.groups, strict=True)
            for place in range(group.size)
        )


def equal_shares(config: LaneformerConfig, workers_per_lane: int, devices: int = 1) -> Layout:
    """One group per lane that plays everything.  :class:`ConfigError` for numbers that make no sense."""
    return _checked(config, (Group("all", workers_per_lane),), devices)


def roles(
    config: LaneformerConfig, attention: int, feed_forward: int, devices: int = 1, cluster_size: int = 1
) -> Layout:
    """Two groups per lane: ``attention`` workers and ``feed_forward`` workers, in clusters.

    Weights are best divided in proportion: see :func:`proportional_roles`.
    """
    groups = (
        Group("attention", attention, cluster_size),
        Group("feed_forward", feed_forward, cluster_size),
    )
    return _checked(config, groups, devices)


def proportional_roles(
    config: LaneformerConfig, workers_per_lane: int, devices: int = 1, cluster_size: int = 1
) -> Layout:
    """Roles in proportion to the weights that they stream, in whole clusters, at least one of each."""
    clusters = workers_per_lane // cluster_size
    if clusters < 2 or clusters * cluster_size != workers_per_lane:
        raise ConfigError(
            f"roles need at least two whole clusters of {cluster_size} per lane, "
            f"found {workers_per_lane} workers"
        )
    head_rows = 2 * config.num_attention_heads + 2 * config.num_key_value_heads
    attention = head_rows * config.head_size / (head_rows * config.head_size + 3 * config.intermediate_size)
    first = min(max(1, round(clusters * attention)), clusters - 1)
    return roles(config, first * cluster_size, (clusters - first) * cluster_size, devices, cluster_size)


def _checked(config: LaneformerConfig, groups: tuple[Group, ...], devices: int) -> Layout:
    for group in groups:
        if group.size < 1:
            raise ConfigError(f"a lane needs at least one worker in each group, found {group.size}")
        if group.cluster_size < 1 or group.size % group.cluster_size:
            raise ConfigError(
                f"clusters of {group.cluster_size} do not divide a group of {group.size} workers"
            )
    if not 1 <= devices <= MAX_DEVICES:
        raise ConfigError(f"devices must be between 1 and {MAX_DEVICES}, found {devices}")
    if devices > config.num_lanes:
        raise ConfigError(
            f"{devices} devices for {config.num_lanes} lane(s): a lane is not split over devices; "
            f"use at most {config.num_lanes}"
        )
    return Layout(config.num_lanes, groups, devices)


def _offsets(groups: tuple[Group, ...]) -> list[int]:
    return [sum(group.size for group in groups[:index]) for index in range(len(groups))]
