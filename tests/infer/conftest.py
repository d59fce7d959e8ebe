"""Models that several test files read."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tiny_models import byte_level_tokenizer, tiny_config, write_checkpoint

CHAT_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with a byte-level tokenizer and a chat template.  Not to be written to."""
    folder = tmp_path_factory.mktemp("checkpoint")
    return write_checkpoint(folder, tiny_config(), byte_level_tokenizer(CHAT_TEMPLATE))


@pytest.fixture(scope="session")
def checkpoint_without_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model, in token ids only."""
    return write_checkpoint(tmp_path_factory.mktemp("no-tokenizer"), tiny_config())
