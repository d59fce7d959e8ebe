"""Tokenizers in GGUF metadata are rebuilt exactly, or refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from laneformer.checkpoint import Checkpoint
from laneformer.errors import TokenizerError
from laneformer.importing import import_checkpoint
from laneformer.tokenizer import Tokenizer
from tests.importing.dense_models import dense_config, dense_tensors
from tests.importing.gguf_files import BYTE_LEVEL, BYTE_LEVEL_TOKENS, write_gguf
from tests.importing.test_gguf_import import dunder
from tests.importing.test_sentencepiece_bpe import NORMAL, PIECES, SCORES, plain_rule
from tests.tiny_models import byte_level_tokenizer

TEXTS = ["hello", "def f(x):\n\treturn 12 + 'é'  # hel\n\n", "  34 hehe</s>", "你好\r\n"]
SENTENCEPIECE: dict[str, Any] = {
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.tokens": PIECES,
    "tokenizer.ggml.scores": SCORES,
    "tokenizer.ggml.token_type": [2, 3, 3, *([6] * 256), *(int(normal) for normal in NORMAL[259:])],
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
}


def imported(tmp_path: Path, values: dict[str, Any], **shape: Any) -> Tokenizer:
    config = dense_config(**shape)
    path = write_gguf(tmp_path / "model.gguf", config, dense_tensors(config), **dunder(values))
    import_checkpoint(path, tmp_path / "out")
    return Tokenizer.from_folder(tmp_path / "out")


def test_byte_level(tmp_path: Path) -> None:
    found, expected = imported(tmp_path, BYTE_LEVEL), byte_level_tokenizer()
    for text in TEXTS:
        assert found.encode(text) == expected.encode(text, add_bos=False)
        assert found.decode(found.encode(text)) == expected.decode(expected.encode(text))
    assert (found.bos_token, found.eos_token) == ("<s>", "</s>")
    assert found.chat_template == "{{ messages[0].content }}"
    config = Checkpoint(tmp_path / "out").config
    assert (config.bos_token_id, config.eos_token_id) == (258, 259)


def test_bos_as_the_file_says(tmp_path: Path) -> None:
    found = imported(tmp_path, BYTE_LEVEL | {"tokenizer.ggml.add_bos_token": True})
    assert found.encode("hel") == [258, 257]


def test_end_of_turn_also_ends_an_answer(tmp_path: Path) -> None:
    imported(tmp_path, BYTE_LEVEL | {"tokenizer.ggml.eot_token_id": 257})
    assert Checkpoint(tmp_path / "out").config.eos_token_ids == (259, 257)


# Words as the published regular expressions cut them: each rule's own treatment of digits, line breaks
# and the letters after an apostrophe.
RULES = {
    "gpt-2": ["def", " f", "(", "x", "1234", "):", "\n\n   ", " return", " X", "'", "S"],
    "smollm": ["def", " f", "(", "x", "1", "2", "3", "4", "):", "\n\n   ", " return", " X", "'", "S"],
    "qwen2": ["def", " f", "(x", "1", "2", "3", "4", "):\n\n", "   ", " return", " X", "'S"],
    "llama-bpe": ["def", " f", "(x", "123", "4", "):\n\n", "   ", " return", " X", "'S"],
    "default": ["def", " f", "(", "x", "123", "4", "):", "\n\n   ", " return", " X", "'", "S"],
}


@pytest.mark.parametrize("rule", RULES)
def test_words_are_cut_by_the_rule_that_is_named(tmp_path: Path, rule: str) -> None:
    found = imported(tmp_path, BYTE_LEVEL | {"tokenizer.ggml.pre": rule})
    text = "def f(x1234):\n\n    return X'S"
    words = found.library_tokenizer.pre_tokenizer.pre_tokenize_str(text)
    assert [text[start:stop] for _, (start, stop) in words] == RULES[rule]


def test_blanks_before_a_number_stay_together_where_digits_are_cut_first(tmp_path: Path) -> None:
    tokens = [*BYTE_LEVEL_TOKENS[:256], "ĠĠ", "ĠĠĠ", "<s>", "</s>"]
    values = BYTE_LEVEL | {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.merges": ["Ġ Ġ", "ĠĠ Ġ"]}
    found = imported(tmp_path, values)
    assert [tokens[token] for token in found.encode("x   12")] == ["x", "ĠĠĠ", "1", "2"]


def test_sentencepiece(tmp_path: Path) -> None:
    found = imported(tmp_path, SENTENCEPIECE, vocab_size=len(PIECES))
    for text in ("def return", "        fun(é)\n", "rnurn  你"):
        assert found.encode(text) == [1, *plain_rule(text)]
        assert found.decode(found.encode(text)) == text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "t5"}, "tokenizer model 't5' is not supported; known: 'gpt2', 'llama'"),
        ({"pre": "tekken"}, "pre-tokenizer 'tekken' is not supported"),
        ({"merges": None}, "metadata tokenizer.ggml.merges is missing"),
        ({"merges": ["h x y"]}, "merge 'h x y' is not of two tokens into a third"),
        ({"token_type": [1] * 3}, "token_type has 3 entries for 260 tokens"),
        ({"tokens": ["a", "a"], "token_type": None}, "holds a token twice"),
        ({"eos_token_id": 260}, "eos_token_id (260) is outside the 260 tokens"),
        ({"tokens": [*BYTE_LEVEL_TOKENS, "x y"], "token_type": None}, "the tokenizer has 261 ids"),
        (
            {"tokens": BYTE_LEVEL_TOKENS[:-1], "token_type": None, "eos_token_id": 0},
            "the tokenizer has 259 ids",
        ),
        ({"model": "llama"}, "metadata tokenizer.ggml.scores is missing"),
        ({"model": "llama", "scores": [0.0] * 260}, "without byte piece <0x00> is not supported"),
    ],
)
def test_what_cannot_be_exact_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    values = BYTE_LEVEL | {f"tokenizer.ggml.{name}": value for name, value in changes.items()}
    with pytest.raises(TokenizerError) as caught:
        imported(tmp_path, values)
    assert message in str(caught.value)
    assert str(tmp_path / "model.gguf") in str(caught.value)
    assert str(caught.value).count("model.gguf") == 1
    assert not (tmp_path / "out").exists()


def test_a_file_without_tokenizer_gives_a_model_without(tmp_path: Path) -> None:
    config = dense_config()
    path = write_gguf(tmp_path / "model.gguf", config, dense_tensors(config))
    assert import_checkpoint(path, tmp_path / "out").tokenizer_ids is None
    assert not (tmp_path / "out" / "tokenizer.json").exists()
