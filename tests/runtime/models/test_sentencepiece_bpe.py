from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from noria.runtime.models.sentencepiece_bpe import SPACE, sentencepiece_bpe

SPECIAL = ["<unk>", "<s>", "</s>"]
BYTES = [f"<0x{value:02X}>" for value in range(256)]
PIECES = ["ab", SPACE + "a", "abc", "bc", SPACE + "abc", "cab", SPACE + SPACE, "caba"]
CHARACTERS = [SPACE, "a", "b", "c"]
SCORES = {piece: -float(rank) for rank, piece in enumerate([*PIECES, *CHARACTERS])}
TOKENS = [*SPECIAL, *BYTES, *SCORES]


def build(*, adds_space: bool = True) -> tokenizers.Tokenizer:
    return sentencepiece_bpe(TOKENS, SCORES, unknown="<unk>", adds_space=adds_space)


TOKENIZER = build()


def joined_by_score(text: str, scores: Mapping[str, float]) -> list[str]:
    """SentencePiece's rule, word for word: join the best pair, the leftmost of equals."""
    pieces = list(SPACE + text.replace(" ", SPACE)) if text else []
    while True:
        pairs = [left + right for left, right in pairwise(pieces)]
        ranked = [(-scores[pair], at) for at, pair in enumerate(pairs) if pair in scores]
        if not ranked:
            return pieces
        at = min(ranked)[1]
        pieces[at : at + 2] = [pairs[at]]


@given(text=st.text(alphabet="abc ", max_size=20))
def test_pieces_are_those_of_the_scores(text: str) -> None:
    """K13: over every order in which the merges can meet."""
    assert TOKENIZER.encode(text).tokens == joined_by_score(text, SCORES)


@given(text=st.text(max_size=20))
def test_any_text_round_trips(text: str) -> None:
    """Except that the library's space is a space after decoding."""
    assert TOKENIZER.decode(TOKENIZER.encode(text).ids) == text.replace(SPACE, " ")


@pytest.mark.parametrize(("adds_space", "tokens"), [(True, [SPACE + "a"]), (False, ["a"])])
def test_the_space_before_the_text_is_optional(adds_space: bool, tokens: list[str]) -> None:
    tokenizer = build(adds_space=adds_space)

    assert tokenizer.encode("a").tokens == tokens
    assert tokenizer.decode(tokenizer.encode("a").ids) == "a"
    assert tokenizer.decode(tokenizer.encode(" a").ids) == " a"


def test_characters_outside_the_vocabulary_become_bytes() -> None:
    assert TOKENIZER.encode("é").tokens == [SPACE, "<0xC3>", "<0xA9>"]
