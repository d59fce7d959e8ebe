"""The SmolLM2 script on a tiny GGUF file, with the CPU in place of the GPU."""

from __future__ import annotations

import json
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from infer.backends.numpy_backend import NumpyBackend
from infer.request import Request
from scripts import smollm2_cuda
from tests.importing.dense_models import dense_config, dense_tensors
from tests.importing.gguf_files import BYTE_LEVEL, write_gguf


@pytest.fixture
def gguf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setitem(sys.modules, "torch", None)  # the machine with a GPU may have none
    config = dense_config(vocab_size=260, max_position_embeddings=64)
    monkeypatch.setattr(smollm2_cuda, "CHECKED_TOKENS", 10)
    monkeypatch.setattr(smollm2_cuda, "PROMPTS", ("hello", "he sells shells\n"))
    return write_gguf(tmp_path / "tiny.gguf", config, dense_tensors(config), **BYTE_LEVEL)


def run(gguf: Path, out: Path) -> tuple[int, dict]:  # type: ignore[type-arg]
    sizes = ["--contexts", "20", "40", "--new-tokens", "8", "--runs", "2"]
    backends = ["--backend", "numpy", "--reference", "cpu"]
    code = smollm2_cuda.main(["--gguf", str(gguf), *backends, *sizes, "--json", str(out)])
    return code, json.loads(out.read_text())


def test_import_check_and_speed(gguf: Path, tmp_path: Path) -> None:
    code, result = run(gguf, tmp_path / "result.json")
    assert code == 0 and result["wrong_tokens"] == 0
    assert result["checked_tokens"] == 20 and len(result["answers"]) == 2
    assert [each["context"] for each in result["decode"]] == [20, 40]
    assert all(len(each["tokens_per_second"]) == 2 for each in result["decode"])
    assert result["read_bandwidth"] == [] and result["decode"][0]["share_of_wall_with_cache"] is None
    assert result["command"].startswith("python scripts/smollm2_cuda.py --gguf tiny.gguf --backend numpy")
    assert str(tmp_path) not in json.dumps(result)


def test_a_wrong_token_is_exit_code_1(gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decode = NumpyBackend.decode

    def wrong(self: NumpyBackend, request: Request) -> Generator[tuple[int, float], None, None]:
        tokens: list[int] = []
        for place, (token, log_probability) in enumerate(decode(self, request)):
            if place == 7:  # the worst token, which says of itself how bad it is
                logits = self.logits([*request.token_ids, *tokens])[-1]
                worst = int(logits.argmin())
                yield worst, log_probability - float(logits.max() - logits[worst])
                return
            tokens.append(token)
            yield token, log_probability

    monkeypatch.setattr(NumpyBackend, "decode", wrong)
    monkeypatch.setattr(smollm2_cuda, "measure", lambda *_: {})
    code, result = run(gguf, tmp_path / "result.json")
    assert code == 1 and result["wrong_tokens"] == 2
    assert [each["wrong"] for each in result["answers"]] == [[7], [7]]
