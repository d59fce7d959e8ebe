"""A checkpoint folder appears whole or not at all."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from laneformer.checkpoint import Checkpoint
from laneformer.cli import main
from laneformer.errors import CheckpointError
from laneformer.importing import folder_writer, import_checkpoint
from tests.importing.dense_models import dense_config, dense_tensors, write_huggingface


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A tiny Llama in Hugging Face layout."""
    config = dense_config()
    return write_huggingface(tmp_path / "in", config, dense_tensors(config))


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def fill_at_last_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    class FullDisk:
        """A file that takes 100 kB and then no more."""

        def __init__(self, path: Path, mode: str) -> None:
            self.file, self.left = path.open(mode), 100_000

        def write(self, data: memoryview | bytes) -> int:
            self.left -= memoryview(data).nbytes
            if self.left < 0:
                full()
            return self.file.write(data)

        def __getattr__(self, name: str) -> object:
            return getattr(self.file, name)

        def __enter__(self) -> FullDisk:
            return self

        def __exit__(self, *_: object) -> None:
            self.file.close()

    monkeypatch.setattr(folder_writer, "open", FullDisk, raising=False)


def fill_at_new_name(monkeypatch: pytest.MonkeyPatch) -> None:
    rename = os.rename

    def only_old_ones(source: Path, target: Path) -> None:
        if source.name.endswith(".partial"):
            full()
        rename(source, target)

    monkeypatch.setattr(os, "rename", only_old_ones)


FULL: dict[str, Callable[[pytest.MonkeyPatch], object]] = {
    "while writing": fill_at_last_tensor,
    "while flushing": lambda patch: patch.setattr(os, "fsync", full),
    "while naming": fill_at_new_name,
}


@pytest.mark.parametrize("when", FULL)
def test_full_disk_leaves_nothing(
    source: Path,
    tmp_path: Path,
    when: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    FULL[when](monkeypatch)
    assert main(["import", str(source), str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert (
        error == f"error: {tmp_path / 'out'}: cannot be written (the disk is full); nothing was left there\n"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


@pytest.mark.parametrize("when", FULL)
def test_full_disk_keeps_the_checkpoint_that_was_there(
    source: Path, tmp_path: Path, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import_checkpoint(source, tmp_path / "out")
    before = Checkpoint(tmp_path / "out").raw("model.norm.weight").copy()
    FULL[when](monkeypatch)
    with pytest.raises(CheckpointError, match="the disk is full"):
        import_checkpoint(source, tmp_path / "out", lanes=2, overwrite=True)
    monkeypatch.undo()
    checkpoint = Checkpoint(tmp_path / "out")
    assert checkpoint.config.num_lanes == 1
    assert np.array_equal(checkpoint.raw("model.norm.weight"), before)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out"]


def test_interruption_leaves_nothing(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(folder_writer, "_write_shard", interrupt)
    assert main(["import", str(source), str(tmp_path / "out")]) == 130
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_an_existing_folder_is_replaced_only_when_asked(source: Path, tmp_path: Path) -> None:
    import_checkpoint(source, tmp_path / "out", max_shard_bytes=20_000)
    with pytest.raises(CheckpointError, match="exists already; give another name or --overwrite"):
        import_checkpoint(source, tmp_path / "out")
    import_checkpoint(source, tmp_path / "out", lanes=4, overwrite=True)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["config.json", "model.safetensors"]
    assert Checkpoint(tmp_path / "out").config.num_lanes == 4


def test_what_is_no_checkpoint_is_never_overwritten(source: Path, tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "thesis.txt").write_text("years of work")
    (tmp_path / "file").write_text("x")
    for name in ("notes", "file"):
        with pytest.raises(CheckpointError, match="not a checkpoint folder"):
            import_checkpoint(source, tmp_path / name, overwrite=True)
    assert (tmp_path / "notes" / "thesis.txt").exists()
    with pytest.raises(CheckpointError, match="is the source itself"):
        import_checkpoint(source, source, overwrite=True)


def test_parents_are_made_and_an_unwritable_place_is_named(source: Path, tmp_path: Path) -> None:
    import_checkpoint(source, tmp_path / "a" / "b" / "out")
    Checkpoint(tmp_path / "a" / "b" / "out")
    (tmp_path / "file").write_text("x")
    with pytest.raises(CheckpointError, match="cannot be written"):
        import_checkpoint(source, tmp_path / "file" / "out")


def test_command_says_what_it_wrote(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", str(source), str(tmp_path / "out"), "--lanes", "2", "--dtype", "bfloat16"]) == 0
    line = capsys.readouterr().out
    assert line.startswith(f"{tmp_path / 'out'}: LlamaForCausalLM, 0.0 M parameters, 2 lanes, 21 tensors, ")
    assert line.endswith("bfloat16, no tokenizer\n")


def test_links_to_folders_are_followed(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.mkdir()
    (target / "config.json").write_text("old")
    link.symlink_to(target)
    with folder_writer.whole_folder(link, overwrite=True) as folder:
        folder_writer.write_file(folder / "config.json", b"new")
    assert link.is_symlink()
    assert (target / "config.json").read_text() == "new"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "target"]
    dangling = tmp_path / "dangling"
    dangling.symlink_to(tmp_path / "nothing")
    for overwrite, message in ((False, "exists already"), (True, "points nowhere")):
        with (
            pytest.raises(CheckpointError, match=message),
            folder_writer.whole_folder(dangling, overwrite=overwrite),
        ):
            pass
