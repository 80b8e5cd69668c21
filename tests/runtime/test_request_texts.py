from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from noria.runtime.conversation import Conversation
from noria.runtime.errors import RequestError
from noria.runtime.models.chat_template import ChatTemplate
from noria.runtime.models.tokenizer import Tokenizer
from noria.runtime.output_text import OutputText
from noria.runtime.request_texts import RequestTexts
from noria.runtime.sampling_params import SamplingParams

MESSAGES = [{"role": "user", "content": "hi"}]


def byte_level() -> Tokenizer:
    """Bytes, the words "bad" and " bad", and a bos that prompts get."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = ["<s>", "</s>", *alphabet, "ba", "bad", "\u0120bad"]
    merges = [("b", "a"), ("ba", "d"), ("\u0120", "bad")]
    backend: Any = tokenizers.Tokenizer(models.BPE({p: i for i, p in enumerate(pieces)}, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<s>", "</s>"])
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    template = ChatTemplate("{{ tools[0].name if tools }}{{ messages[0].content }}")
    return Tokenizer(backend, bos_token_id=0, eos_token_id=1, chat_template=template)


def sentencepiece_like() -> Tokenizer:
    """A tokenizer that puts a space before every text."""
    pieces = ["\u2581", "b", "a", "d", "\u2581bad", "\u2581\u2581"]
    merges: list[tuple[str, str]] = []
    vocab = {piece: index for index, piece in enumerate(pieces)}
    backend: Any = tokenizers.Tokenizer(models.BPE(vocab, merges, ignore_merges=True))
    prepend: Any = [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    backend.normalizer = normalizers.Sequence(prepend)
    backend.pre_tokenizer = pre_tokenizers.Split("\u2581", "merged_with_next")
    return Tokenizer(backend)


BYTES = byte_level()
TEXTS = RequestTexts(BYTES, vocab_size=300, end_token_ids=[1])
NO_TOKENIZER = RequestTexts(None, vocab_size=300, end_token_ids=[1])


def ids(text: str) -> list[int]:
    return BYTES.encode_part(text)


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("hi", [0, *ids("hi")]),
        ([3, 4], [3, 4]),
        (np.array([3, 4]), [3, 4]),
        ([], []),
        (MESSAGES, [0, *ids("hi")]),
        (Conversation(MESSAGES), [0, *ids("hi")]),
        (Conversation(MESSAGES, [{"name": "f"}]), [0, *ids("fhi")]),
    ],
)
def test_every_kind_of_prompt_becomes_token_ids(prompt: Any, expected: Sequence[int]) -> None:
    assert list(TEXTS.token_ids(prompt)) == expected


@pytest.mark.parametrize("prompt", [b"hi", 3, None, {"role": "user"}])
def test_what_is_no_prompt_is_refused(prompt: Any) -> None:
    with pytest.raises(RequestError, match="a prompt is a text, a list of token ids or"):
        TEXTS.token_ids(prompt)


@pytest.mark.parametrize("prompt", ["hi", MESSAGES, Conversation(MESSAGES)])
def test_without_a_tokenizer_prompts_are_token_ids(prompt: Any) -> None:
    assert NO_TOKENIZER.token_ids([1, 2]) == [1, 2]
    with pytest.raises(RequestError, match="the model has no tokenizer: give prompts as"):
        NO_TOKENIZER.token_ids(prompt)


@pytest.mark.parametrize(
    ("params", "name"),
    [
        (SamplingParams(stop=("x",)), "stop"),
        (SamplingParams(bad_words=("x",)), "bad_words"),
        (SamplingParams(structured_output={"regex": "x"}), "structured_output"),
    ],
)
def test_without_a_tokenizer_settings_about_text_are_refused(
    params: SamplingParams, name: str
) -> None:
    with pytest.raises(RequestError, match=f"^{name}: the model has no tokenizer"):
        NO_TOKENIZER.read_params(params)
    assert NO_TOKENIZER.text_maker(SamplingParams())() is None
    assert NO_TOKENIZER.constraint_maker(SamplingParams())() is None


def test_bad_words_are_banned_as_they_stand_and_behind_a_space() -> None:
    """Neither with a bos, and no token sequence that ends like another banned one."""
    params = SamplingParams(bad_words=("bad", "x"), bad_word_ids=((7, 8),))

    read = TEXTS.read_params(params)

    assert read.bad_word_ids == ((7, 8), tuple(ids("bad")), tuple(ids(" bad")), tuple(ids("x")))
    assert (len(ids("bad")), len(ids(" bad"))) == (1, 1)
    assert TEXTS.read_params(read).bad_word_ids == read.bad_word_ids


def test_where_texts_begin_with_a_space_anyway_a_word_has_one_form() -> None:
    tokenizer = sentencepiece_like()
    texts = RequestTexts(tokenizer, vocab_size=6, end_token_ids=[])

    assert tokenizer.encode_part(" bad") == [0, 4]
    assert texts.read_params(SamplingParams(bad_words=("bad",))).bad_word_ids == ((4,),)


def test_settings_without_bad_words_stay_as_they_are() -> None:
    params = SamplingParams(stop=("x",))

    assert TEXTS.read_params(params) is params


def text_of(params: SamplingParams, tokens: Sequence[int]) -> OutputText:
    text = TEXTS.text_maker(params)()
    assert text is not None
    for token in tokens:
        if text.push(token):
            break
    text.finish()
    return text


def test_the_text_of_an_output_follows_its_settings() -> None:
    tokens = [*ids("one"), 1, *ids(" STOP two")]

    assert text_of(SamplingParams(), tokens).text == "one STOP two"
    assert text_of(SamplingParams(skip_special_tokens=False), tokens).text == "one</s> STOP two"
    assert text_of(SamplingParams(stop="STOP"), tokens).text == "one "
    included = SamplingParams(stop=["STOP"], include_stop_str_in_output=True)
    assert text_of(included, tokens).text == "one STOP"
    later = SamplingParams(stop=["n", "w"], min_tokens=5)
    assert text_of(later, tokens).text == "one STOP t"


def test_a_constraint_is_made_for_each_request() -> None:
    params = SamplingParams(structured_output={"choice": ["ba", "x"]})
    make = TEXTS.constraint_maker(params)
    one, other = make(), make()
    assert one is not None
    assert other is not None

    one.accept(ids("x")[0])

    assert one.is_complete
    assert not other.is_complete
    assert one.bitmask().shape == (10,)
    assert TEXTS.constraint_maker(SamplingParams())() is None


def test_samples_share_what_is_known_of_their_stop_strings() -> None:
    make = TEXTS.text_maker(SamplingParams(stop=["x" * 10_000], n=2))
    one, other = make(), make()
    assert one is not None
    assert other is not None

    one.push(ids("x")[0])

    assert one._matcher._table is other._matcher._table
    assert (one._matcher.num_held, other._matcher.num_held) == (1, 0)
