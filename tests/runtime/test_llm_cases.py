"""Cases through the offline interface: prompts, texts, and runs in which something breaks."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from tiny_llm import EMOJI, GREEDY, TINY, script

from noria.runtime.errors import NoriaError
from noria.runtime.llm import LLM
from noria.runtime.request import Request
from noria.runtime.sampling_params import SamplingParams


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(TINY)


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
