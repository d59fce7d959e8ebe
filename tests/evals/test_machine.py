"""How many programs run at once: by processors, quotas and memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from evals import judging
from evals.judging import pool_size
from laneformer import machine
from laneformer.errors import EvaluationError

GIB = 1 << 30


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A machine with 8 GiB free and no control group that limits anything."""
    _write(tmp_path / "proc/meminfo", "MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\n")
    _write(tmp_path / "proc/self/cgroup", "0::/outer/inner\n")
    (tmp_path / "sys/fs/cgroup/outer/inner").mkdir(parents=True)
    return tmp_path


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_without_limits_the_machine_counts(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda _: set(range(8)))
    _write(root / "sys/fs/cgroup/outer/inner/cpu.max", "max 100000\n")
    _write(root / "sys/fs/cgroup/outer/inner/memory.max", "max\n")
    _write(root / "sys/fs/cgroup/outer/inner/memory.current", "1000\n")
    assert machine.processors(root) == 8
    assert machine.free_memory_bytes(root) == 8 * GIB


@pytest.mark.parametrize(("quota", "count"), [("250000", 2), ("50000", 1), ("1600000", 8)])
def test_the_quota_of_any_control_group_counts(
    root: Path, monkeypatch: pytest.MonkeyPatch, quota: str, count: int
) -> None:
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda _: set(range(8)))
    _write(root / "sys/fs/cgroup/outer/cpu.max", f"{quota} 100000\n")
    assert machine.processors(root) == count
    # The first version of control groups, in a container whose own group is at the top.
    _write(root / "proc/self/cgroup", "4:cpu,cpuacct:/docker/1234\n3:memory:/docker/1234\n")
    _write(root / "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", f"{quota}\n")
    _write(root / "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n")
    assert machine.processors(root) == count


def test_the_memory_of_any_control_group_counts(root: Path) -> None:
    group = root / "sys/fs/cgroup/outer"
    _write(group / "memory.max", f"{4 * GIB}\n")
    _write(group / "memory.current", f"{3 * GIB}\n")
    assert machine.free_memory_bytes(root) == GIB
    _write(group / "memory.stat", f"anon 1\ninactive_file {GIB}\n")
    assert machine.free_memory_bytes(root) == 2 * GIB
    _write(group / "memory.current", f"{6 * GIB}\n")
    assert machine.free_memory_bytes(root) == 0
    _write(root / "proc/self/cgroup", "3:memory:/docker/1234\n")
    _write(root / "sys/fs/cgroup/memory/memory.limit_in_bytes", f"{2 * GIB}\n")
    _write(root / "sys/fs/cgroup/memory/memory.usage_in_bytes", f"{GIB}\n")
    _write(root / "sys/fs/cgroup/memory/memory.stat", f"total_inactive_file {GIB // 2}\n")
    assert machine.free_memory_bytes(root) == GIB + GIB // 2


def test_this_machine_has_both() -> None:
    assert machine.processors() >= 1
    assert machine.free_memory_bytes() > 1 << 20


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """GiB that are free at each look, the last of them from then on; eight processors."""
    looks = [16]

    def look() -> int:
        return (looks.pop(0) if len(looks) > 1 else looks[0]) * GIB

    monkeypatch.setattr(judging, "free_memory_bytes", look)
    monkeypatch.setattr(judging, "processors", lambda: 8)
    clock = [0.0]
    monkeypatch.setattr(judging.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(judging.time, "sleep", lambda seconds: clock.__setitem__(0, clock[0] + seconds))
    return looks


@pytest.mark.parametrize(("gibibytes", "expected"), [(64, 8), (9, 4), (3, 1)])
def test_the_pool_fits_into_the_memory(
    free: list[int], gibibytes: int, expected: int, capsys: pytest.CaptureFixture[str]
) -> None:
    free[:] = [gibibytes]
    assert pool_size(2 * GIB) == expected
    assert capsys.readouterr().err == ""


def test_it_waits_for_memory(free: list[int], capsys: pytest.CaptureFixture[str]) -> None:
    free[:] = [1, 1, 1, 5]
    assert pool_size(2 * GIB) == 2
    assert capsys.readouterr().err == (
        "warning: a program may take 2.1 GiB of memory, and 1.0 GiB are free: waiting for more\n"
    )


def test_without_memory_it_ends_or_goes_on_as_asked(
    free: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    free[:] = [1]
    with pytest.raises(EvaluationError, match=r"only 1\.0 GiB are free.*--workers 1"):
        pool_size(2 * GIB)
    assert pool_size(2 * GIB, must_run=True) == 1
    assert "going on, one program at a time" in capsys.readouterr().err


def test_what_is_asked_for_is_done_with_a_warning(
    free: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    free[:] = [9]
    assert pool_size(2 * GIB, 4) == 4
    assert capsys.readouterr().err == ""
    assert pool_size(2 * GIB, 12) == 12
    assert "12 programs at once may take 24.8 GiB, and 9.0 GiB are free" in capsys.readouterr().err


def test_a_training_run_goes_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The evaluation of a training run asks for a pool whatever the memory is."""
    generation_checks: Any = pytest.importorskip("train.generation_checks")
    asked: dict[str, Any] = {}

    class AskedError(Exception):
        pass

    def evaluate(*_: Any, **options: Any) -> None:
        asked.update(options)
        raise AskedError

    monkeypatch.setattr(generation_checks, "evaluate_suite", evaluate)
    monkeypatch.setattr(generation_checks, "TorchBackend", lambda _: None)
    monkeypatch.setattr(generation_checks.Engine, "from_backend", lambda *_: None)
    monkeypatch.setattr(generation_checks, "_StoppableGenerator", lambda *_: None)
    config = generation_checks.EvaluationConfig()
    with pytest.raises(AskedError):
        generation_checks.evaluate_model(None, None, None, config, tmp_path / "none", lambda: False)
    assert asked["must_run"] is True


def test_where_affinity_is_not_known_all_processors_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(machine.os, "sched_getaffinity")
    monkeypatch.setattr(machine.os, "cpu_count", lambda: 12)
    assert machine.processors() == 12
