"""Durable writing: the order that a power failure needs, and nothing in place before it is whole."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

import train.data.durable_files as durable_files
from train.data.durable_files import write_durably


def test_bytes_are_on_the_disk_before_the_name_and_the_name_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "file"
    target.write_bytes(b"old")
    events: list[str] = []
    replace = os.replace

    def watch_fsync(descriptor: int) -> None:
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            events.append("folder synchronized")
        else:
            assert status.st_size == len(b"new content")
            assert target.read_bytes() == b"old"
            events.append("content synchronized")

    def watch_replace(source: Path, destination: Path) -> None:
        events.append("renamed")
        replace(source, destination)

    monkeypatch.setattr(durable_files.os, "fsync", watch_fsync)
    monkeypatch.setattr(durable_files.os, "replace", watch_replace)
    write_durably(target, b"new content")
    assert events == ["content synchronized", "renamed", "folder synchronized"]
    assert os.listdir(tmp_path) == ["file"] and target.read_bytes() == b"new content"
