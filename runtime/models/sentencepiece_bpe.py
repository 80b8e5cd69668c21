"""SentencePiece BPE vocabularies (Llama 2) as a ``tokenizers`` BPE.

SentencePiece has scores instead of merges: of all neighbours whose join is a token, the join with
the highest score comes first. Each way to join two tokens into a third is therefore a merge,
ordered by the score of the third.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers

SPACE = "\u2581"


def sentencepiece_bpe(
    tokens: Sequence[str],
    scores: Mapping[str, float],
    *,
    unknown: str | None,
    adds_space: bool,
) -> tokenizers.Tokenizer:
    """Build the tokenizer of a vocabulary whose ids are positions in ``tokens``.

    ``scores`` has the tokens that text is made of: neither special tokens nor bytes. Characters
    outside the vocabulary become their bytes (``<0x0A>``). With ``adds_space`` a space is put
    before the text and dropped again from the decoded one.
    """
    vocab = {token: index for index, token in enumerate(tokens)}
    bpe: Any = models.BPE(
        vocab, _merges(scores), unk_token=unknown, fuse_unk=True, byte_fallback=True
    )
    backend = tokenizers.Tokenizer(bpe)
    spaces: list[Any] = [normalizers.Replace(" ", SPACE)]
    parts: list[Any] = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if adds_space:
        spaces.insert(0, normalizers.Prepend(SPACE))
        parts.append(decoders.Strip(" ", 1, 0))
    normalizer: Any = normalizers.Sequence(spaces)
    backend.normalizer = normalizer
    decoder: Any = decoders.Sequence(parts)
    backend.decoder = decoder
    return backend


def _merges(scores: Mapping[str, float]) -> list[tuple[str, str]]:
    found: list[tuple[float, int, str, str]] = []
    for index, (token, score) in enumerate(scores.items()):
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in scores and right in scores:
                found.append((-score, index, left, right))
    return [(left, right) for _, _, left, right in sorted(found)]
