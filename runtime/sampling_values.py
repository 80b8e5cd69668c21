"""Checks of the values of sampling settings; each refuses with one line that says what fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NoReturn, cast

from .errors import RequestError
from .value_text import value_text

MAX_FLOAT32 = 3.4028234663852886e38
MIN_FLOAT32 = 1.1754943508222875e-38
"""Smallest normal one: what is closer to 0 may become 0 on a device."""
MIN_FLOAT64 = 5e-324
MAX_LOGIT_BIAS = 100.0
MAX_TOKEN_ID = 2**31 - 1
STRUCTURES = ("json", "regex", "choice")


def check_real(name: str, value: object, fits: str, *, low: float, high: float) -> None:
    """Refuse what is no number in ``low .. high``, both included."""
    # Compared before it is converted: an int may be beyond every float.
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        refuse(name, value, f"must be {fits}")


def check_int(name: str, value: object, fits: str, *, low: int, high: int | None = None) -> None:
    """Refuse what is no integer in ``low .. high``."""
    is_int = isinstance(value, int) and not isinstance(value, bool)
    if not is_int or value < low or (high is not None and value > high):  # type: ignore[operator]
        refuse(name, value, f"must be {fits}")


def check_bool(name: str, value: object) -> None:
    """Refuse what is not true or false."""
    if not isinstance(value, bool):
        refuse(name, value, "must be true or false")


def read_token_ids(name: str, value: object) -> tuple[int, ...]:
    """Return a list of token ids."""
    token_ids = _items(name, value, "a list of token ids")
    for token_id in token_ids:
        check_int(name, token_id, "token ids >= 0", low=0)
    return tuple(cast("Sequence[int]", token_ids))


def read_texts(name: str, value: object, fits: str) -> tuple[str, ...]:
    """Return a list of texts, none of them empty; None is an empty list."""
    texts = () if value is None else _items(name, value, fits)
    for text in texts:
        if not isinstance(text, str) or not text:
            refuse(name, text, "must hold texts that are not empty")
        _check_unicode(name, text)
    return tuple(cast("Sequence[str]", texts))


def read_id_lists(name: str, value: object) -> tuple[tuple[int, ...], ...]:
    """Return lists of token ids, none of them empty."""
    lists = tuple(read_token_ids(name, ids) for ids in _items(name, value, "a list of lists"))
    if () in lists:
        refuse(name, value, "must hold lists that are not empty")
    return lists


def read_logit_bias(value: object) -> dict[int, float] | None:
    """Return token id -> bias; ids may be decimal texts, as JSON has them."""
    if value is None:
        return None
    if not isinstance(value, Mapping):
        refuse("logit_bias", value, "must be a mapping of token ids to numbers, or None")
    fits = f"a mapping to numbers from -{MAX_LOGIT_BIAS:g} to {MAX_LOGIT_BIAS:g}"
    biases: dict[int, float] = {}
    for key, bias in value.items():
        token_id = _token_id(key)
        if token_id in biases:
            refuse("logit_bias", key, "must hold each token id once")
        check_real("logit_bias", bias, fits, low=-MAX_LOGIT_BIAS, high=MAX_LOGIT_BIAS)
        biases[token_id] = float(bias)
    return biases


def read_structured_output(value: object) -> dict[str, object] | None:
    """Return a mapping with exactly one of ``json``, ``regex`` and ``choice``."""
    if value is None:
        return None
    name, kinds = "structured_output", ", ".join(STRUCTURES)
    if not isinstance(value, Mapping) or len(value) != 1 or not set(value) <= set(STRUCTURES):
        refuse(name, value, f"must be a mapping with exactly one of {kinds}, or None")
    ((kind, form),) = value.items()
    if kind == "json" and not isinstance(form, str | Mapping):
        refuse(f"{name} json", form, "must be a JSON schema: a mapping, or its text")
    if kind == "regex":
        if not isinstance(form, str):
            refuse(f"{name} regex", form, "must be a text")
        _check_unicode(f"{name} regex", form)
    if kind == "choice":
        form = list(read_texts(f"{name} choice", form, "a list of texts"))
        if not form:
            refuse(f"{name} choice", form, "must hold at least one text")
    return {kind: form}


def refuse(name: str, value: object, fits: str) -> NoReturn:
    """Raise the one-line error of a setting."""
    kind = type(value).__name__
    raise RequestError(f"{name} is {value_text(value)} ({kind}); it {fits}")


def _check_unicode(name: str, text: str) -> None:
    """Refuse a text that nothing can be equal to: no output holds half of a surrogate pair."""
    if any("\ud800" <= char <= "\udfff" for char in text):
        refuse(name, text, "must hold whole characters, not half of a surrogate pair")


def _items(name: str, value: object, fits: str) -> Sequence[object]:
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        refuse(name, value, f"must be {fits}")
    return value


def _token_id(key: object) -> int:
    number = key
    if isinstance(key, str) and key.isascii() and key.isdecimal() and len(key) <= 10:
        number = int(key)
    check_int("logit_bias", number, "a mapping of token ids to numbers", low=0, high=MAX_TOKEN_ID)
    assert isinstance(number, int)
    return number
