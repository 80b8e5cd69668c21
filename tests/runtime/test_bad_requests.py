"""Whatever a request holds, it fails alone and in one line; the others get what they get alone."""

from __future__ import annotations

import pytest

from noria.runtime.errors import NoriaError
from noria.runtime.llm import LLM
from noria.runtime.sampling_params import SamplingParams

HUGE = 10**5000
"""Python refuses to write it in decimal."""
MODEL = {
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "eos_token_id": 0,
}
CONFIG = {
    "model": MODEL,
    "backend": "reference",
    "max_model_len": 32,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 16,
    "block_size": 4,
    "num_blocks": 40,
    "num_batched_tokens_buckets": [16],
    "num_seqs_buckets": [4],
    "scheduling_policy": "priority",
    "sampler_features": ["greedy", "logit_bias", "structured_output", "logprobs"],
    "sampling": {"temperature": 0, "max_tokens": 3},
}
BAD_REQUESTS = {
    "huge token": ([1, HUGE], {}, 0, "prompt token 1 is a number of 16610 bits"),
    "long token": ([1, "x" * 10**5], {}, 0, "prompt token 1 is 'xxx"),
    "huge stop": ([1], {"stop_token_ids": [HUGE]}, 0, "stop_token_ids holds a number of 16610"),
    "huge word": ([1], {"bad_word_ids": [[HUGE]]}, 0, "bad_word_ids holds a number of 16610"),
    "huge logprobs": ([1], {"logprobs": HUGE}, 0, "logprobs is a number of 16610 bits"),
    "priority bool": ([1], {}, True, "priority is True (bool); it must be an integer"),
    "priority huge": ([1], {}, HUGE, "priority is a number of 16610 bits (int); it must be"),
}


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(CONFIG)


@pytest.mark.parametrize("name", BAD_REQUESTS)
def test_a_bad_request_fails_alone_in_one_line(llm: LLM, name: str) -> None:
    prompt, changes, priority, shown = BAD_REQUESTS[name]
    good = [[5, 6], [7] * 20]
    expected = [output.token_ids for output in llm.generate(good)]
    params = [llm.default_params] * 3
    params[1] = SamplingParams(**{"temperature": 0, "max_tokens": 3, **changes})

    outputs = llm.generate([good[0], prompt, good[1]], params, priority=[2, priority, 1])

    assert shown in outputs[1].error
    assert "\n" not in outputs[1].error
    assert len(outputs[1].error) < 300
    assert [outputs[0].token_ids, outputs[2].token_ids] == expected
    assert not llm.loaded.engine.has_unfinished


@pytest.mark.parametrize(
    "priority", [1.5, "12", None, {1, 2}, [1, "2"], [1, float("nan")]], ids=repr
)
def test_a_priority_of_a_wrong_type_is_refused(llm: LLM, priority: object) -> None:
    with pytest.raises(NoriaError, match=r"priority is .*; it must be an integer, or a list"):
        llm.generate([[1], [2]], priority=priority)


def test_prompts_without_an_order_are_refused(llm: LLM) -> None:
    with pytest.raises(NoriaError, match="not set"):
        llm.generate({1, 2})


@pytest.mark.parametrize("conversations", [None, 5], ids=repr)
def test_chats_of_a_wrong_type_are_refused(llm: LLM, conversations: object) -> None:
    with pytest.raises(NoriaError, match="prompts are a text"):
        llm.chat(conversations)


def test_a_generator_of_chats_loses_none(llm: LLM) -> None:
    chats = ([{"role": "user", "content": text}] for text in "ab")

    assert len(llm.chat(chats)) == 2
