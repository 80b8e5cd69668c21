from __future__ import annotations

import json
import logging
import random
import re
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tokenizers import decoders, models

from noria.runtime.constraint import TokenConstraint
from noria.runtime.errors import RequestError
from noria.runtime.models.architecture import Architecture, LayerKind
from noria.runtime.models.byte_tokenizer import byte_tokenizer
from noria.runtime.models.grammar import Grammars
from noria.runtime.models.tokenizer import Tokenizer

END_IDS = (2, 7)
VOCAB_SIZE = 310
"""Of the model; the tokenizer has 300."""


def byte_level() -> Tokenizer:
    architecture = Architecture(
        vocab_size=300,
        hidden_size=8,
        intermediate_size=8,
        layers=(LayerKind(),) * 1,
        num_heads=1,
        num_kv_heads=1,
        head_dim=8,
        bos_token_id=1,
        eos_token_ids=END_IDS,
    )
    tokenizer = byte_tokenizer(architecture)
    assert tokenizer is not None
    return tokenizer


def of_pieces(*more: Any) -> Tokenizer:
    """A tokenizer of the SentencePiece kind, with tokens that span what grammars tell apart."""
    specials = ["<unk>", "<s>", "</s>", "<tool>"]
    pieces = [*specials, "▁", "ab", "abc", '{"', '":', '",', "}]", "12", "▁a"]
    pieces += [f"<0x{value:02X}>" for value in range(256)]
    pieces += [chr(value) for value in range(0x21, 0x7F)]
    vocab = {piece: index for index, piece in enumerate(pieces)}
    backend: Any = tokenizers.Tokenizer(models.BPE(vocab, [], byte_fallback=True))
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *more]
    backend.decoder = decoders.Sequence(parts)
    backend.add_special_tokens(specials)
    return Tokenizer(backend, bos_token_id=1, eos_token_id=2)


BYTES = byte_level()
PIECES = of_pieces()
GRAMMARS = Grammars(BYTES, vocab_size=VOCAB_SIZE, end_token_ids=END_IDS)
PIECE_GRAMMARS = Grammars(PIECES, vocab_size=PIECES.vocab_size + 50, end_token_ids=[2])
STRIPPED = of_pieces(decoders.Strip(" ", 1, 0))
"""Like that of Llama 2, which drops the first space."""
STRIPPED_GRAMMARS = Grammars(STRIPPED, vocab_size=STRIPPED.vocab_size, end_token_ids=[2])


def allowed(constraint: TokenConstraint) -> list[int]:
    words: NDArray[np.int32] = constraint.bitmask()
    assert words.dtype == np.int32
    bits = np.unpackbits(words.view(np.uint8), bitorder="little")
    return [int(index) for index in np.flatnonzero(bits)]


def accept_text(constraint: TokenConstraint, text: str, tokenizer: Tokenizer = BYTES) -> None:
    for token_id in tokenizer.encode(text):
        assert token_id in allowed(constraint)
        constraint.accept(token_id)


def write(
    constraint: TokenConstraint, tokenizer: Tokenizer, end_ids: tuple[int, ...], seed: int
) -> tuple[str, bool]:
    """Draw among the allowed tokens, all alike; return the text and whether it came to its end."""
    draws = random.Random(seed)
    ids: list[int] = []
    while len(ids) < 400 and not constraint.is_complete:
        choices = allowed(constraint)
        # Late, an end is taken where there is one, so that most texts have an end.
        ends = [token for token in choices if token in end_ids]
        token_id = draws.choice(ends if ends and len(ids) > 40 else choices)
        constraint.accept(token_id)
        if token_id in end_ids:
            assert constraint.is_complete
            break
        ids.append(token_id)
    else:
        return tokenizer.decode(ids), constraint.is_complete
    return tokenizer.decode(ids), True


PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 5},
        "kind": {"enum": ["cat", "category", "dog", None, 7]},
        "at": {
            "type": "object",
            "properties": {"x": {"type": "integer", "minimum": -9, "maximum": 99}},
            "required": ["x"],
            "additionalProperties": False,
        },
        "sizes": {"type": "array", "items": {"type": "number"}, "minItems": 1, "maxItems": 3},
    },
    "required": ["kind", "at"],
    "additionalProperties": False,
}


def is_person(value: Any) -> bool:
    return (
        set(value) <= {"name", "kind", "at", "sizes"}
        and value["kind"] in ["cat", "category", "dog", None, 7]
        and list(value["at"]) == ["x"]
        and -9 <= value["at"]["x"] <= 99
        and len(value.get("name", "")) <= 5
        and 1 <= len(value.get("sizes", [0])) <= 3
        and all(isinstance(size, int | float) for size in value.get("sizes", []))
    )


