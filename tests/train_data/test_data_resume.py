"""A preparation that is stopped, anywhere and by any means, ends as one that was not."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

import train
import train.data.durable_files as durable_files
import train.data.prepare as prepare_module
from laneformer.errors import DataError
from tests.train_data.made_up_data import MakeConfig, made_up_code
from train.data.manifest import Manifest
from train.data.prepare import prepare
from train.data.shards import TokenDataset


class Stopped(BaseException):
    """Stands for the end of the process; nothing in the program catches it."""


class StoppingDisk:
    """Stops before one of the calls that make a file durable; counts them.

    Everything that differs on the disk lies between two of these calls.
    """

    def __init__(self, stop_before: int | None = None) -> None:
        self.calls = 0
        self._stop_before = stop_before

    def wrap(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any) -> Any:
            self.calls += 1
            if self.calls == self._stop_before:
                raise Stopped
            return call(*arguments)

        return wrapped

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(durable_files.os, "fsync", self.wrap(os.fsync))
        monkeypatch.setattr(durable_files.os, "replace", self.wrap(os.replace))


def stop_before_the_end(folder: Path, monkeypatch: pytest.MonkeyPatch, run: Callable[[], object]) -> None:
    """Run until every shard is written, then stop."""

    def stop(*arguments: object) -> None:
        raise Stopped

    with monkeypatch.context() as patch, pytest.raises(Stopped):
        patch.setattr(prepare_module, "_require_documents", stop)
        run()
    assert not json.loads((folder / "manifest.json").read_text())["complete"]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_stopping_at_every_disk_operation(
    make_config: MakeConfig, dataset: TokenDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = {"max_documents": 60, "shard_tokens": 3000, "tokenizer": str(dataset.folder)}
    disk = StoppingDisk()
    with monkeypatch.context() as patch:
        disk.install(patch)
        whole = prepare(make_config(tmp_path / "whole", **small), progress=False)
    assert len(whole.manifest.splits["train"]) > 2
    for stop_before in range(1, disk.calls + 1):
        folder = tmp_path / str(stop_before)
        with monkeypatch.context() as patch, pytest.raises(Stopped):
            StoppingDisk(stop_before).install(patch)
            prepare(make_config(folder, **small), progress=False)
        prepare(make_config(folder, **small), progress=False)
        assert contents(folder) == contents(whole.folder), f"stopped before operation {stop_before}"


class FullDisk:
    """Has no room when one of the calls that make a file durable is made, and from then on."""

    def __init__(self, full_from: int) -> None:
        self._calls_left = full_from - 1

    def wrap(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any) -> Any:
            if not self._calls_left:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._calls_left -= 1
            return call(*arguments)

        return wrapped


@pytest.mark.parametrize("operation", ["open", "write", "fsync", "replace"])
def test_a_full_disk_is_told_and_resumed_from_when_there_is_room(
    make_config: MakeConfig,
    dataset: TokenDataset,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    operation: str,
) -> None:
    small = {"max_documents": 60, "shard_tokens": 3000, "tokenizer": str(dataset.folder)}
    whole = contents(prepare(make_config(tmp_path / "whole", **small), progress=False).folder)
    opened = Path.open
    for full_from in (1, 2, 3, 4, 7, 10):
        folder = tmp_path / f"{operation}{full_from}"
        disk = FullDisk(full_from)

        def open_partial(
            path: Path, mode: str = "r", *arguments: Any, disk: FullDisk = disk, **options: Any
        ) -> Any:
            if mode != "wb":
                return opened(path, mode, *arguments, **options)
            if operation == "open":
                return disk.wrap(opened)(path, mode)
            file = opened(path, mode)
            if operation == "write":
                return HalfWritten(file, disk)
            return file

        with monkeypatch.context() as patch, pytest.raises(DataError, match="No space left on device"):
            patch.setattr(Path, "open", open_partial)
            if operation in ("fsync", "replace"):
                patch.setattr(durable_files.os, operation, disk.wrap(getattr(os, operation)))
            prepare(make_config(folder, **small), progress=False)
        assert not list(folder.glob("*.partial"))
        for name, content in contents(folder).items():
            assert name == "manifest.json" or content == whole[name], "half written"
        prepare(make_config(folder, **small), progress=False)
        assert contents(folder) == whole


class HalfWritten:
    """A file of which a full disk takes only the first half."""

    def __init__(self, file: Any, disk: FullDisk) -> None:
        self._file = file
        self._write = disk.wrap(file.write)

    def __enter__(self) -> HalfWritten:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, content: bytes) -> None:
        self._file.write(content[: len(content) // 2])
        self._file.seek(0)
        self._write(content)


def test_a_resumed_run_encodes_only_what_is_missing(
    make_config: MakeConfig, dataset: TokenDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config(tmp_path, tokenizer=str(dataset.folder))
    with monkeypatch.context() as patch, pytest.raises(Stopped):
        StoppingDisk(stop_before=40).install(patch)
        prepare(config, progress=False)
    splits = json.loads((tmp_path / "manifest.json").read_text())["splits"]
    written = sum(shard["documents"] for shards in splits.values() for shard in shards)
    assert 0 < written < 200
    encoded: list[str] = []
    original = prepare_module.Tokenizer.encode_plain

    def spy(self: Any, texts: list[str]) -> list[list[int]]:
        encoded.extend(texts)
        return original(self, texts)

    monkeypatch.setattr(prepare_module.Tokenizer, "encode_plain", spy)
    prepare(config, progress=False)
    assert len(encoded) == 200 - written


def test_an_unfinished_folder_is_no_data_set(
    make_config: MakeConfig, dataset: TokenDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config(tmp_path, tokenizer=str(dataset.folder))
    stop_before_the_end(tmp_path, monkeypatch, lambda: prepare(config, progress=False))
    with pytest.raises(DataError, match="was interrupted; run it again"):
        TokenDataset(tmp_path)
    with pytest.raises(DataError, match="holds an unfinished data set made with shard_tokens 4000"):
        prepare(make_config(tmp_path, tokenizer=str(dataset.folder), shard_tokens=5000), progress=False)


def test_files_that_no_manifest_lists_are_removed(
    make_config: MakeConfig, dataset: TokenDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config(tmp_path, tokenizer=str(dataset.folder))
    stop_before_the_end(tmp_path, monkeypatch, lambda: prepare(config, progress=False))
    stale = [
        "train-00099.bin",
        "train-00099.documents.npy",
        "train-00098.bin.partial",
        "manifest.json.partial",
    ]
    foreign = ["notes.txt", "download.partial"]
    for name in stale + foreign:
        (tmp_path / name).write_bytes(b"left over")
    prepare(config, progress=False)
    assert set(os.listdir(tmp_path)) == {*os.listdir(dataset.folder), *foreign}
    assert all((tmp_path / name).read_bytes() == b"left over" for name in foreign)


@pytest.mark.parametrize("change", ["edited", "removed", "reordered"])
def test_a_source_that_changed_in_between_is_noticed(
    make_config: MakeConfig,
    dataset: TokenDataset,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: str,
) -> None:
    source = tmp_path / "source.jsonl"
    texts = [made_up_code(seed) for seed in range(60)]

    def write_source() -> None:
        source.write_text("\n".join(json.dumps({"text": text}) for text in texts))

    write_source()
    config = make_config(tmp_path / "data", paths=[str(source)], tokenizer=str(dataset.folder))
    stop_before_the_end(tmp_path / "data", monkeypatch, lambda: prepare(config, progress=False))
    if change == "edited":
        texts[3] += "# edited\n"
    elif change == "removed":
        del texts[40:]
    else:
        texts.reverse()
    write_source()
    with pytest.raises(DataError, match="the source has changed since shard"):
        prepare(config, progress=False)


def test_killed_processes_leave_nothing_behind(make_config: MakeConfig, tmp_path: Path) -> None:
    changes = {"shard_tokens": 1000, "vocab_size": 350}
    whole = prepare(make_config(tmp_path / "whole", **changes), progress=False)
    folder = tmp_path / "killed"
    config = make_config(folder, **changes)
    program = (
        "import json, os, sys, time\n"
        "from train.data.config import DataConfig\n"
        "from train.data.prepare import prepare\n"
        "os.fsync = lambda descriptor: time.sleep(0.002)\n"  # slow enough to be caught in the middle
        "prepare(DataConfig(**json.loads(sys.argv[1])), progress=False)\n"
    )
    command = [sys.executable, "-c", program, json.dumps(asdict(config))]
    rng = random.Random(0)
    unfinished: set[int] = set()
    for num_shards in (0, 0, 1, 2, 2, 9, 20):
        process = subprocess.Popen(command, cwd=Path(train.__file__).parents[1])
        wait_for_shards(folder, num_shards, process)
        # Without a shard to wait for, somewhere in the imports or the tokenizer.
        time.sleep(rng.uniform(0, 0.02 if num_shards else 0.3))
        process.send_signal(signal.SIGKILL)
        process.wait()
        manifest = Manifest.read(folder) if folder.exists() else None
        if manifest is not None and not manifest.complete:
            unfinished.add(sum(len(shards) for shards in manifest.splits.values()))
    prepare(config, progress=False)
    assert contents(folder) == contents(whole.folder)
    assert len(unfinished - {0}) >= 2, "the processes were not killed between the first shard and the last"


def wait_for_shards(folder: Path, num_shards: int, process: subprocess.Popen[bytes]) -> None:
    """Until there are so many files of tokens or the process has ended."""
    while process.poll() is None and len(list(folder.glob("*.bin"))) < num_shards:
        time.sleep(0.001)
