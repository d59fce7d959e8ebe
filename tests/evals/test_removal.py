from __future__ import annotations

import os
from pathlib import Path

from evals.sandbox.removal import remove_tree


def test_removes_deep_closed_and_linked_folders(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "link").symlink_to(outside)
    closed = folder / "closed"
    (closed / "inner").mkdir(parents=True)
    (closed / "inner" / "file").touch()
    closed.joinpath("inner").chmod(0)
    closed.chmod(0)
    # Deeper than the recursion limit, and a longer path than the kernel takes.
    descriptor = os.open(folder, os.O_RDONLY)
    for _ in range(1100):
        os.mkdir("dddd", dir_fd=descriptor)
        below = os.open("dddd", os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = below
    os.close(descriptor)
    folder.chmod(0o500)

    remove_tree(str(folder))

    assert not folder.exists()
    assert (outside / "kept").exists()


def test_what_is_no_folder_is_unlinked(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "kept").touch()
    (tmp_path / "link").symlink_to(tmp_path / "outside")
    (tmp_path / "dangling").symlink_to(tmp_path / "absent")
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "dangling", "file", "pipe"):
        remove_tree(str(tmp_path / name))
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["kept", "outside"]


def test_a_closed_folder_is_opened(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "file").touch()
    folder.chmod(0)
    remove_tree(str(folder))
    assert not folder.exists()


def test_a_folder_that_is_gone_is_no_error(tmp_path: Path) -> None:
    remove_tree(str(tmp_path / "absent"))
