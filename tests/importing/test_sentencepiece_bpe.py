"""Merges made from scores give what SentencePiece's own rule gives."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laneformer.errors import TokenizerError
from laneformer.importing.sentencepiece_bpe import BLANK, sentencepiece_tokenizer

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
WORDS = ["de", "ef", "def", f"{BLANK}d", f"{BLANK}def", "re", "tu", "retu", "return", "urn", "rn", "ur"]
RUNS = [BLANK * length for length in (2, 4, 8, 3, 16, 6)]
LETTERS = [BLANK, *"definrtu"]
PIECES = ["<unk>", "<s>", "</s>", *BYTES, *WORDS, *RUNS, *LETTERS]
# As in Llama's vocabulary: words by rank, runs of blanks and single letters behind them.
SCORES = [0.0] * 259 + [-float(rank) for rank in range(len(WORDS))]
SCORES += [-1e9] * len(RUNS) + [-100.0 - rank for rank in range(len(LETTERS))]
NORMAL = [False] * 259 + [True] * (len(PIECES) - 259)


def plain_rule(text: str) -> list[int]:
    """Join the two neighbours whose piece scores best, the leftmost of equals, until none can be joined."""
    ids = {piece: index for index, piece in enumerate(PIECES)}
    symbols = list(BLANK + text.replace(" ", BLANK))
    while True:
        joined = [left + right for left, right in pairwise(symbols)]
        found = [
            (-SCORES[ids[piece]], place)
            for place, piece in enumerate(joined)
            if piece in ids and NORMAL[ids[piece]]
        ]
        if not found:
            break
        _, place = min(found)
        symbols[place : place + 2] = [joined[place]]
    result: list[int] = []
    for symbol in symbols:
        known = symbol in ids and NORMAL[ids[symbol]]
        result += [ids[symbol]] if known else [ids[f"<0x{byte:02X}>"] for byte in symbol.encode()]
    return result


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet=[*"  \ndefinrtu", "x", "é", "你"], min_size=1, max_size=60))
def test_equals_the_plain_rule(text: str) -> None:
    tokenizer = sentencepiece_tokenizer(PIECES, SCORES, NORMAL, 0, add_space_prefix=True)
    assert tokenizer.encode(text, add_special_tokens=False).ids == plain_rule(text)


def test_text_comes_back() -> None:
    tokenizer = sentencepiece_tokenizer(PIECES, SCORES, NORMAL, 0, add_space_prefix=True)
    text = "def return:\n        é你 x"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


@pytest.mark.parametrize(
    ("pieces", "scores", "message"),
    [
        (PIECES, SCORES[1:], "scores has"),
        ([piece for piece in PIECES if piece != "<0x41>"], SCORES[1:], "without byte piece <0x41>"),
    ],
)
def test_what_cannot_be_exact_is_refused(pieces: list[str], scores: list[float], message: str) -> None:
    with pytest.raises(TokenizerError, match=message):
        sentencepiece_tokenizer(pieces, scores, NORMAL[: len(pieces)], 0, add_space_prefix=True)
