"""Reading JSON of users so that whatever is wrong with it is said in JSON's words."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

MAX_DIGITS = 1000
"""Far beyond any number that is meant; Python's own limit would speak of itself."""


def parse_json(
    text: str, *, pairs: Callable[[Sequence[tuple[str, object]]], object] | None = None
) -> Any:
    """Return the value of a text, objects made by ``pairs`` where it is given.

    Raises:
        ValueError: it is not JSON, is nested too deep or holds a number of too many digits.
    """
    try:
        return json.loads(text, object_pairs_hook=pairs, parse_int=_integer)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def _integer(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"it holds a number of {len(digits)} digits, at most {MAX_DIGITS} fit")
    return int(digits)
