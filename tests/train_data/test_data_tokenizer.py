"""Tokenizer training: lossless, deterministic, of the size asked for, with the units that code has."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laneformer.errors import DataError
from laneformer.tokenizer import Tokenizer
from tests.train_data.made_up_data import made_up_code
from train.data.tokenizer_training import BOS, EOS, PAD, train_tokenizer

TEXTS = [made_up_code(seed) for seed in range(100)]
TOKENIZER = train_tokenizer(TEXTS, vocab_size=500)

CODE_PIECES = [
    "\n",
    "\r\n",
    "    ",
    "\t",
    " ",
    "\f",
    "__",
    "_",
    "x",
    "é",
    "e\u0301",
    "12345",
    "<|eos|>",
    "\0",
    "😀",
]
code_like = st.lists(st.sampled_from(CODE_PIECES)).map("".join)


@given(st.text() | code_like)
def test_every_text_comes_back(text: str) -> None:
    [ids] = TOKENIZER.encode_plain([text])
    assert TOKENIZER.decode(ids) == text
    assert not set(ids) & {0, 1, 2}  # a special token that is spelled out stays text


def test_special_tokens_come_first() -> None:
    assert [TOKENIZER.library_tokenizer.token_to_id(token) for token in (BOS, EOS, PAD)] == [0, 1, 2]
    assert (TOKENIZER.bos_id, TOKENIZER.eos_id) == (0, 1)


def test_training_is_deterministic() -> None:
    assert train_tokenizer(TEXTS, vocab_size=500).fingerprint == TOKENIZER.fingerprint
    of_other_texts = train_tokenizer([made_up_code(seed) for seed in range(100, 200)], vocab_size=500)
    assert of_other_texts.fingerprint != TOKENIZER.fingerprint


def test_saved_tokenizer_has_the_same_fingerprint(tmp_path: Path) -> None:
    TOKENIZER.save(tmp_path)
    assert Tokenizer.from_folder(tmp_path).fingerprint == TOKENIZER.fingerprint


def test_vocabulary_has_the_size_asked_for() -> None:
    assert TOKENIZER.vocab_size == 500
    with pytest.raises(DataError, match=r"vocabulary of 5000 tokens, it gives \d+"):
        train_tokenizer(TEXTS[:3], vocab_size=5000)


@pytest.mark.parametrize(
    ("text", "units"),
    [
        ("if x:\n        return", ["if", " x", ":", "\n        ", "return"]),
        ("a\n\n\n    b", ["a", "\n\n\n    ", "b"]),
        ("x     # far", ["x", "    ", " #", " far"]),
        ("n = 1234567", ["n", " =", " 123", "456", "7"]),
        ("snake_case", ["snake", "_case"]),
        ("self.__init__(a)", ["self", ".", "__init", "__", "(", "a", ")"]),
        ("end  \n", ["end", "  ", "\n"]),
    ],
)
def test_units_of_code(text: str, units: list[str]) -> None:
    pieces = TOKENIZER.library_tokenizer.pre_tokenizer.pre_tokenize_str(text)
    assert [text[start:stop] for _, (start, stop) in pieces] == units


def test_common_indentation_is_one_token() -> None:
    assert len(TOKENIZER.encode_plain(["\n            "])[0]) == 1
