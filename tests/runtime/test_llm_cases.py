"""Cases through the offline interface: prompts, texts, ends, priorities, a cache that is full."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from noria.runtime.errors import NoriaError
from noria.runtime.llm import LLM
from noria.runtime.outputs import RequestOutput
from noria.runtime.request import Request
from noria.runtime.sampling_params import SamplingParams

TINY: dict[str, Any] = {
    "model": {
        "vocab_size": 300,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "eos_token_id": 299,
    },
    "backend": "reference",
    "max_model_len": 96,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 32,
    "num_seqs_buckets": [4, 8],
    "num_batched_tokens_buckets": [32],
    "block_size": 4,
    "num_blocks": 200,
    "scheduling_policy": "priority",
    "sampler_features": [
        "greedy",
        "top_k_top_p",
        "penalties",
        "logit_bias",
        "structured_output",
        "logprobs",
        "prompt_logprobs",
    ],
}
GREEDY = SamplingParams(temperature=0, max_tokens=8)
EMOJI = "\U0001f600"


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


def script(text: str, **settings: Any) -> SamplingParams:
    """Settings that make any model write this text."""
    return SamplingParams(temperature=0, structured_output={"choice": [text]}, **settings)


def test_h04_pieces_of_a_stream_are_whole_characters_and_join_to_the_text_of_all_ids(
    llm: LLM,
) -> None:
    text = f"a{EMOJI}\u4e2d\uac00e\u0301 \U0001f468\u200d\U0001f469 end"
    (output,) = llm.generate("p", script(text))

    pieces = [*llm.stream("p", script(text))]

    assert len(output.token_ids) == len(text.encode())
    assert llm.loaded.source.tokenizer.decode(output.token_ids) == text
    assert pieces == [*text]
    assert output.text == text


def test_h04_random_tokens_stream_to_the_text_of_all_ids(llm: LLM) -> None:
    """Random bytes are no characters: their replacements come in pieces as in the whole."""
    for seed in range(6):
        params = SamplingParams(seed=seed, temperature=3, max_tokens=40)
        (output,) = llm.generate("p", params)
        kept = [token for token in output.token_ids if token != 299]

        assert "".join(llm.stream("p", params)) == output.text
        assert output.text == llm.loaded.source.tokenizer.decode(kept)


def test_h07_each_bad_id_is_one_error_and_the_largest_good_one_runs(llm: LLM) -> None:
    prompts: list[Any] = [[-1], [300], [299], [2**40], [1.5], ["3"], [True], [7]]
    (alone,) = llm.generate([[7]], GREEDY)

    outputs = llm.generate(prompts, GREEDY)

    is_good = [output.error is None for output in outputs]
    assert is_good == [False, False, True, False, False, False, False, True]
    assert outputs[-1].token_ids == alone.token_ids
    for output, shown in zip(outputs[:2], ("-1", "300"), strict=True):
        assert f"prompt token 0 is {shown}" in str(output.error)


def test_h09_empty_prompts_in_the_middle_of_a_batch_are_errors_without_a_bos(llm: LLM) -> None:
    (alone,) = llm.generate("good", GREEDY)

    outputs = llm.generate(["good", "", [], "good"], GREEDY)

    assert [output.error is None for output in outputs] == [True, False, False, True]
    assert {outputs[0].token_ids, outputs[3].token_ids} == {alone.token_ids}
    assert "no tokens" in str(outputs[1].error)
    with pytest.raises(NoriaError):
        llm.chat(["", "a"])


def test_j01_of_two_stop_strings_the_earliest_ends_text_and_stream(llm: LLM) -> None:
    """One is a prefix of the other; both begin in one token and end in another."""
    params = script(f"quick {EMOJI} brown", stop=[f"k {EMOJI}", f"k {EMOJI} b"])
    kept = replace(params, include_stop_str_in_output=True)

    outputs = llm.generate(["p", "p"], [params, kept])

    assert [output.text for output in outputs] == ["quic", f"quick {EMOJI}"]
    assert {output.finish_reason for output in outputs} == {"stop"}
    assert "".join(llm.stream("p", params)) == "quic"
    assert "".join(llm.stream("p", kept)) == f"quick {EMOJI}"


def test_j01_no_stream_gives_a_part_of_a_stop_string_away(llm: LLM) -> None:
    params = script("to be or not to be", stop=["or not!", "not to be"])

    pieces = [*llm.stream("p", params)]

    assert "".join(pieces) == "to be or "
    joined = ""
    for piece in pieces:
        joined += piece
        assert "to be or ".startswith(joined)


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


def test_i08_a_failed_request_is_an_output_with_an_error_beside_others(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After three tokens; a stream of it raises; the cache is as free as before."""
    expected = [output.token_ids for output in llm.generate(["a", "b", "c"], GREEDY)]
    free = llm.loaded.engine._kv_cache.num_free_blocks
    runner, marked = llm.loaded.runner, []
    run_graph = runner.run_graph

    def run_and_poison(graph: Any, output: Any) -> None:
        run_graph(graph, output)
        for row, scheduled in enumerate(output.requests):
            if scheduled.request_id in marked and scheduled.num_context_tokens == 4:
                graph.logits_RV[row].fill_(math.nan)

    monkeypatch.setattr(runner, "run_graph", run_and_poison, raising=False)
    submit = llm.loaded.engine.submit

    def submit_and_mark(prompt: Any, *args: Any, **options: Any) -> tuple[Request, ...]:
        requests = submit(prompt, *args, **options)
        marked.extend(one.request_id for one in requests if tuple(prompt) == tuple(b"b"))
        return requests

    monkeypatch.setattr(llm.loaded.engine, "submit", submit_and_mark)

    outputs = llm.generate(["a", "b", "c"], GREEDY)

    assert [outputs[0].token_ids, outputs[2].token_ids] == [expected[0], expected[2]]
    assert outputs[1].finish_reason == "error"
    assert "logits" in str(outputs[1].error)
    assert outputs[1].token_ids == expected[1][:3]
    with pytest.raises(NoriaError, match="logits"):
        list(llm.stream("b", GREEDY))
    assert llm.loaded.engine._kv_cache.num_free_blocks == free


def test_i11_a_step_that_breaks_ends_the_run_with_its_error_at_once(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is left behind, so the next run is as any other."""
    expected = [output.token_ids for output in llm.generate(["a", "b"], GREEDY)]
    runner, steps = llm.loaded.runner, iter(range(100))
    execute = runner.execute

    def execute_and_break(output: Any) -> Any:
        if next(steps) == 4:
            raise RuntimeError("the device is gone")
        return execute(output)

    with monkeypatch.context() as patch:
        patch.setattr(runner, "execute", execute_and_break)
        with pytest.raises(RuntimeError, match="the device is gone"):
            llm.generate(["a", "b"], GREEDY)

    assert not llm.loaded.engine.has_unfinished
    assert [output.token_ids for output in llm.generate(["a", "b"], GREEDY)] == expected
