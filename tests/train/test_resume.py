"""Resuming is exact, whatever ended the process before."""

from __future__ import annotations

import errno
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from laneformer.errors import TrainingError
from tests.environment import ENVIRONMENT
from train import checkpoints
from train.config import CheckpointConfig, HeldOutConfig, OptimizerConfig, SamplesConfig, TrainConfig
from train.data.config import DataConfig
from train.data.prepare import prepare
from train.data.shards import TokenDataset
from train.interruption import StopRequest
from train.run_folder import open_run_folder
from train.trainer import Trainer, train

from .conftest import MODEL, MakeRun, write_texts


def weight_bits(folder: Path) -> dict[str, bytes]:
    return {name: tensor.tobytes() for name, tensor in load_file(folder / "model.safetensors").items()}


def losses(config: TrainConfig) -> list[tuple[int, float]]:
    lines = (Path(config.run_dir) / "metrics.jsonl").read_text().splitlines()
    values = [json.loads(line) for line in lines]
    return [(value["step"], value["loss"]) for value in values if value["kind"] == "train"]


@pytest.fixture
def straight(make_run: MakeRun) -> TrainConfig:
    """A run of 60 steps without interruption."""
    config = make_run("straight")
    train(config)
    return config


def test_thirty_and_thirty_are_sixty_to_the_bit(make_run: MakeRun, straight: TrainConfig) -> None:
    config = make_run("halves", gradient_accumulation=1)
    config.stop_after = 30
    assert train(config).step == 30
    config.stop_after = None
    result = train(config)
    assert result.step == 60
    assert weight_bits(result.checkpoint) == weight_bits(Path(straight.run_dir) / "last")
    assert losses(config) == losses(straight)


def test_resuming_at_the_final_step_changes_nothing(straight: TrainConfig) -> None:
    before = weight_bits(Path(straight.run_dir) / "last")
    lines = (Path(straight.run_dir) / "metrics.jsonl").read_text()
    with open_run_folder(straight) as run_dir:
        trainer = Trainer(straight, run_dir, TokenDataset(straight.data.folder), StopRequest())
        result = trainer.run()
    assert result.step == 60
    assert result.held_out is not None
    in_memory = {name: tensor.numpy().tobytes() for name, tensor in trainer.model.state_dict().items()}
    assert in_memory == before
    assert (Path(straight.run_dir) / "metrics.jsonl").read_text() == lines


# A process that trains and kills itself while it saves: the n-th flush to disk never returns.
KILLED_WHILE_SAVING = """
import os, pickle, signal, sys
from train import checkpoints, trainer
config, flushes = pickle.load(open(sys.argv[1], "rb")), int(sys.argv[2])
real = checkpoints.flush_to_disk
def flush(path):
    global flushes
    if flushes == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    flushes -= 1
    real(path)
checkpoints.flush_to_disk = flush
trainer.train(config)
"""


def start(tmp_path: Path, code: str, config: TrainConfig, *arguments: str) -> subprocess.Popen[str]:
    (tmp_path / "config.pickle").write_bytes(pickle.dumps(config))
    command = [sys.executable, "-c", code, str(tmp_path / "config.pickle"), *arguments]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)