CHECKS = {
    "person": ({"json": PERSON}, lambda text: is_person(json.loads(text))),
    "numbers": (
        {"json": {"type": "array", "items": {"type": "integer"}}},
        lambda text: all(type(item) is int for item in json.loads(text)),
    ),
    "a schema as its text": ({"json": '{"type": "boolean"}'}, lambda text: text in "true false"),
    "any JSON": ({"json": True}, lambda text: [json.loads(text)]),
    "a string": ({"json": {"type": "string"}}, lambda text: isinstance(json.loads(text), str)),
    "regex": (
        {"regex": r"[a-c]{2,4}(-[0-9]+)?é?"},
        lambda text: re.fullmatch(r"[a-c]{2,4}(-[0-9]+)?é?", text) is not None,
    ),
    "a space": (
        {"regex": " ?[ab]{2}"},
        lambda text: re.fullmatch(" ?[ab]{2}", text) is not None,
    ),
    "a space that must be": ({"choice": [" ab", " x"]}, lambda text: text in (" ab", " x")),
    "prefixes": ({"choice": ["a", "ab", "abc", "b😀"]}, lambda text: text in CHOICES),
}
CHOICES = ("a", "ab", "abc", "b😀")


@pytest.mark.parametrize("name", CHECKS)
@settings(max_examples=30)
@given(seed=st.integers(0, 2**32))
def test_whatever_is_drawn_fits_and_ends_only_where_it_may(name: str, seed: int) -> None:
    structured_output, fits = CHECKS[name]
    makers = (
        (GRAMMARS, BYTES, END_IDS),
        (PIECE_GRAMMARS, PIECES, (2,)),
        (STRIPPED_GRAMMARS, STRIPPED, (2,)),
    )
    for grammars, tokenizer, end_ids in makers:
        text, is_whole = write(grammars.constraint(structured_output), tokenizer, end_ids, seed)

        assert not is_whole or fits(text)


def test_most_texts_come_to_their_end() -> None:
    """Else the test above would check nothing."""
    written = [write(GRAMMARS.constraint({"json": PERSON}), BYTES, END_IDS, s) for s in range(20)]

    assert sum(is_whole for _, is_whole in written) > 10


def test_end_tokens_are_allowed_exactly_where_the_text_may_end() -> None:
    constraint = GRAMMARS.constraint({"choice": ["ab", "abcd"]})
    a, b, c, d = BYTES.encode("abcd")

    assert allowed(constraint) == [a]
    constraint.accept(a)
    assert allowed(constraint) == [b]
    constraint.accept(b)
    assert allowed(constraint) == sorted([*END_IDS, c])
    assert not constraint.is_complete
    constraint.accept(c)
    assert allowed(constraint) == [d]
    constraint.accept(d)
    assert constraint.is_complete
    assert allowed(constraint) == list(END_IDS)


def test_an_end_token_completes_what_could_go_on() -> None:
    constraint = GRAMMARS.constraint({"regex": "[0-9]+"})
    accept_text(constraint, "42")

    assert not constraint.is_complete
    constraint.accept(END_IDS[1])
    assert constraint.is_complete


def test_the_mask_has_a_bit_per_token_of_the_model_and_none_that_is_no_token() -> None:
    constraint = GRAMMARS.constraint({"regex": "(?s:.*)"})

    assert constraint.bitmask().shape == (10,)
    assert 7 in allowed(constraint)
    assert 1 not in allowed(constraint), "a special token is no text"
    assert max(allowed(constraint)) < 300


def test_a_model_with_fewer_tokens_than_the_tokenizer_gets_no_bit_beyond_its_own() -> None:
    grammars = Grammars(BYTES, vocab_size=270, end_token_ids=END_IDS)
    constraint = grammars.constraint({"regex": "(?s:.*)"})

    assert constraint.bitmask().shape == (9,)
    assert max(allowed(constraint)) == 269
    whole = GRAMMARS.constraint({"regex": "<[0-9]+>"})
    assert set(allowed(whole)) == {*BYTES.encode("<"), *range(259, 300)}
    part = grammars.constraint({"regex": "<[0-9]+>"})
    assert set(allowed(part)) == {*BYTES.encode("<"), *range(259, 270)}


def test_where_decoding_drops_the_first_space_a_text_begins_with_one() -> None:
    """So that the model can write words as it writes them at the beginning of a text."""
    constraint = STRIPPED_GRAMMARS.constraint({"choice": ["a", "\u2581"]})
    names = {STRIPPED._backend.id_to_token(index) for index in allowed(constraint)}

    assert names == {"\u2581", "\u2581a", "<0x20>"}
    assert BYTES.drops_first_space is PIECES.drops_first_space is False


