"""The ``laneformer`` command: bad input is one line on stderr and exit code 2, never a traceback."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from laneformer.cli import COMMANDS, HYDRA_COMMANDS, main
from tests.environment import ENVIRONMENT
from tests.tiny_models import RandomWeights, byte_level_tokenizer, tiny_config, write_checkpoint
from tests.train.conftest import write_texts


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint to damage."""
    return write_checkpoint(tmp_path / "model", tiny_config(), byte_level_tokenizer())


@pytest.fixture
def engine_file(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """The same model as an engine file."""
    path = tmp_path / "model.engine"
    assert main(["export", str(folder), str(path)]) == 0
    capsys.readouterr()
    return path


def set_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def set_tensors(folder: Path, change: Callable[[dict[str, np.ndarray]], object]) -> None:
    tensors = RandomWeights(tiny_config()).tensors
    change(tensors)
    write_checkpoint(folder, tiny_config(), byte_level_tokenizer(), tensors=tensors)


def truncate(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])


def poison(tensors: dict[str, np.ndarray]) -> None:
    tensors["model.norm.weight"][3] = np.nan


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing weights": (lambda f: (f / "model.safetensors").unlink(), "neither model.safetensors nor"),
    "truncated weights": (truncate, "truncated or not a safetensors file"),
    "missing tensor": (
        lambda f: set_tensors(f, lambda t: t.pop("model.norm.weight")),
        "tensor model.norm.weight is missing",
    ),
    "extra tensor": (
        lambda f: set_tensors(f, lambda t: t.update(bias=np.ones(3, np.float32))),
        "unexpected tensor bias of shape [3]",
    ),
    "wrong shape": (
        lambda f: set_tensors(f, lambda t: t.update({"model.norm.weight": np.ones(5, np.float32)})),
        "tensor model.norm.weight has shape [5], config.json asks for [32]",
    ),
    "unknown key": (lambda f: set_config(f, logit_scale=2.0), "unknown key logit_scale"),
    "lanes do not divide": (lambda f: set_config(f, num_lanes=3), "num_lanes (3) does not divide"),
    "millions of layers": (
        lambda f: set_config(f, num_hidden_layers=3_000_000),
        "num_hidden_layers must be at most 10000, found 3000000",
    ),
    "more layers than tensors": (
        lambda f: set_config(f, num_hidden_layers=10_000),
        "tensor model.layers.5.attention_norm.weight is missing",
    ),
    "deeply nested": (
        lambda f: (f / "config.json").write_text('{"a": ' * 10**5),
        "config.json: cannot be read as JSON: nested too deep",
    ),
    "settings of another kind": (
        lambda f: (f / "tokenizer_config.json").write_text("[1]"),
        "tokenizer_config.json: expected a JSON object, found list",
    ),
    "NaN weights": (lambda f: set_tensors(f, poison), "tensor model.norm.weight holds 1 values that are NaN"),
    "foreign tokenizer": (lambda f: (f / "tokenizer.json").write_text("{}"), "not a tokenizer.json"),
}


