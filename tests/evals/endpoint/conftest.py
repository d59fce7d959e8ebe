from __future__ import annotations

from collections.abc import Callable

import pytest

from infer import Engine
from infer.backends.numpy_backend import NumpyBackend
from tests.tiny_models import RandomWeights, ScriptedBackend, byte_level_tokenizer, tiny_config


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The servers of these tests are on this machine, whatever the environment says."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture(scope="session")
def tiny_engine() -> Engine:
    config = tiny_config(max_position_embeddings=512)
    return Engine.from_backend(NumpyBackend(RandomWeights(config)), byte_level_tokenizer())


@pytest.fixture
def scripted_engine() -> Callable[[str], Engine]:
    """An engine that writes a given text, one token a byte, whatever it is asked."""

    def build(text: str) -> Engine:
        config = tiny_config(max_position_embeddings=32_768)
        tokenizer = byte_level_tokenizer()
        return Engine.from_backend(ScriptedBackend(config, list(tokenizer.encode(text))), tokenizer)

    return build
