"""The offline interface with a cache that is full: what is preempted, and who goes first."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from tiny_llm import EMOJI, GREEDY, TINY, script

from noria.runtime.errors import NoriaError
from noria.runtime.llm import LLM
from noria.runtime.outputs import RequestOutput
from noria.runtime.request import Request
from noria.runtime.sampling_params import SamplingParams


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(TINY)


@pytest.fixture(scope="module")
def small_llm() -> LLM:
    """The same with a pool that holds one request of full length."""
    return LLM(TINY | {"num_blocks": 1 + 26})


@contextmanager
def submitted(llm: LLM) -> Iterator[list[Request]]:
    """Collect the samples of all requests, in order of submission."""
    engine, samples = llm.loaded.engine, []
    submit = engine.submit

    def submit_and_keep(*args: Any, **options: Any) -> tuple[Request, ...]:
        requests = submit(*args, **options)
        samples.extend(requests)
        return requests

    engine.submit = submit_and_keep  # type: ignore[method-assign]
    yield samples
    del engine.submit


def of_every_kind() -> list[SamplingParams]:
    """Return settings that remember what came before, and see the text."""
    plain = SamplingParams(max_tokens=30, seed=1, logprobs=3)
    return [
        replace(plain, temperature=0),
        replace(plain, seed=2, n=3, temperature=2),
        replace(plain, frequency_penalty=1.5, repetition_penalty=1.2, min_p=0.01),
        replace(plain, bad_words=["a", "be"], logit_bias={98: 4.0}, temperature=0.8),
        replace(plain, min_tokens=20, logit_bias={299: 50.0}, prompt_logprobs=2),
        script("one, two, STOP three four five", stop=["STOP th"], logprobs=1),
        script(f"{EMOJI * 5} and more {EMOJI}", max_tokens=30),
        replace(plain, structured_output={"regex": "(ab|cd){8,20}"}, logit_bias={299: 3.0}),
        replace(plain, stop=["a", "e", "\ufffd\ufffd\ufffd\ufffd"], min_tokens=3, seed=9),
        replace(plain, temperature=4, seed=12, top_p=0.95, top_k=200),
    ]


def parts(output: RequestOutput) -> tuple[object, ...]:
    return output.prompt_token_ids, output.completions, output.prompt_logprobs, output.error


def test_preempted_requests_end_with_the_same_tokens_texts_and_logprobs(
    llm: LLM, small_llm: LLM
) -> None:
    params = of_every_kind()
    prompts = [f"prompt {index}: {'again ' * (index % 4)}" for index in range(len(params))]
    expected = [llm.generate(p, one)[0] for p, one in zip(prompts, params, strict=True)]

    with submitted(small_llm) as samples:
        outputs = small_llm.generate(prompts, params)

    assert [parts(output) for output in outputs] == [parts(output) for output in expected]
    assert sum(sample.num_preemptions > 0 for sample in samples) >= 4
    assert {output.finish_reason for output in outputs} == {"stop", "length"}
    assert outputs[5].text == "one, two, "


WINDOWS = {
    "model_type": "gemma3_text",
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "query_pre_attn_scalar": 8,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "sliding_window": 6,
    "max_position_embeddings": 128,
    "eos_token_id": 299,
}


@pytest.mark.filterwarnings("ignore:kv_cache_dtype")
@pytest.mark.parametrize("kv_cache_dtype", ["auto", "fp8_e4m3"])
def test_compiled_windows_and_8_bit_caches_keep_every_bit_in_chunks_and_preempted(
    kv_cache_dtype: str,
) -> None:
    """In bfloat16: what is computed again is what it was, to the logprobs."""
    compiled = {"model": WINDOWS, "backend": "cpu", "kv_cache_dtype": kv_cache_dtype}
    compiled |= {"dtype": "bfloat16", "num_seqs_buckets": [8]}
    sizes = {"max_num_batched_tokens": 5, "num_batched_tokens_buckets": [5]}
    whole, cut = LLM(TINY | compiled), LLM(TINY | compiled | sizes | {"num_blocks": 1 + 26})
    params = of_every_kind()
    prompts = [f"prompt {index}: {'again ' * (index % 4)}" for index in range(len(params))]
    expected = [whole.generate(p, one)[0] for p, one in zip(prompts, params, strict=True)]

    with submitted(cut) as samples:
        outputs = cut.generate(prompts, params)

    assert [parts(output) for output in outputs] == [parts(output) for output in expected]
    assert sum(sample.num_preemptions > 0 for sample in samples) >= 4


def test_a_stream_that_is_preempted_loses_and_repeats_no_text(llm: LLM, small_llm: LLM) -> None:
    params = script(f"words and {EMOJI} words and STOP", stop=["STOP"])
    long = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
    with submitted(small_llm) as samples:
        others = [small_llm.stream("x" * 30, long) for _ in range(3)]
        for other in others:
            next(other)
        pieces = []
        for piece in small_llm.stream("p", params):
            pieces.append(piece)
            for other in others:
                next(other, None)
        rest = ["".join(other) for other in others]

    assert "".join(pieces) == f"words and {EMOJI} words and "
    assert sum(sample.num_preemptions for sample in samples) > 0
    assert samples[3].num_preemptions > 0
    assert len(rest) == 3


def test_a_priority_is_given_for_all_prompts_or_for_each(llm: LLM) -> None:
    one_at_a_time = LLM(
        TINY | {"max_num_seqs": 1, "max_num_prefill_seqs": 1, "num_seqs_buckets": [1]}
    )
    prompts = ["a", "b", "c", "d"]
    expected = [output.token_ids for output in llm.generate(prompts, GREEDY)]

    def order(priority: Any) -> list[int]:
        found = list(one_at_a_time.iterate(prompts, GREEDY, priority=priority))
        assert [output.token_ids for _, output in sorted(found, key=lambda pair: pair[0])] == (
            expected
        )
        return [index for index, _ in found]

    assert order(7) == [0, 1, 2, 3]
    assert order([2, 0, -5, 0]) == [2, 1, 3, 0]


@pytest.mark.parametrize(
    ("priority", "message"),
    [
        ([1], "1 priorities for 2 prompts; give one or all"),
        (1.5, "priority is 1.5; it must be an integer, or a list of them"),
        ("12", "priority is '12'; it must be an integer"),
        ([1, None], r"priority is \[1, None\]; it must be an integer"),
    ],
    ids=str,
)
def test_a_priority_that_is_none_is_refused(llm: LLM, priority: Any, message: str) -> None:
    with pytest.raises(NoriaError, match=message):
        llm.generate(["a", "b"], GREEDY, priority=priority)

    assert not llm.loaded.engine.has_unfinished


def test_first_come_first_served_refuses_other_priorities_than_0() -> None:
    fcfs = LLM(TINY | {"scheduling_policy": "fcfs"})

    plain, refused = fcfs.generate(["a", "b"], GREEDY, priority=[0, 1])

    assert plain.error is None
    assert refused.error == "priority is 1, but scheduling_policy is fcfs"
