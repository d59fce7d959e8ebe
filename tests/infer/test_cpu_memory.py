"""Weights in huge pages: the same bytes, and the mapping itself wherever a copy is not to be had."""

from __future__ import annotations

import errno
import logging
import mmap
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from infer.backends import cpu_memory
from infer.backends.cpu_backend import CpuBackend
from infer.backends.numpy_backend import NumpyBackend
from infer.request import Request
from laneformer.errors import CheckpointError
from tests.tiny_models import RandomWeights, tiny_config

HEADER, BYTES = 4096, (5 << 20) + 64
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="huge pages are asked for on Linux only")


@pytest.fixture
def mapped(tmp_path: Path) -> np.memmap[Any, Any]:
    path = tmp_path / "file"
    path.write_bytes(np.random.default_rng(0).bytes(HEADER + BYTES))
    return np.memmap(path, np.uint8, "r", offset=HEADER)


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A system that has huge pages, did not use them for the mapping, and has memory left."""
    if not cpu_memory.available():
        pytest.skip("this system has no huge pages")
    share = {np.memmap: 0.1, np.ndarray: 1.0}
    monkeypatch.setattr(cpu_memory, "huge_share", lambda data: share[type(data)])
    monkeypatch.setattr(cpu_memory, "free_memory_bytes", lambda: 8 << 30)
    return monkeypatch


def test_the_copy_has_the_bytes_of_the_file_and_begins_with_a_page(
    mapped: np.memmap[Any, Any], system: pytest.MonkeyPatch
) -> None:
    copy = cpu_memory.in_huge_pages(mapped)
    assert copy is not mapped and copy.ctypes.data % cpu_memory.HUGE_PAGE == 0
    np.testing.assert_array_equal(copy, mapped)


def test_where_nothing_is_to_be_gained_the_mapping_stays(
    mapped: np.memmap[Any, Any], system: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), system.context() as patch:
        patch.setattr(cpu_memory, "available", lambda: False)
        assert cpu_memory.in_huge_pages(mapped) is mapped
    with caplog.at_level(logging.WARNING), system.context() as patch:
        patch.setattr(cpu_memory, "huge_share", lambda _: 0.95)
        assert cpu_memory.in_huge_pages(mapped) is mapped
    small = mapped[: 1 << 20]
    assert cpu_memory.in_huge_pages(small) is small  # less than a page
    assert not caplog.records


def refused(*arguments: Any, **_: Any) -> None:
    raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))


WHY_NOT: list[tuple[str, Any, str]] = [
    ("free_memory_bytes", lambda: BYTES + cpu_memory.LEAST_SPARE - 1, "memory is short for a copy"),
    ("free_memory_bytes", refused, "no copy (Cannot allocate memory)"),
    ("huge_share", refused, "no copy (Cannot allocate memory)"),
    ("_copied", refused, "no copy (Cannot allocate memory)"),
    ("huge_share", lambda _: 0.5, "the system had no huge pages left for a copy"),
]


@pytest.mark.parametrize(("what", "becomes", "words"), WHY_NOT)
def test_where_a_copy_cannot_be_had_the_mapping_stays_and_a_warning_says_why(
    what: str,
    becomes: Any,
    words: str,
    mapped: np.memmap[Any, Any],
    system: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    system.setattr(cpu_memory, what, becomes)
    with caplog.at_level(logging.WARNING):
        assert cpu_memory.in_huge_pages(mapped) is mapped
    assert caplog.messages == [f"0.0 GB of weights are not in huge pages, which are read faster: {words}"]
    assert len(mapped.tobytes()) == BYTES


def test_memory_that_suffices_is_used(mapped: np.memmap[Any, Any], system: pytest.MonkeyPatch) -> None:
    system.setattr(cpu_memory, "free_memory_bytes", lambda: BYTES + cpu_memory.LEAST_SPARE)
    assert cpu_memory.in_huge_pages(mapped) is not mapped


def test_a_file_that_was_cut_short_is_an_error(mapped: np.memmap[Any, Any], tmp_path: Path) -> None:
    if not cpu_memory.available():
        pytest.skip("this system has no huge pages")
    with open(
        tmp_path / "file", "r+b"
    ) as file:  # by more than a page: looking at the mapping would be the end
        file.truncate(HEADER + BYTES - (3 << 20))
    with pytest.raises(CheckpointError, match="file: 3145728 bytes fewer than when it was opened"):
        cpu_memory.in_huge_pages(mapped)


def test_a_file_that_was_deleted_stays_mapped(
    mapped: np.memmap[Any, Any], system: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").unlink()
    with caplog.at_level(logging.WARNING):
        assert cpu_memory.in_huge_pages(mapped) is mapped
    assert "no copy (No such file or directory)" in caplog.text


def test_whether_the_system_has_huge_pages(tmp_path: Path) -> None:
    setting = tmp_path / "enabled"
    for text, wanted in (("always [madvise] never\n", True), ("[always] madvise never\n", True)):
        setting.write_text(text)
        assert cpu_memory.available(setting) is wanted
    setting.write_text("always madvise [never]\n")
    assert not cpu_memory.available(setting)
    assert not cpu_memory.available(tmp_path / "nothing")


def test_memory_of_small_pages_has_no_huge_ones() -> None:
    memory = mmap.mmap(-1, 4 * cpu_memory.HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    bytes_ = np.frombuffer(memory, np.uint8)
    bytes_[:] = 1
    assert cpu_memory.huge_share(bytes_) == 0.0


def test_tokens_are_the_same_from_the_copy(system: pytest.MonkeyPatch) -> None:
    system.setattr(cpu_memory, "HUGE_PAGE", mmap.PAGESIZE)  # so that a tiny model is large enough
    weights = RandomWeights(tiny_config())
    engine = CpuBackend(weights)
    assert engine._keep[0] is not engine.tape.bytes
    request = Request((1, 2, 3), max_new_tokens=12)
    wanted = [token for token, _ in NumpyBackend(weights).decode(request)]
    assert [token for token, _ in engine.decode(request)] == wanted
