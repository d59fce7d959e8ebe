"""Measuring how fast one request is decoded.

    laneformer bench decode MODEL --prompt-tokens 32 512 --context 2048 --new-tokens 64 --json result.json

``decode`` measures, ``report`` tells people and tools, ``machine`` says on what.
"""

from infer.bench.decode import (
    DEFAULT_PROMPT,
    Benchmark,
    Run,
    Setting,
    SettingResult,
    bench_decode,
    random_prompt,
    settings,
    timed,
)
from infer.bench.machine import commit, host_cpu
from infer.bench.report import report, table

__all__ = [
    "DEFAULT_PROMPT",
    "Benchmark",
    "Run",
    "Setting",
    "SettingResult",
    "bench_decode",
    "commit",
    "host_cpu",
    "random_prompt",
    "report",
    "settings",
    "table",
    "timed",
]
