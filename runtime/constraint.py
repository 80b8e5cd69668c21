"""What a request may generate next, as a grammar of some kind tells it."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

WORD_BITS = 32
"""Tokens per word of a bitmask."""


def num_words(num_tokens: int) -> int:
    """Return how many words hold one bit per token."""
    return -(-num_tokens // WORD_BITS)


class TokenConstraint(Protocol):
    """Follows the tokens of one request and names those that may come next."""

    def bitmask(self) -> NDArray[np.int32]:
        """Return ``[num_words(vocab_size)]`` words: bit ``i % 32`` of word ``i // 32`` is token i.

        No bit is set for what is no token, and none at all where the constraint failed.
        """

    def accept(self, token_id: int) -> None:
        """Take the next token, an end token included."""

    @property
    def is_complete(self) -> bool:
        """Whether nothing may follow but the end."""
