"""The tokenizer in a GGUF file's metadata, built with the ``tokenizers`` library.

Two models are known: ``gpt2``, byte-level BPE with a list of merges, and ``llama``, SentencePiece BPE with
a score per piece (:mod:`laneformer.importing.sentencepiece_bpe`).  How ``gpt2`` cuts text into words
before it merges is named by ``tokenizer.ggml.pre``; a name that is not known here is refused, for another
rule gives other tokens.
"""

from __future__ import annotations

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from laneformer.errors import CheckpointError, TokenizerError
from laneformer.importing.gguf_file import GgufFile
from laneformer.importing.sentencepiece_bpe import sentencepiece_tokenizer
from laneformer.tokenizer import Tokenizer, Usual

# Kinds of tokens, as numbered in ``tokenizer.ggml.token_type``.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6

# GPT-2's rule: contractions, then words, numbers and signs with the blank before them, then blanks.
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
# Rules by name; where there are several, each cuts what the ones before left whole.
WORD_RULES: dict[str, tuple[str, ...]] = {
    "gpt-2": (_GPT2,),
    "smollm": (r"\p{N}", _GPT2),
    "starcoder": (r"\p{N}", _GPT2),
    "llama-bpe": (_LLAMA3,),
    "llama3": (_LLAMA3,),
    "llama-v3": (_LLAMA3,),
    "qwen2": (_QWEN2,),
    "deepseek-r1-qwen": (_QWEN2,),
    "default": (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"),
}
LLAMA3_NAMES = ("llama-bpe", "llama3", "llama-v3")  # take a word that is a token whole, and begin with BOS
QWEN_NAMES = ("qwen2", "deepseek-r1-qwen")  # normalize to NFC


def read_tokenizer(file: GgufFile) -> Tokenizer | None:
    """The tokenizer of a GGUF file; None where it has none.

    Raises :class:`TokenizerError` for one that is damaged or cannot be built exactly, by name.
    """
    if "tokenizer.ggml.model" not in file.keys:
        return None
    model = file.text("tokenizer.ggml.model")
    try:
        tokens = [str(token) for token in file.array("tokenizer.ggml.tokens")]
        kinds = _kinds(file, len(tokens))
        if len(set(tokens)) != len(tokens):
            raise TokenizerError("tokenizer.ggml.tokens holds a token twice")
        if model == "gpt2":
            library = _byte_level(file, tokens)
            default_bos = file.text("tokenizer.ggml.pre", "default") in LLAMA3_NAMES
        elif model == "llama":
            scores = [float(score) for score in file.array("tokenizer.ggml.scores")]
            prefix = file.flag("tokenizer.ggml.add_space_prefix", True)
            if file.flag("tokenizer.ggml.remove_extra_whitespaces", False):
                raise TokenizerError("tokenizer.ggml.remove_extra_whitespaces is not supported")
            unknown = kinds.index(UNKNOWN) if UNKNOWN in kinds else None
            normal = [kind == NORMAL for kind in kinds]
            library = sentencepiece_tokenizer(tokens, scores, normal, unknown, add_space_prefix=prefix)
            default_bos = True
        else:
            raise TokenizerError(f"tokenizer model {model!r} is not supported; known: 'gpt2', 'llama'")
        _add_special(library, tokens, kinds)
        return Tokenizer(
            library,
            bos_token=_token(file, tokens, "bos"),
            eos_token=_token(file, tokens, "eos"),
            chat_template=file.text("tokenizer.chat_template", "") or None,
            add_bos_token=file.flag("tokenizer.ggml.add_bos_token", default_bos),
        )
    except (CheckpointError, TokenizerError) as error:
        raise TokenizerError(f"{file.path}: {str(error).removeprefix(f'{file.path}: ')}") from None


def _kinds(file: GgufFile, count: int) -> list[int]:
    if "tokenizer.ggml.token_type" not in file.keys:
        return [NORMAL] * count
    kinds = [int(kind) for kind in file.array("tokenizer.ggml.token_type")]
    if len(kinds) != count:
        raise TokenizerError(f"tokenizer.ggml.token_type has {len(kinds)} entries for {count} tokens")
    return kinds


def _byte_level(file: GgufFile, tokens: list[str]) -> tokenizers.Tokenizer:
    """Byte-level BPE: every byte is a visible character, words are cut first, then merged."""
    rule = file.text("tokenizer.ggml.pre", "default")
    if rule not in WORD_RULES:
        raise TokenizerError(f"pre-tokenizer {rule!r} is not supported; known: {', '.join(WORD_RULES)}")
    vocabulary = {token: index for index, token in enumerate(tokens)}
    merges: list[tuple[str, str]] = []
    for merge in file.array("tokenizer.ggml.merges"):
        left, _, right = str(merge).partition(" ")
        if not {left, right, left + right} <= vocabulary.keys():
            raise TokenizerError(f"merge {merge!r} is not of two tokens into a third")
        merges.append((left, right))
    library = tokenizers.Tokenizer(
        models.BPE(vocab=vocabulary, merges=merges, ignore_merges=rule in LLAMA3_NAMES)
    )
    if rule in QWEN_NAMES:
        library.normalizer = normalizers.NFC()
    library.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *(pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in WORD_RULES[rule]),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    library.decoder = decoders.ByteLevel()
    return library


def _add_special(library: tokenizers.Tokenizer, tokens: list[str], kinds: list[int]) -> None:
    """Tell the library which tokens are taken whole from the text; only control tokens are special."""
    whole = {CONTROL: True, UNKNOWN: True, USER_DEFINED: False}
    library.add_tokens(
        [
            AddedToken(token, normalized=False, special=whole[kind])
            for token, kind in zip(tokens, kinds, strict=True)
            if kind in whole
        ]
    )


def _token(file: GgufFile, tokens: list[str], role: str) -> str | Usual:
    key = f"tokenizer.ggml.{role}_token_id"
    if key not in file.keys:
        return Usual.NAME
    token_id = file.integer(key)
    if not 0 <= token_id < len(tokens):
        raise TokenizerError(f"{key} ({token_id}) is outside the {len(tokens)} tokens")
    return tokens[token_id]