@pytest.mark.parametrize(
    "flushes", [0, 3, 9], ids=["first save, at once", "first save, half done", "second save"]
)
def test_kill_during_a_save_loses_nothing_whole(
    tmp_path: Path, make_run: MakeRun, straight: TrainConfig, flushes: int
) -> None:
    config = make_run("killed", checkpoint=CheckpointConfig(every=20, keep_last=2))
    process = start(tmp_path, KILLED_WHILE_SAVING, config, str(flushes))
    process.communicate(timeout=120)
    assert process.returncode == -signal.SIGKILL
    newest = checkpoints.newest(Path(config.run_dir))
    assert (newest.step if newest else None) == (20 if flushes == 9 else None)
    result = train(config)
    assert weight_bits(result.checkpoint) == weight_bits(Path(straight.run_dir) / "last")
    assert losses(config) == losses(straight)
    assert not list((Path(config.run_dir) / "checkpoints").glob(".*"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_saves_and_leaves_cleanly(tmp_path: Path, make_run: MakeRun, number: int) -> None:
    config = make_run("signalled", steps=100_000)
    code = "import pickle, sys; from train.trainer import train; train(pickle.load(open(sys.argv[1], 'rb')))"
    process = start(tmp_path, code, config)
    metrics = Path(config.run_dir) / "metrics.jsonl"
    deadline = time.monotonic() + 60
    while not (metrics.exists() and metrics.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    step = losses(config)[-1][0]
    assert f"saved step {step}" in errors
    newest = checkpoints.newest(Path(config.run_dir))
    assert newest is not None
    assert newest.step == step


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def garble(path: Path) -> None:
    path.write_bytes(b"x" * path.stat().st_size)


@pytest.mark.parametrize("damage", [cut, garble, Path.unlink])
@pytest.mark.parametrize("name", ["trainer_state.pt", "checkpoint.json"])
def test_damaged_checkpoint_is_passed_over(
    make_run: MakeRun, straight: TrainConfig, capsys, damage: Callable[[Path], None], name: str
) -> None:
    config = make_run("damaged", checkpoint=CheckpointConfig(every=20, keep_last=3))
    train(config)
    damage(Path(config.run_dir) / "last" / name)
    older = checkpoints.newest(Path(config.run_dir))
    assert older is not None
    assert older.step == 40
    assert "step_00000060 is damaged" in capsys.readouterr().err
    config.checkpoint = CheckpointConfig(every=0, keep_last=1)
    config.stop_after = 5
    saved = train(config).checkpoint
    assert saved.name == "step_00000045"
    assert saved.is_dir()  # not pushed out by the damaged one
    config.stop_after = None
    result = train(config)
    assert weight_bits(result.checkpoint) == weight_bits(Path(straight.run_dir) / "last")


def test_copies_under_other_names_are_left_alone(make_run: MakeRun) -> None:
    config = make_run(steps=4, checkpoint=CheckpointConfig(every=1, keep_last=1), stop_after=2)
    checkpoint = train(config).checkpoint
    copy = checkpoint.rename(checkpoint.with_name("step_backup"))
    config.stop_after = None
    assert train(config).checkpoint.name == "step_00000004"
    assert copy.is_dir()


def test_full_disk_keeps_the_checkpoint_before(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    config = make_run(steps=4, checkpoint=CheckpointConfig(every=2, keep_last=1))
    real = checkpoints.flush_to_disk

    def full(path: Path) -> None:
        if "step_00000004" in str(path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        real(path)

    monkeypatch.setattr(checkpoints, "flush_to_disk", full)
    with pytest.raises(TrainingError, match=r"step_00000004: .* cannot be written .*No space left"):
        train(config)
    kept = [path.name for path in (Path(config.run_dir) / "checkpoints").iterdir()]
    assert kept == ["step_00000002"]


def test_optimizer_settings_of_now_count(make_run: MakeRun) -> None:
    config = make_run(steps=4, stop_after=2)
    train(config)
    config.optimizer = OptimizerConfig(weight_decay=0.5, beta1=0.7, epsilon=1e-6)
    with open_run_folder(config) as run_dir:
        trainer = Trainer(config, run_dir, TokenDataset(config.data.folder), StopRequest())
        matrices, scales = trainer.optimizer.param_groups
    assert (matrices["weight_decay"], matrices["betas"], matrices["eps"]) == (0.5, (0.7, 0.95), 1e-6)
    assert scales["weight_decay"] == 0.0
    assert float(next(iter(trainer.optimizer.state.values()))["step"]) == 2  # moments are kept


def test_evaluations_are_the_same_with_stops_between(make_run: MakeRun) -> None:
    def evaluations(config: TrainConfig) -> list[tuple[int, str]]:
        lines = (Path(config.run_dir) / "metrics.jsonl").read_text().splitlines()
        values = [json.loads(line) for line in lines]
        return [(value["step"], value["kind"]) for value in values if value["kind"] != "train"]

    settings = {
        "steps": 12,
        "held_out": HeldOutConfig(every=4, max_tokens=500),
        "samples": SamplesConfig(every=4, prompts=["a"], max_new_tokens=1),
    }
    straight = make_run("without", **settings)
    train(straight)
    stopped = make_run("with", stop_after=4, **settings)
    for _ in range(4):  # the last finds nothing left to do
        train(stopped)
    assert evaluations(stopped) == evaluations(straight) == [(n, "held_out") for n in (4, 8, 12)]
    samples = [(Path(config.run_dir) / "samples.jsonl").read_text() for config in (straight, stopped)]
    assert samples[0] == samples[1]
    assert [json.loads(line)["step"] for line in samples[0].splitlines()] == [4, 8, 12]


def test_only_the_last_checkpoints_are_kept(make_run: MakeRun) -> None:
    config = make_run(checkpoint=CheckpointConfig(every=10, keep_last=2))
    train(config)
    kept = sorted(path.name for path in (Path(config.run_dir) / "checkpoints").iterdir())
    assert kept == ["step_00000050", "step_00000060"]
    assert os.readlink(Path(config.run_dir) / "last") == "checkpoints/step_00000060"


def test_another_tokenizer_is_refused(tmp_path: Path, make_run: MakeRun) -> None:
    config = make_run(steps=2)
    train(config)
    other = DataConfig(
        folder=str(tmp_path / "other"),
        source="files",
        paths=[write_texts(tmp_path / "texts")],
        vocab_size=310,
        held_out_fraction=0.2,
    )
    prepare(other, progress=False)
    config.data = other
    with pytest.raises(TrainingError, match="trained with another tokenizer"):
        train(config)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 1}, "seed = 0, the configuration says 1"),
        ({"batch_size": 2}, "batch_size = 4"),
        ({"model": MODEL | {"broadcast_delay": 1}}, r"model\.broadcast_delay = 2, the configuration says 1"),
        ({"resume": "never"}, "holds checkpoints and resume is 'never'"),
    ],
)
def test_another_run_is_refused(make_run: MakeRun, changes: dict, message: str) -> None:
    train(make_run(steps=2))
    with pytest.raises(TrainingError, match=message):
        train(make_run(steps=4, **changes))


def test_two_processes_do_not_share_a_run(tmp_path: Path, make_run: MakeRun) -> None:
    config = make_run(steps=100_000)
    code = "import pickle, sys; from train.trainer import train; train(pickle.load(open(sys.argv[1], 'rb')))"
    process = start(tmp_path, code, config)
    try:
        deadline = time.monotonic() + 60
        while not (Path(config.run_dir) / "metrics.jsonl").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        with pytest.raises(TrainingError, match="another process is training there"):
            train(config)
    finally:
        process.kill()
        process.communicate()
