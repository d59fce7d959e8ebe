"""Train a byte-level BPE tokenizer for source code.

    tokenizer = train_tokenizer(texts, vocab_size=4096)

Every text comes back from its ids unchanged: all 256 bytes are in the vocabulary and nothing is
normalized.  The ids depend on the texts and the vocabulary size alone.
"""

from __future__ import annotations

from collections.abc import Iterable

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from laneformer.errors import DataError
from laneformer.tokenizer import Tokenizer

BOS, EOS, PAD = "<|bos|>", "<|eos|>", "<|pad|>"
SPECIAL_TOKENS = (BOS, EOS, PAD)  # ids 0, 1, 2
SMALLEST_VOCABULARY = len(SPECIAL_TOKENS) + 256

# Merges never cross these units.  Indentation belongs to the line break before it, so that a nested line
# costs one token for its place; a word carries the one space before it; longer runs of spaces (aligned
# comments, tables) leave that last space to the word.
UNITS = "|".join(
    (
        r"[\r\n]+[^\S\r\n]*",  # line breaks and the indentation that follows
        r" ?_*[\p{L}\p{M}]+",  # a word, or one part of a snake_case name
        r" ?\p{N}{1,3}",  # at most three digits
        r" ?_+",
        r" ?[^\s\p{L}\p{N}_]+",  # operators and punctuation
        r"[^\S\r\n]+(?!\S)",  # spaces, less the one that a unit above takes
        r"[^\S\r\n]+",
    )
)
# A pair seen once says nothing about the language.
LEAST_PAIR_COUNT = 2


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Tokenizer of exactly ``vocab_size`` tokens, the special ones included.

    Raises :class:`DataError` where the texts hold too few repeated pairs for that many tokens.
    """
    library_tokenizer = tokenizers.Tokenizer(models.BPE())
    library_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(tokenizers.Regex(UNITS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    library_tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=LEAST_PAIR_COUNT,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    library_tokenizer.train_from_iterator(texts, trainer=trainer)
    tokenizer = Tokenizer(library_tokenizer, bos_token=BOS, eos_token=EOS)
    if tokenizer.vocab_size != vocab_size:
        raise DataError(
            f"the text is too small for a vocabulary of {vocab_size} tokens, "
            f"it gives {tokenizer.vocab_size}: lower data.vocab_size to that or give more text"
        )
    return tokenizer
