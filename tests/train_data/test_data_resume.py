"""A preparation that is stopped, anywhere and by any means, ends as one that was not."""

from __future__ import annotations

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
from made_up_data import MakeConfig, made_up_code

import train
import train.data.durable_files as durable_files
import train.data.prepare as prepare_module
from laneformer.errors import DataError
from train.data.prepare import prepare
from train.data.shards import TokenDataset


class Stopped(BaseException):
    """Stands for the end of the process; nothing in the program catches it."""


class StoppingDisk:
    """Passes calls on to the system and stops at one of them, before or after it has happened."""

    def __init__(self, stop_at: int | None = None, after: bool = False) -> None:
        self.calls = 0
        self._stop_at = stop_at
        self._after = after

    def wrap(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any) -> Any:
            self.calls += 1
            if self.calls == self._stop_at and not self._after:
                raise Stopped
            result = call(*arguments)
            if self.calls == self._stop_at:
                raise Stopped
            return result

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
    for stop_at in range(1, disk.calls + 1):
        for after in (False, True):
            folder = tmp_path / f"{stop_at}-{after}"
            with monkeypatch.context() as patch, pytest.raises(Stopped):
                StoppingDisk(stop_at, after).install(patch)
                prepare(make_config(folder, **small), progress=False)
            prepare(make_config(folder, **small), progress=False)
            assert contents(folder) == contents(whole.folder), f"stopped at operation {stop_at}, {after=}"


def test_a_resumed_run_encodes_only_what_is_missing(
    make_config: MakeConfig, dataset: TokenDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config(tmp_path, tokenizer=str(dataset.folder))
    with monkeypatch.context() as patch, pytest.raises(Stopped):
        StoppingDisk(stop_at=40).install(patch)
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


@pytest.mark.parametrize("change", ["edited", "removed"])
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
    else:
        del texts[40:]
    write_source()
    with pytest.raises(DataError, match="the source has changed since shard"):
        prepare(config, progress=False)


def test_killed_processes_leave_nothing_behind(make_config: MakeConfig, tmp_path: Path) -> None:
    changes = {"shard_tokens": 1000, "vocab_size": 350}
    whole = prepare(make_config(tmp_path / "whole", **changes), progress=False)
    config = make_config(tmp_path / "killed", **changes)
    program = (
        "import json, sys\n"
        "import train.data.prepare as module\n"
        "from train.data.config import DataConfig\n"
        "module.BATCH_BYTES = 1000\n"
        "module.prepare(DataConfig(**json.loads(sys.argv[1])), progress=False)\n"
    )
    command = [sys.executable, "-c", program, json.dumps(asdict(config))]
    rng = random.Random(0)
    unfinished_shards: list[int] = []
    for _ in range(30):
        process = subprocess.Popen(command, cwd=Path(train.__file__).parents[1])
        wait_for_new_file(Path(config.folder), process)
        time.sleep(rng.uniform(0, 0.03))
        process.send_signal(signal.SIGKILL)
        if process.wait() == 0:
            break
        manifest = Path(config.folder, "manifest.json")
        if manifest.exists():
            splits = json.loads(manifest.read_text())["splits"]
            unfinished_shards.append(sum(len(shards) for shards in splits.values()))
    prepare(config, progress=False)
    assert contents(Path(config.folder)) == contents(whole.folder)
    # At least two runs were killed between the first shard and the last, at different ones.
    assert len({count for count in unfinished_shards if count > 0}) >= 2, unfinished_shards


def wait_for_new_file(folder: Path, process: subprocess.Popen[bytes]) -> None:
    """Until the process has changed something in ``folder`` or has ended."""
    before = sorted(os.listdir(folder)) if folder.exists() else []
    while process.poll() is None and (not folder.exists() or sorted(os.listdir(folder)) == before):
        time.sleep(0.001)
