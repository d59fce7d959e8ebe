"""Warm-up-stable-decay learning rate (Hu et al. 2024, "MiniCPM"): a function of the step alone."""

from __future__ import annotations

from train.config import ScheduleConfig


def learning_rate(step: int, total_steps: int, peak: float, schedule: ScheduleConfig) -> float:
    """Learning rate of ``step`` (from 0): linear up, flat, linear down over the last ``decay_fraction``."""
    warmup = min(1.0, (step + 1) / (schedule.warmup_steps + 1))
    decay_steps = round(total_steps * schedule.decay_fraction)
    remaining = total_steps - step  # 1 at the last step
    decay = 1.0
    if remaining <= decay_steps:
        decay = schedule.final_ratio + (1 - schedule.final_ratio) * remaining / (decay_steps + 1)
    return peak * min(warmup, decay)
