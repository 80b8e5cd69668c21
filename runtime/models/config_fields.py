"""Typed reading of a model's configuration mapping (``config.json`` keys or inline YAML)."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ..errors import ModelError
from ..value_text import value_text

MAX_INT32 = 2**31 - 1
"""Sizes, like positions, must be numbers that graphs can hold."""
MIN_FLOAT32, MAX_FLOAT32 = 1.2e-38, 3.4e38
"""Beyond these, what graphs compute with is 0 or infinite."""


@dataclass(frozen=True, slots=True)
class ConfigFields:
    """A mapping whose values are checked when they are read; null reads as missing."""

    values: Mapping[str, object]
    source: str
    """What the mapping came from, for messages: a path or a YAML key."""

    def error(self, message: str) -> ModelError:
        """Build the error for this source."""
        return ModelError(f"{self.source}: {message}")

    def get(self, key: str) -> object:
        """Return the raw value, None when the key is missing."""
        return self.values.get(key)

    def positive_int(self, key: str, default: int | None = None, *, high: int = MAX_INT32) -> int:
        """Read a size of at most ``high``; without a default the key must be there."""
        value = self.get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.error(f"{key} must be a positive integer, not {value_text(value)}")
        if value > high:
            limit = "2**31 - 1" if high == MAX_INT32 else str(high)
            raise self.error(f"{key} must be at most {limit}, not {value_text(value)}")
        return value

    def positive_float(self, key: str, default: float | None = None) -> float:
        """Read a number above 0 that float32 holds.

        A string that spells a number is one: YAML 1.1 reads ``1e-5`` as a string.
        """
        value = self.get(key)
        if value is None and default is not None:
            return default
        number = _number(value)
        if number is None or not math.isfinite(number) or number <= 0:
            raise self.error(f"{key} must be a number above 0, not {value_text(value)}")
        if not MIN_FLOAT32 <= number <= MAX_FLOAT32:
            limits = f"from {MIN_FLOAT32} to {MAX_FLOAT32}, as float32 holds it"
            raise self.error(f"{key} must be {limits}, not {value_text(value)}")
        return number

    def optional_float(self, key: str) -> float | None:
        """Read a number above 0; missing means none."""
        return None if self.get(key) is None else self.positive_float(key)

    def positive_floats(self, key: str) -> tuple[float, ...]:
        """Read a list of numbers above 0."""
        values = self.get(key)
        if not isinstance(values, list | tuple):
            raise self.error(f"{key} must be a list of numbers, not {value_text(values)}")
        one = ConfigFields({f"{key}[{i}]": value for i, value in enumerate(values)}, self.source)
        return tuple(one.positive_float(name) for name in one.values)

    def one_per_layer(
        self, key: str, num_layers: int, fits: Collection[object]
    ) -> tuple[object, ...] | None:
        """Read a list with an entry of ``fits`` per layer; missing means none."""
        values = self.get(key)
        if values is None:
            return None
        if not isinstance(values, list | tuple) or len(values) != num_layers:
            shown = (
                f"{len(values)} entries" if isinstance(values, list | tuple) else value_text(values)
            )
            raise self.error(f"{key} must list one entry per layer ({num_layers}), not {shown}")
        listed = ", ".join(repr(fitting) for fitting in fits)
        for value in values:
            if isinstance(value, bool) or value not in tuple(fits):
                raise self.error(
                    f"{key} {value_text(value)} is not supported (supported: {listed})"
                )
        return tuple(values)

    def flag(self, key: str, default: bool) -> bool:
        """Read a boolean."""
        value = self.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(f"{key} must be true or false, not {value_text(value)}")
        return value

    def block(self, key: str) -> ConfigFields | None:
        """Read a nested mapping; null and ``{}`` mean none."""
        value = self.get(key)
        if value is None or value == {}:
            return None
        if not isinstance(value, Mapping):
            raise self.error(f"{key} must be a mapping, not {value_text(value)}")
        return ConfigFields(value, f"{self.source}: {key}")

    def token_id(self, key: str, vocab_size: int) -> int | None:
        """Read one token id; a list of exactly one id is that id."""
        ids = self.token_ids(key, vocab_size)
        if len(ids) > 1:
            raise self.error(f"{key} must be one token id, not {value_text(self.get(key))}")
        return ids[0] if ids else None

    def token_ids(self, key: str, vocab_size: int) -> tuple[int, ...]:
        """Read an id or a list of ids inside the vocabulary; missing means none."""
        value = self.get(key)
        if value is None:
            return ()
        ids = value if isinstance(value, list | tuple) else [value]
        if not all(_is_token_id(token, vocab_size) for token in ids):
            fits = f"must be ids from 0 to {vocab_size - 1}"
            raise self.error(f"{key} {fits}, not {value_text(value)}")
        return tuple(dict.fromkeys(ids))


def _is_token_id(value: object, vocab_size: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < vocab_size


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None
