"""SentencePiece BPE (pieces with scores) as BPE with merges, in the ``tokenizers`` library.

SentencePiece joins the two neighbours whose joined piece scores best; a list of merges does the same if
every way to split a piece into two others is a merge, best pieces first.  Where pieces
share a score, as runs of blanks do in Llama's vocabulary, the lower id goes first.  Characters that are no
piece become byte pieces ``<0x00>`` to ``<0xFF>``.
Source: Kudo and Richardson 2018, "SentencePiece"; Sennrich et al. 2016 for BPE.
"""

from __future__ import annotations

import tokenizers
from tokenizers import decoders, models, normalizers

from laneformer.errors import TokenizerError

BLANK = "\u2581"  # stands for a blank inside pieces


def sentencepiece_tokenizer(
    pieces: list[str],
    scores: list[float],
    is_normal: list[bool],
    unknown: int | None,
    *,
    add_space_prefix: bool,
) -> tokenizers.Tokenizer:
    """A tokenizer for ``pieces`` with ``scores``; ``is_normal`` says which take part in merging.

    ``unknown`` is the id of the unknown piece.  Raises :class:`TokenizerError` where the vocabulary cannot
    be turned into merges exactly: without all byte pieces, or with two pieces of the same score.
    """
    if len(scores) != len(pieces):
        raise TokenizerError(f"tokenizer.ggml.scores has {len(scores)} entries for {len(pieces)} tokens")
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    missing = [f"<0x{byte:02X}>" for byte in range(256) if f"<0x{byte:02X}>" not in vocabulary]
    if missing:
        raise TokenizerError(f"a SentencePiece vocabulary without byte piece {missing[0]} is not supported")
    library = tokenizers.Tokenizer(
        models.BPE(
            vocab=vocabulary,
            merges=merges_by_score(pieces, scores, is_normal),
            unk_token=None if unknown is None else pieces[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    replace = normalizers.Replace(" ", BLANK)
    prefix = [normalizers.Prepend(BLANK)] if add_space_prefix else []
    library.normalizer = normalizers.Sequence([*prefix, replace])
    strip = [decoders.Strip(" ", 1, 0)] if add_space_prefix else []
    library.decoder = decoders.Sequence(
        [decoders.Replace(BLANK, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    return library


def merges_by_score(pieces: list[str], scores: list[float], is_normal: list[bool]) -> list[tuple[str, str]]:
    """All merges of two normal pieces into a third, best score first; ways to the same piece by their ids."""
    normal = {
        piece: index for index, (piece, normal) in enumerate(zip(pieces, is_normal, strict=True)) if normal
    }
    ranked: list[tuple[float, int, int, int]] = []
    for piece, index in normal.items():
        splits = [(normal.get(piece[:cut]), normal.get(piece[cut:])) for cut in range(1, len(piece))]
        found = [(left, right) for left, right in splits if left is not None and right is not None]
        ranked += [(-scores[index], index, left, right) for left, right in found]
    ranked.sort()
    return [(pieces[left], pieces[right]) for _, _, left, right in ranked]
