"""What YAML would change without a word is refused; the rest is read as YAML says."""

from collections.abc import Callable
from pathlib import Path

import pytest

from noria.runtime.errors import ConfigError
from noria.runtime.yaml_reader import parse_yaml, read_yaml

REFUSED = {
    "model: x\n\nmodel: y": "model: written twice, in lines 1 and 3; keep one",
    "sampling:\n  seed: 1\n  top_k: 2\n  seed: 3": (
        "sampling.seed: written twice, in lines 2 and 4; keep one"
    ),
    "a: {b: 1, b: 1}": "a.b: written twice, in lines 1 and 1; keep one",
    "a:\n- b: 1\n  b: 1": "a[0].b: written twice, in lines 2 and 3; keep one",
    "block_size: 010": (
        "block_size: 010 (line 1) is a number in base 8 or 60 to YAML; "
        "write it without leading zeros or colons, or in quotes for text"
    ),
    "a: [1, 12:30:45]": (
        "a[1]: 12:30:45 (line 1) is a number in base 8 or 60 to YAML; "
        "write it without leading zeros or colons, or in quotes for text"
    ),
    "a: 1:30.5": (
        "a: 1:30.5 (line 1) is a number in base 8 or 60 to YAML; "
        "write it without leading zeros or colons, or in quotes for text"
    ),
    "a: [1": "line 1, column 6: expected ',' or ']', but got '<stream end>'; must be valid YAML",
    "a: 1\nb: c: d": ("line 2, column 5: mapping values are not allowed here; must be valid YAML"),
    "a: *b": "line 1, column 4: found undefined alias 'b'; must be valid YAML",
    "a: !!python/name:os.system": (
        "line 1, column 4: could not determine a constructor for the tag "
        "'tag:yaml.org,2002:python/name:os.system'; must be valid YAML"
    ),
    '"a\\n": 1\n"a\\n": 2': "'a\\n': written twice, in lines 1 and 2; keep one",
    'a: !!int ""': "line 1, column 4: '' does not fit the tag !!int; must be valid YAML",
    "a:\n- !!bool foo": "line 2, column 3: 'foo' does not fit the tag !!bool; must be valid YAML",
    "a: !!timestamp": "line 1, column 4: '' does not fit the tag !!timestamp; must be valid YAML",
    "? [a]\n: b": "line 1, column 3: found unhashable key; must be valid YAML",
}


Refusal = Callable[[str], str]


def refusal(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_yaml(text, source="c.yaml")
    return str(caught.value)


@pytest.mark.parametrize(("text", "message"), REFUSED.items(), ids=lambda text: text[:20])
def test_the_place_and_the_problem_are_one_line(
    refusal_by_check: Refusal, text: str, message: str
) -> None:
    assert refusal(text) == f"c.yaml: {message}"
    assert refusal_by_check(text) == message


@pytest.mark.parametrize(
    "text",
    ["a: 1\n---\nb: 2", "a: 2026-13-45", f"a: {'9' * 5000}", "[" * 1500, "a: \x07", "a: 0x_"],
    ids=["two documents", "no such day", "5000 digits", "1500 levels", "control", "no digits"],
)
def test_what_cannot_be_read_is_one_line_and_no_traceback(
    refusal_by_check: Refusal, text: str
) -> None:
    message = refusal(text)

    assert message.startswith("c.yaml: ")
    assert message.endswith("; must be valid YAML")
    assert "\n" not in message
    assert refusal_by_check(text).endswith("; must be valid YAML")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("a: 10", {"a": 10}),
        ("a: 0", {"a": 0}),
        ("a: -5", {"a": -5}),
        ("a: 0.5", {"a": 0.5}),
        ("a: 0x10", {"a": 16}),
        ("a: 1_000", {"a": 1000}),
        ("a: '010'", {"a": "010"}),
        ("a: 12 :30", {"a": "12 :30"}),
        ("a: 1e5", {"a": "1e5"}),
        ("a: [x, null, yes]", {"a": ["x", None, True]}),
    ],
)
def test_everything_else_is_plain_data(text: str, value: object) -> None:
    assert parse_yaml(text, source="c.yaml") == value


def test_the_same_key_in_different_mappings_is_no_duplicate() -> None:
    assert parse_yaml("a: {b: 1}\nc: {b: 2}", source="") == {"a": {"b": 1}, "c": {"b": 2}}


def test_a_merged_key_may_be_overridden() -> None:
    text = "a: &a {x: 1, y: 2}\nb: {<<: *a, x: 3}"

    assert parse_yaml(text, source="") == {"a": {"x": 1, "y": 2}, "b": {"x": 3, "y": 2}}


def test_an_alias_of_its_own_parent_ends() -> None:
    data = parse_yaml("a: &a [1, *a]", source="")

    assert isinstance(data, dict)
    assert data["a"][1] is data["a"]


def test_a_byte_order_mark_is_no_part_of_the_first_key(tmp_path: Path) -> None:
    path = tmp_path / "bom.yaml"
    path.write_bytes(b"\xef\xbb\xbfmodel: x\r\n")

    assert read_yaml(path) == {"model": "x"}


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path) -> None:
    for path in (tmp_path / "missing.yaml", tmp_path):
        with pytest.raises(ConfigError) as caught:
            read_yaml(path)

        assert str(caught.value).startswith(f"{path}: ")
        assert str(caught.value).endswith("; must be a readable YAML file")


def test_bytes_that_are_not_utf8_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "latin.yaml"
    path.write_bytes(b"model: caf\xe9\n")

    with pytest.raises(ConfigError) as caught:
        read_yaml(path)

    assert str(caught.value) == f"{path}: byte 10 is not UTF-8; must be UTF-8 text"
