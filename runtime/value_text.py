"""Values of a user, written into one line of an error."""

from __future__ import annotations

import reprlib

MAX_TEXT = 60
MAX_BITS = 128


class _Short(reprlib.Repr):
    """Shortens what is long, at any depth; huge integers have no decimal text in Python."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxlong = self.maxother = MAX_TEXT

    def repr_int(self, x: int, level: int) -> str:
        if x.bit_length() > MAX_BITS:
            return f"a number of {x.bit_length()} bits"
        return super().repr_int(x, level)


def value_text(value: object) -> str:
    """Write a value as Python would, shortened.

    >>> value_text("tiny"), value_text([True, None]), value_text(2**2000)
    ("'tiny'", '[True, None]', 'a number of 2001 bits')
    """
    return _Short().repr(value)


def key_text(key: str) -> str:
    """Write a key as it stands, or as a shortened string if it is no plain word.

    >>> key_text("block_size"), key_text("block_size\\n")
    ('block_size', "'block_size\\\\n'")
    """
    is_plain = key.isprintable() and 0 < len(key) <= MAX_TEXT
    return key if is_plain else value_text(key)