def test_constraints_do_not_share_their_place() -> None:
    one, other = (GRAMMARS.constraint({"choice": ["ab"]}) for _ in range(2))
    accept_text(one, "a")

    assert allowed(one) == BYTES.encode("b")
    assert allowed(other) == BYTES.encode("a")


def test_a_token_that_does_not_fit_leaves_none_allowed(caplog: pytest.LogCaptureFixture) -> None:
    """Not even the end: the text is no whole one, and the request ends with an error."""
    constraint = GRAMMARS.constraint({"choice": ["ab"]})
    with caplog.at_level(logging.WARNING):
        constraint.accept(BYTES.encode("x")[0])

    assert allowed(constraint) == []
    assert not constraint.is_complete
    assert "doesn't satisfy the grammar" in caplog.text


@pytest.mark.parametrize(
    "text",
    ['a"b', "\\", "\n\t\r", "/", "[x]|.*", "\x00\x1b", "\u2028é😀", "$%^", "<|x|>", "{{", "'", " "],
)
def test_a_choice_is_taken_literally(text: str) -> None:
    constraint = GRAMMARS.constraint({"choice": [text, "zz"]})
    accept_text(constraint, text)

    assert constraint.is_complete


@pytest.mark.parametrize(
    ("structured_output", "shown"),
    [
        ({"json": {"type": "strin"}}, "structured_output.json: Invalid type: strin"),
        ({"json": {"$ref": "#/nope"}}, "json: Pointer '/nope' does not exist"),
        ({"json": {"type": "string", "pattern": "(("}}, "json: unclosed group"),
        ({"json": {"uniqueItems": True, "type": "array"}}, 'Unimplemented keys: ["uniqueItems"]'),
        ({"json": {"enum": []}}, "json: Unsatisfiable schema"),
        ({"json": False}, "json: Unsatisfiable schema"),
        ({"json": "{"}, "structured_output.json is not JSON: "),
        ({"json": {"enum": [{1}]}}, "structured_output.json is not JSON: "),
        ({"json": 3}, "structured_output.json is 3; must be a JSON schema"),
        ({"json": None}, "structured_output.json is None; must be a JSON schema"),
        ({"regex": "a(b"}, "structured_output.regex: unclosed group"),
        ({"regex": "(?=a)b"}, "regex: look-around"),
        ({"regex": r"(a)\1"}, "regex: backreferences are not supported"),
        ({"regex": 3}, "structured_output.regex is 3; must be a regular expression"),
        ({"regex": r"[^\x00-\U0010ffff]"}, "structured_output.regex: no text of this model fits"),
        ({"choice": []}, "structured_output.choice is []; must be a list of texts"),
        ({"choice": ["a", ""]}, "none of them empty"),
        ({"choice": ["a", 1]}, "structured_output.choice is ['a', 1]; must be"),
        ({"choice": "ab"}, "structured_output.choice is 'ab'; must be"),
        ({"choice": ["\ud800"]}, "structured_output.choice: "),
        ({}, "structured_output has nothing; it takes exactly one of json, regex, choice"),
        ({"json": {}, "regex": "a"}, "structured_output has json, regex; it takes exactly one"),
        ({"grammar": "x"}, "structured_output has grammar; it takes exactly one of"),
    ],
)
def test_what_cannot_be_followed_is_refused_in_one_line(
    structured_output: Mapping[str, object], shown: str
) -> None:
    with pytest.raises(RequestError) as caught:
        GRAMMARS.constraint(structured_output)

    assert shown in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_schema_as_deep_as_the_stack_is_refused() -> None:
    schema: dict[str, object] = {}
    for _ in range(100_000):
        schema = {"items": schema}

    with pytest.raises(RequestError, match="not JSON: "):
        GRAMMARS.constraint({"json": schema})


def test_without_the_package_a_request_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)

    with pytest.raises(RequestError, match="needs the package llguidance: pip install"):
        Grammars(BYTES, vocab_size=300, end_token_ids=[2]).constraint({"regex": "a"})


def test_a_tokenizer_without_a_text_per_token_is_refused() -> None:
    model: Any = models.WordLevel({"a": 0, "b": 1}, unk_token="a")
    grammars = Grammars(Tokenizer(tokenizers.Tokenizer(model)), vocab_size=2, end_token_ids=[1])

    with pytest.raises(RequestError, match="llguidance cannot read the model's tokenizer: can't"):
        grammars.constraint({"regex": "a"})


def test_a_model_without_end_tokens_is_refused() -> None:
    with pytest.raises(RequestError, match="the model has no end token"):
        Grammars(BYTES, vocab_size=300, end_token_ids=[]).constraint({"regex": "a"})
