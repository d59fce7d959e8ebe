"""A model by path and back end, and chat prompts from its own template."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from evals import cli
from evals.models import open_engine
from infer.export import export_engine_file
from laneformer.errors import CheckpointError, EvaluationError
from laneformer.tokenizer import Tokenizer
from tests.tiny_models import byte_level_tokenizer, tiny_config, write_checkpoint

TEMPLATE = "{{ bos_token }}{% for message in messages %}Q: {{ message.content }}\nA: {% endfor %}"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    config = tiny_config(max_position_embeddings=1024)
    return write_checkpoint(tmp_path / "model", config, byte_level_tokenizer(TEMPLATE))


def test_torch_writes_what_the_engine_writes(checkpoint: Path) -> None:
    pytest.importorskip("torch")
    tokens = []
    for backend in ("torch", "numpy"):
        engine = open_engine(checkpoint, backend)
        assert engine.backend_name == backend
        ids = engine.tokenizer.encode("def f(x):")
        tokens.append([token.token_id for token in engine.generate(ids, max_new_tokens=12)])
    assert tokens[0] == tokens[1]


def test_torch_reads_folders_only(checkpoint: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    export_engine_file(checkpoint, tmp_path / "model.engine")
    with pytest.raises(CheckpointError, match="the torch back end reads checkpoint folders"):
        open_engine(tmp_path / "model.engine", "torch")
    with pytest.raises(CheckpointError, match="absent"):
        open_engine(tmp_path / "absent", "torch")


def test_a_missing_torch_is_told(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    for name in [name for name in sys.modules if name.startswith("train.")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(EvaluationError, match=r"needs torch.*pip install 'laneformer\[train\]'"):
        open_engine(checkpoint, "torch")


@pytest.mark.parametrize("kind", ["folder", "engine file"])
def test_chat_prompts_come_from_the_models_own_template(checkpoint: Path, tmp_path: Path, kind: str) -> None:
    model = checkpoint
    if kind == "engine file":
        model = tmp_path / "model.engine"
        export_engine_file(checkpoint, model)
    arguments = [
        "basics",
        "--model",
        str(model),
        "--backend",
        "numpy",
        "--limit",
        "2",
        "--max-new-tokens",
        "4",
    ]
    assert cli.main([*arguments, "--prompt-format", "chat", "--output", str(tmp_path / "out")]) == 0
    lines = (tmp_path / "out" / "prompts.jsonl").read_text().splitlines()
    prompts = [json.loads(line)["prompt"] for line in lines]
    assert len(prompts) == 2
    assert all(text.startswith("<s>Q: Complete this Python") for text in prompts)
    assert all(text.endswith("A: ```python\n") for text in prompts)
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    expected = {"suite": "basics", "prompt_format": "chat", "shots": 0, "backend": "numpy", "split": None}
    assert summary["settings"].items() >= expected.items()


def test_another_template_is_another_run(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["basics", "--model", str(checkpoint), "--backend", "numpy", "--limit", "1"]
    arguments += ["--max-new-tokens", "1", "--prompt-format", "chat", "--output", str(tmp_path / "out")]
    assert cli.main(arguments) == 0
    (checkpoint / "chat_template.jinja").write_text("{{ messages[0].content }}")
    assert Tokenizer.from_folder(checkpoint).chat_template == "{{ messages[0].content }}"
    capsys.readouterr()
    assert cli.main(arguments) == 2
    error = capsys.readouterr().err
    assert "model_sha256" in error and "prompts_sha256" in error


def test_a_model_without_template_is_no_chat_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_checkpoint(tmp_path / "model", tiny_config(), byte_level_tokenizer())
    assert cli.main(["basics", "--model", str(folder), "--backend", "numpy", "--prompt-format", "chat"]) == 2
    assert capsys.readouterr().err == "error: the model has no chat template: use the prompt format base\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["basics", "--verify-canonical", "--prompt-format", "chat"], "no chat template: use base"),
        (
            ["mbpp", "--model", "m", "--prompt-format", "chat", "--shots", "3"],
            "--shots is for the prompt format base",
        ),
        (["mbpp", "--model", "m", "--problems", "absent.jsonl"], "absent.jsonl does not exist"),
        (["humaneval_plus", "--model", "m"], "HumanEvalPlus.jsonl"),
        (["basics", "--model", "absent", "--backend", "abacus"], "unknown backend 'abacus'"),
    ],
)
def test_errors_are_told_before_a_model_is_loaded(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.delenv("LANEFORMER_SUITES", raising=False)
    assert cli.main(arguments) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
