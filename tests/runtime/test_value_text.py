from __future__ import annotations

import doctest

import pytest

from noria.runtime import value_text as module
from noria.runtime.value_text import value_text

HUGE = 16**5000
"""Python refuses to write it in decimal."""


@pytest.mark.parametrize(
    "value", [HUGE, [HUGE], {"a": {"b": HUGE}}, {HUGE: 1}, -HUGE], ids=value_text
)
def test_an_integer_that_python_cannot_write_has_a_text_at_any_depth(value: object) -> None:
    assert "a number of 20001 bits" in value_text(value)


@pytest.mark.parametrize(
    "value", ["x" * 10**6, ["x"] * 10**6, list(range(10**5)), 10**38], ids=value_text
)
def test_every_text_is_short(value: object) -> None:
    assert len(value_text(value)) < 400


@pytest.mark.parametrize("value", ["tiny", True, None, -1, 1.5, [1, "a"], {"a": None}])
def test_short_values_are_written_as_python_writes_them(value: object) -> None:
    assert value_text(value) == repr(value)


def test_documented_examples_give_what_they_show() -> None:
    result = doctest.testmod(module)

    assert result.attempted > 0
    assert result.failed == 0