def error_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Run a command that must fail as a user error; the one line that it printed."""
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    return captured.err


@pytest.mark.parametrize("command", ["generate", "export", "evaluate", "bench"])
@pytest.mark.parametrize("case", DAMAGE)
def test_damaged_checkpoint(
    folder: Path, tmp_path: Path, command: str, case: str, capsys: pytest.CaptureFixture[str]
) -> None:
    damage, message = DAMAGE[case]
    damage(folder)
    arguments = {
        "generate": ["generate", str(folder), "--prompt", "x"],
        "export": ["export", str(folder), str(tmp_path / "out")],
        "evaluate": ["evaluate", "humaneval", "--model", str(folder), "--output", str(tmp_path / "out")],
        "bench": ["bench", "decode", str(folder)],
    }[command]
    assert message in error_line(arguments, capsys)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--token-ids", "5,320"], "token id 320 at position 1 is outside the vocabulary"),
        (["--token-ids", ",".join(["7"] * 65)], "65 token ids exceed the context of 64"),
        (["--token-ids", "x"], "token"),
        (["--prompt", "x", "--top-p", "0"], "top_p must be above 0"),
        (["--prompt", "x", "--backend", "abacus"], "unknown backend 'abacus'"),
        (["--prompt-file", "no such file"], "no such file"),
    ],
)
def test_bad_request(
    engine_file: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in error_line(["generate", str(engine_file), *arguments], capsys)


def test_engine_file_of_another_version(engine_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = engine_file.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    header["__metadata__"]["version"] = "999"
    text = json.dumps(header).encode()
    engine_file.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + size :])
    assert "999" in error_line(["generate", str(engine_file), "--prompt", "x"], capsys)


def test_missing_and_truncated_engine_file(engine_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no such" in error_line(["generate", "nowhere", "--prompt", "x"], capsys)
    engine_file.write_bytes(engine_file.read_bytes()[:-1])
    assert "truncated" in error_line(["generate", str(engine_file), "--prompt", "x"], capsys)


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own."""
    command = [sys.executable, "-m", "laneformer", *arguments]
    return subprocess.run(command, cwd=cwd, env=ENVIRONMENT, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["prepare", "data=files", "data.paths=[nothing/*.txt]", "data.folder=out"], "nothing/*.txt"),
        (["prepare", "data=files", "data.folder=out"], "data.paths is empty"),
        (["train", "data=files", "data.paths=[nothing/*.txt]", "data.folder=out"], "nothing/*.txt"),
        (["train", "steps=0"], "steps must be at least 1"),
        (["train", "steps=abc"], "could not be converted to Integer"),
        (["train", "nosuch=1"], "Could not override 'nosuch'"),
        (["train", "model=nosuch"], "Could not find 'model/nosuch'"),
        (["train", "run_dir=/dev/null/x"], "run_dir /dev/null/x cannot be made"),
        (["train", "run_dir=/dev/null"], "run_dir /dev/null cannot be made"),
    ],
)
def test_hydra_commands_fail_on_one_line(tmp_path: Path, arguments: list[str], message: str) -> None:
    done = run(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_jobs_of_a_sweep_do_not_share_a_run_folder(tmp_path: Path) -> None:
    write_texts(tmp_path / "texts")
    data = ["data=files", "data.paths=[texts/*.py]", "data.folder=shards", "data.vocab_size=300"]
    tiny = ["steps=1", "batch_size=1", "sequence_length=16", "held_out.max_tokens=100"]
    sweep = ["--multirun", "seed=1,2", *data, *tiny, "data.held_out_fraction=0.2"]
    shared = run("train", *sweep, "run_dir=one", cwd=tmp_path)
    assert shared.returncode == 2
    assert "two jobs of this sweep have the run_dir one" in shared.stderr.splitlines()[-1]
    own = run("train", *sweep, "run_dir=seed_${seed}", cwd=tmp_path)
    assert own.returncode == 0, own.stderr
    assert (tmp_path / "seed_1" / "last").exists()
    assert (tmp_path / "seed_2" / "last").exists()


def test_every_command_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    assert caught.value.code == 0
    listed = capsys.readouterr().out
    for command in (*COMMANDS, *HYDRA_COMMANDS):
        assert f"  {command} " in listed
    for command in COMMANDS:
        with pytest.raises(SystemExit) as caught:
            main([command, "--help"])
        assert caught.value.code == 0
        assert f"usage: laneformer {command}" in capsys.readouterr().out


def test_generate_streams_text_without_torch(engine_file: Path, tmp_path: Path) -> None:
    without_torch = (
        "import sys; sys.modules['torch'] = None; from laneformer.cli import main; sys.exit(main())"
    )
    command = [sys.executable, "-c", without_torch, "generate", str(engine_file), "--prompt", "hel", "--json"]
    done = subprocess.run(
        [*command, "--max-new-tokens", "4"], env=ENVIRONMENT, cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    tokens = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(tokens) == 4
    assert tokens[-1]["finish_reason"] == "length"


def test_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    environment = {name: value for name, value in ENVIRONMENT.items() if name != "PYTHONUNBUFFERED"}
    command = [sys.executable, "-m", "laneformer", "doctor", "--json"]
    process = subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(timeout=60) == 0
    assert process.stderr is not None
    assert process.stderr.read() == b""
    process.stderr.close()


def test_doctor_reports_what_is_installed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    findings = {finding["subject"]: finding for finding in json.loads(capsys.readouterr().out)}
    assert findings["engine (numpy)"]["state"] == "yes"
    assert f"numpy {np.__version__}" in findings["engine (numpy)"]["detail"]


@pytest.mark.parametrize(("compiler", "state"), [(sys.executable, "yes"), ("no-such-compiler", "no")])
def test_doctor_looks_for_a_compiler(
    compiler: str, state: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CXX", compiler)
    assert main(["doctor", "--json"]) == 0
    findings = {finding["subject"]: finding for finding in json.loads(capsys.readouterr().out)}
    assert findings["engine (cpu)"]["state"] == state
    assert compiler in findings["engine (cpu)"]["detail"]


def test_doctor_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from laneformer import doctor

    installed = doctor.installed_version
    monkeypatch.setattr(
        doctor, "installed_version", lambda name: None if name == "wandb" else installed(name)
    )
    assert main(["doctor"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("log to Weights")]
    assert "no" in line.split()
    assert "missing wandb: pip install 'laneformer[train]'" in line


LONG_NAME = "n" * 300


@pytest.mark.parametrize(
    "arguments",
    [
        ["generate", LONG_NAME, "--prompt", "x"],
        ["generate", "MODEL", "--prompt-file", LONG_NAME],
        ["export", LONG_NAME, "out"],
        ["export", "MODEL", LONG_NAME],
        ["import", LONG_NAME, "out"],
        ["generate", "MODEL", "--prompt", "a\udcff"],
        ["generate", "MODEL", "--prompt", "a", "--stop", "\udcff"],
        ["generate", "MODEL", "--prompt", "a", "--repetition-penalty", "1e300"],
    ],
)
def test_odd_arguments(
    folder: Path,
    tmp_path: Path,
    arguments: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    error_line([str(folder) if argument == "MODEL" else argument for argument in arguments], capsys)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def generate_process(
    engine_file: Path, *arguments: str, **options: object
) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "laneformer", "generate", str(engine_file), "--max-new-tokens", "4"]
    defaults = {"env": ENVIRONMENT, "stderr": subprocess.PIPE, "timeout": 120}
    return subprocess.run([*command, *arguments], **(defaults | options))  # type: ignore[call-overload]


def test_standard_input_must_be_utf8(engine_file: Path) -> None:
    done = generate_process(engine_file, input=b"a\xff", stdout=subprocess.PIPE)
    assert done.returncode == 2
    assert done.stderr.startswith(b"error: standard input: not UTF-8 text")
    assert done.stderr.count(b"\n") == 1


def test_output_that_a_terminal_cannot_show_is_escaped(engine_file: Path) -> None:
    arguments = ["--prompt", "hel", "--max-new-tokens", "24", "--temperature", "9"]
    plain = generate_process(
        engine_file, *arguments, env=ENVIRONMENT | {"PYTHONIOENCODING": "utf-8"}, stdout=subprocess.PIPE
    )
    ascii_only = generate_process(
        engine_file, *arguments, env=ENVIRONMENT | {"PYTHONIOENCODING": "ascii"}, stdout=subprocess.PIPE
    )
    assert not plain.stdout.isascii()
    assert ascii_only.returncode == 0, ascii_only.stderr
    assert ascii_only.stdout == plain.stdout.decode().encode("ascii", "backslashreplace")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("arguments", [[], ["--json"]])
def test_output_on_a_full_disk(engine_file: Path, arguments: list[str]) -> None:
    with open("/dev/full", "wb") as full:
        done = generate_process(engine_file, "--prompt", "hel", *arguments, stdout=full)
    assert done.returncode == 2
    assert done.stderr == b"error: standard output: cannot be written (No space left on device)\n"
