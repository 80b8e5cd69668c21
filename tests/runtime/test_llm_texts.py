"""Settings about text, through the whole engine: what a grammar allows, where a text ends.

A choice of one text is a script: the model writes it, whatever its weights are.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from noria.runtime.llm import LLM
from noria.runtime.sampling_params import SamplingParams

TINY = {
    "model": {
        "vocab_size": 300,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "eos_token_id": 299,
    },
    "backend": "reference",
    "max_model_len": 256,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 64,
    "block_size": 8,
    "num_blocks": 60,
    "sampler_features": [
        "greedy",
        "top_k_top_p",
        "penalties",
        "logit_bias",
        "structured_output",
        "logprobs",
    ],
}
SCHEMA = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["cat", "category"]},
        "at": {
            "type": "object",
            "properties": {"x": {"type": "integer", "minimum": -9, "maximum": 9}},
            "required": ["x"],
            "additionalProperties": False,
        },
    },
    "required": ["kind", "at"],
    "additionalProperties": False,
}


SCRIPTED = "quick brown fox \U0001f600!"
END = 299


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(TINY)


def script(text: str, **settings: Any) -> SamplingParams:
    return SamplingParams(temperature=0, structured_output={"choice": [text]}, **settings)


def written(llm: LLM, params: SamplingParams) -> tuple[str | None, str]:
    """Return text and finish reason, which a stream must agree with."""
    (output,) = llm.generate("p", params)
    assert "".join(llm.stream("p", params)) == output.text
    return output.text, output.finish_reason


def test_every_text_that_came_to_its_end_fits_its_schema(llm: LLM) -> None:
    """Among requests without one, and more of them than run at once."""
    schema = SamplingParams(structured_output={"json": SCHEMA}, temperature=3, max_tokens=200)
    plain = SamplingParams(temperature=1, max_tokens=9)
    params = [
        replace(plain if seed % 3 == 2 else schema, seed=seed, n=1 + seed % 2) for seed in range(12)
    ]

    outputs = llm.generate(["json"] * len(params), params)

    answers = [
        answer
        for output, one in zip(outputs, params, strict=True)
        for answer in output.completions
        if one.structured_output
    ]
    values = [json.loads(answer.text or "") for answer in answers if answer.finish_reason == "stop"]
    assert len(answers) == 12
    assert len(values) >= 6, "else this would show nothing"
    assert all(-9 <= value["at"]["x"] <= 9 for value in values)
    assert {value["kind"] for value in values} <= {"cat", "category"}
    assert len({answer.text for answer in answers}) > 6
    assert all(answer.error is None for answer in answers)


def test_a_text_is_complete_at_an_end_token_or_where_nothing_may_follow(llm: LLM) -> None:
    (whole,) = llm.generate("p", script("only this"))
    endless = {"temperature": 0, "structured_output": {"regex": "(ab)+"}}
    (ended,) = llm.generate("p", SamplingParams(logit_bias={END: 100.0}, **endless))

    assert (whole.text, whole.finish_reason) == ("only this", "stop")
    assert len(whole.token_ids) == len("only this")
    assert (ended.text, ended.finish_reason) == ("ab", "stop")
    assert ended.token_ids[-1] == END


def test_a_schema_that_is_refused_harms_no_other_request(llm: LLM) -> None:
    bad = SamplingParams(structured_output={"json": {"type": "strin"}})

    outputs = llm.generate(["a", "b"], [bad, script("fine")])

    assert outputs[0].error == "structured_output.json: Invalid type: strin"
    assert outputs[1].text == "fine"


@pytest.mark.parametrize(
    ("stop", "text"),
    [
        (["own fox"], "quick br"),
        (["k b"], "quic"),
        (["k br", "k b"], "quic"),
        (["fox", "brown"], "quick "),
        (["\U0001f600"], "quick brown fox "),
        (["nowhere"], SCRIPTED),
    ],
)
def test_j01_text_is_cut_before_the_first_stop_string(llm: LLM, stop: list[str], text: str) -> None:
    assert written(llm, script(SCRIPTED, stop=stop)) == (text, "stop")


def test_j01_the_stop_string_is_kept_where_it_is_asked_for(llm: LLM) -> None:
    params = script("one STOP two", stop="STOP", include_stop_str_in_output=True)

    assert written(llm, params) == ("one STOP", "stop")
    (output,) = llm.generate("p", params)
    assert len(output.token_ids) == len("one STOP")


@pytest.mark.parametrize(("max_tokens", "reason"), [(5, "stop"), (4, "length")])
def test_j09_text_held_back_for_a_stop_string_is_released(
    llm: LLM, max_tokens: int, reason: str
) -> None:
    params = script("pleas", stop=["assistant"], max_tokens=max_tokens)

    assert written(llm, params) == ("pleas"[:max_tokens], reason)


def test_j09_an_end_token_releases_it_too(llm: LLM) -> None:
    params = SamplingParams(
        temperature=0,
        structured_output={"regex": "pleas(sist)?"},
        logit_bias={END: 100.0},
        stop=["assistant"],
    )

    assert written(llm, params) == ("pleas", "stop")


def test_stop_strings_of_the_first_min_tokens_are_text(llm: LLM) -> None:
    assert written(llm, script("a.b.c.", stop=["."], min_tokens=3)) == ("a.b", "stop")
    assert written(llm, script("a.b.c.", stop=["."], min_tokens=2)) == ("a", "stop")


def test_a_character_of_several_tokens_comes_whole(llm: LLM) -> None:
    """H04."""
    text = "a\U0001f600\u4e2de\u0301"

    pieces = list(llm.stream("p", script(text)))

    assert pieces == ["a", "\U0001f600", "\u4e2d", "e", "\u0301"]


def test_bad_words_are_never_written(llm: LLM) -> None:
    """Of two texts the one without them is left; tokens of a word may come without the others."""
    params = SamplingParams(
        temperature=0,
        structured_output={"choice": ["a bad word", "a bat word"]},
        bad_words=["bad"],
        logit_bias={ord("d"): 50.0},
    )

    assert written(llm, params) == ("a bat word", "stop")
    assert written(llm, replace(params, bad_words=())) == ("a bad word", "stop")
