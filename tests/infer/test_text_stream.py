"""Text piece by piece equals text at once, for any ids and both families of tokenizer."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infer.text_stream import TextStream
from laneformer.tokenizer import Tokenizer
from tests.tiny_models import byte_fallback_tokenizer, byte_level_tokenizer

BYTE_LEVEL = byte_level_tokenizer()
BYTE_FALLBACK = byte_fallback_tokenizer()
TOKENIZERS = {"byte level": BYTE_LEVEL, "byte fallback": BYTE_FALLBACK}
TEXT = "he said 你好, héllo ab  a\n\n🦜 \ufffd end"


def pieces(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    stream = TextStream(tokenizer)
    return [*(stream.push(token_id) for token_id in ids), stream.flush()]


@given(st.lists(st.integers(0, BYTE_LEVEL.vocab_size + 3), max_size=40))
@settings(max_examples=400, deadline=None)
def test_any_ids_byte_level(ids: list[int]) -> None:
    assert "".join(pieces(BYTE_LEVEL, ids)) == BYTE_LEVEL.decode(ids)


@given(
    st.lists(
        # Mostly bytes that begin or continue characters, mixed with words, specials and unknown ids.
        st.one_of(
            st.integers(0, BYTE_FALLBACK.vocab_size + 3),
            st.integers(0x80 + 3, 0xF8 + 3),
            st.integers(259, 267),
        ),
        max_size=40,
    )
)
@settings(max_examples=600, deadline=None)
def test_any_ids_byte_fallback(ids: list[int]) -> None:
    assert "".join(pieces(BYTE_FALLBACK, ids)) == BYTE_FALLBACK.decode(ids)


@given(st.text(max_size=30))
@settings(max_examples=200, deadline=None)
@pytest.mark.parametrize("name", TOKENIZERS)
def test_any_text_without_half_characters(name: str, text: str) -> None:
    ids = TOKENIZERS[name].encode(text)
    shown = pieces(TOKENIZERS[name], ids)
    assert "".join(shown) == TOKENIZERS[name].decode(ids)
    if "\ufffd" not in text:
        assert not any("\ufffd" in piece for piece in shown)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_text_appears_as_soon_as_it_is_certain(name: str) -> None:
    tokenizer = TOKENIZERS[name]
    ids = tokenizer.encode(TEXT)
    shown = pieces(tokenizer, ids)
    assert "".join(shown) == TEXT
    assert sum(piece != "" for piece in shown) > 10


def test_characters_of_a_byte_run_wait_for_its_end() -> None:
    """E4 BD A0 is a character, unless the run goes on with a byte that breaks it."""
    run = [0xE4 + 3, 0xBD + 3, 0xA0 + 3]
    word = 260
    assert pieces(BYTE_FALLBACK, [*run, word]) == ["", "", "", "你a", ""]
    assert pieces(BYTE_FALLBACK, [*run, 0xFF + 3, word]) == ["", "", "", "", "\ufffd" * 4 + "a", ""]
    assert pieces(BYTE_FALLBACK, run) == ["", "", "", "你"]


def test_half_a_character_shows_at_the_end_only() -> None:
    half = BYTE_LEVEL.encode("aé", add_bos=False)[:-1]
    assert pieces(BYTE_LEVEL, half) == ["a", "", "\ufffd"]


def test_only_the_first_space_is_dropped() -> None:
    assert pieces(BYTE_FALLBACK, [1, 262, 262, 2, 262]) == ["", "a", " a", "", " a", ""]
