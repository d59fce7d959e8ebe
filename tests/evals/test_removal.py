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


def test_a_folder_that_is_gone_is_no_error(tmp_path: Path) -> None:
    remove_tree(str(tmp_path / "absent"))
