from __future__ import annotations

import json

import pytest

from noria.runtime.json_text import parse_json


@pytest.mark.parametrize("text", ['{"a": [1, -2, 3.5, 1e3, null, true, "x"]}', "7", "[]"])
def test_json_reads_as_ever(text: str) -> None:
    assert parse_json(text) == json.loads(text)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('{"a": ' + "9" * 5000 + "}", "it holds a number of 5000 digits, at most 1000 fit"),
        ('{"a": -' + "9" * 1000 + "}", "it holds a number of 1001 digits, at most 1000 fit"),
        ("[" * 100_000, "it is nested too deep"),
        ("{", "Expecting property name"),
    ],
    ids=["number", "negative", "nesting", "syntax"],
)
def test_what_cannot_be_read_is_said_without_python(text: str, shown: str) -> None:
    with pytest.raises(ValueError, match=f"^{shown}"):
        parse_json(text)
