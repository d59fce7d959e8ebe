"""``laneformer export`` and ``generate`` as their arguments are typed."""

from __future__ import annotations

import argparse
import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from infer import Engine, cli
from infer.engine_file import EngineFile
from laneformer.errors import CheckpointError, RequestError, TokenizerError
from tests.tiny_models import byte_fallback_tokenizer, tiny_config, write_checkpoint


def run(command: str, *arguments: object) -> int:
    parser = argparse.ArgumentParser()
    add: Callable[[argparse.ArgumentParser], None] = getattr(cli, f"add_{command}_arguments")
    add(parser)
    main: Callable[[argparse.Namespace], int] = getattr(cli, f"run_{command}")
    return main(parser.parse_args([str(argument) for argument in arguments]))


def expected_text(model: Path, prompt: str, count: int) -> str:
    engine = Engine(model)
    assert engine.tokenizer is not None
    ids = engine.tokenizer.encode(prompt)
    return "".join(token.text for token in engine.generate(ids, max_new_tokens=count))


def test_export(checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "model.laneformer"
    assert run("export", checkpoint, out, "--dtype", "bfloat16") == 0
    file = EngineFile(out)
    said = capsys.readouterr().out
    assert f"{len(file.names)} tensors" in said
    assert "bfloat16" in said
    assert file.metadata["source_sha256"][:16] in said
    with pytest.raises(CheckpointError, match="--overwrite"):
        run("export", checkpoint, out)
    assert run("export", checkpoint, out, "--overwrite") == 0
    assert EngineFile(out).metadata["dtype"] == "float32"


def test_generate_text(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("generate", checkpoint, "--prompt", "hello", "--max-new-tokens", 9) == 0
    shown = capsys.readouterr()
    assert shown.out == expected_text(checkpoint, "hello", 9) + "\n"
    summary = shown.err.splitlines()
    assert len(summary) == 1
    assert summary[0].startswith("9 tokens, ")
    assert "tokens/s" in summary[0]
    assert summary[0].endswith("length")


def test_prompt_from_a_file_and_from_standard_input(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = expected_text(checkpoint, "hé", 9) + "\n"
    (tmp_path / "prompt").write_text("hé", encoding="utf-8")
    run("generate", checkpoint, "--prompt-file", tmp_path / "prompt", "--max-new-tokens", 9)
    assert capsys.readouterr().out == expected
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("hé".encode()), encoding="ascii"))
    run("generate", checkpoint, "--max-new-tokens", 9)
    assert capsys.readouterr().out == expected


def test_generate_json_from_token_ids(
    checkpoint_without_tokenizer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--max-new-tokens", 4, "--temperature", 0.9, "--top-k", 50, "--top-p", 0.95, "--min-p", 0.01]
    options += ["--repetition-penalty", 1.1, "--seed", 7]
    run("generate", checkpoint_without_tokenizer, "--token-ids", "1,2,3", "--json", *options)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    expected = Engine(checkpoint_without_tokenizer).generate(
        [1, 2, 3], max_new_tokens=4, temperature=0.9, top_k=50, top_p=0.95, min_p=0.01,
        repetition_penalty=1.1, seed=7,
    )  # fmt: skip
    assert lines == [vars(token) for token in expected]
    assert lines[-1]["finish_reason"] == "length"


def test_generate_stops(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = expected_text(checkpoint, "hello", 9)
    stop = text[3:5]
    options = ["--prompt", "hello", "--max-new-tokens", 9, "--stop", "not in it", "--stop", stop]
    run("generate", checkpoint, *options)
    shown = capsys.readouterr()
    assert shown.out == text[: text.index(stop)] + "\n"
    assert shown.err.endswith("stop\n")


def test_chat(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("jinja2", reason="chat templates need jinja2")
    engine = Engine(checkpoint)
    assert engine.tokenizer is not None
    ids = engine.tokenizer.encode("<s>[user]hello[assistant]", add_bos=False)
    expected = [token.token_id for token in engine.generate(ids, max_new_tokens=3)]
    run("generate", checkpoint, "--chat", "--prompt", "hello", "--json", "--max-new-tokens", 3)
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line)["token_id"] for line in lines] == expected


def test_no_tokens(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("generate", checkpoint, "--prompt", "a", "--max-new-tokens", 0)
    assert capsys.readouterr().err.startswith("0 tokens, n/a tokens/s")


def test_prompts_that_cannot_be_read(
    checkpoint: Path, checkpoint_without_tokenizer: Path, tmp_path: Path
) -> None:
    with pytest.raises(RequestError, match="has no tokenizer: give the prompt as --token-ids"):
        run("generate", checkpoint_without_tokenizer, "--prompt", "a")
    with pytest.raises(RequestError, match="expected whole numbers like 1,2,3, found '1,b'"):
        run("generate", checkpoint, "--token-ids", "1,b")
    with pytest.raises(RequestError, match="--chat needs a text"):
        run("generate", checkpoint, "--token-ids", "1", "--chat")
    with pytest.raises(RequestError, match="missing: cannot be read"):
        run("generate", checkpoint, "--prompt-file", tmp_path / "missing")
    (tmp_path / "latin").write_bytes(b"caf\xe9")
    with pytest.raises(RequestError, match="latin: not UTF-8 text"):
        run("generate", checkpoint, "--prompt-file", tmp_path / "latin")
    with pytest.raises(RequestError, match="unknown backend 'cudnn'"):
        run("generate", checkpoint, "--prompt", "a", "--backend", "cudnn")
    plain = write_checkpoint(tmp_path / "plain", tiny_config(), byte_fallback_tokenizer())
    with pytest.raises(TokenizerError, match="no chat template"):
        run("generate", plain, "--chat", "--prompt", "a")
