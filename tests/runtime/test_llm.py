from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from noria.kernels.reference import ReferenceKernels
from noria.runtime.conversation import Conversation
from noria.runtime.errors import BackendError, ConfigError, ModelError, NoriaError, RequestError
from noria.runtime.llm import LLM
from noria.runtime.models.chat_template import ChatTemplate
from noria.runtime.models.random_weights import RandomTensors
from noria.runtime.sampling_params import SamplingParams

TINY = {
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
    "max_model_len": 64,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 64,
    "block_size": 8,
    "num_blocks": 40,
    "sampling": {"temperature": 0, "max_tokens": 6},
}
GREEDY = SamplingParams(temperature=0, max_tokens=6)


@pytest.fixture(scope="module")
def llm():
    return LLM(TINY)


def test_outputs_come_in_the_order_of_the_prompts(llm):
    params = [SamplingParams(temperature=0, max_tokens=n) for n in (9, 2, 5, 1, 7)]
    prompts = ["a", "bb", [1, 2, 3], "dddd", [4]]

    outputs = llm.generate(prompts, params)

    assert [o.prompt for o in outputs] == ["a", "bb", None, "dddd", None]
    assert outputs[2].prompt_token_ids == (1, 2, 3)
    assert [len(o.token_ids) for o in outputs] == [9, 2, 5, 1, 7]
    assert all(isinstance(o.text, str) for o in outputs)


def test_one_prompt_alone_is_a_list_of_one(llm):
    assert [o.prompt for o in llm.generate("one")] == ["one"]
    assert [o.prompt_token_ids for o in llm.generate([7, 8])] == [(7, 8)]
    assert llm.generate([]) == []


def test_without_params_the_configuration_decides(llm):
    (default,) = llm.generate("abc")
    (explicit,) = llm.generate("abc", GREEDY)

    assert len(default.token_ids) == 6
    assert default.token_ids == explicit.token_ids


def test_a_bad_prompt_gives_an_error_and_harms_nobody(llm):
    expected = [o.token_ids for o in llm.generate(["good", "also good"], GREEDY)]

    outputs = llm.generate(["good", [], [300], [1] * 64, ["x"], "also good"], GREEDY)

    assert [o.token_ids for o in (outputs[0], outputs[-1])] == expected
    assert [o.finish_reason for o in outputs] == ["length", *["error"] * 4, "length"]
    for output, fragment in zip(
        outputs[1:5], ["no tokens", "300", "64 tokens", "'x'"], strict=True
    ):
        assert fragment in output.error


def test_requests_are_yielded_as_they_finish(llm):
    params = [SamplingParams(temperature=0, max_tokens=n) for n in (9, 1, 5)]

    order = [index for index, _ in llm.iterate(["a", "b", "c"], params)]

    assert order == [1, 2, 0]


def test_interleaved_iterations_all_get_their_outputs(llm):
    first, second = llm.iterate(["a"] * 3, GREEDY), llm.iterate(["b"] * 3, GREEDY)

    got = [next(first), next(second), *first, *second]

    assert sorted(index for index, _ in got) == [0, 0, 1, 1, 2, 2]
    assert {o.prompt for _, o in got} == {"a", "b"}


def test_leaving_an_iteration_early_cancels_the_rest(llm):
    iteration = llm.iterate(["a", "b"], [GREEDY, SamplingParams(temperature=0, max_tokens=1)])

    next(iteration)
    iteration.close()

    assert not llm.loaded.engine.has_unfinished


def test_streamed_pieces_join_to_the_generated_text(llm):
    (whole,) = llm.generate("stream me", GREEDY)

    assert "".join(llm.stream("stream me", GREEDY)) == whole.text


def test_leaving_a_stream_early_cancels_it(llm):
    stream = llm.stream("stream me", SamplingParams(temperature=0, max_tokens=50))

    next(stream)
    stream.close()

    assert not llm.loaded.engine.has_unfinished


def test_stream_refuses_what_cannot_run(llm):
    with pytest.raises(RequestError, match="no tokens"):
        next(llm.stream([], GREEDY))


def test_chat_without_a_template_is_refused_per_request(llm):
    (output,) = llm.chat([{"role": "user", "content": "hi"}])

    assert output.finish_reason == "error"
    assert "chat template" in output.error


TEMPLATE = "{{ tools[0].name if tools }}{% for m in messages %}{{ m.content }}{% endfor %}"


def test_chats_and_their_tools_go_through_the_template(llm, monkeypatch):
    monkeypatch.setattr(llm.loaded.source.tokenizer, "chat_template", ChatTemplate(TEMPLATE))
    hi, tool = [{"role": "user", "content": "hi"}], {"name": "weather"}

    def prompts(outputs):
        return [bytes(output.prompt_token_ids) for output in outputs]

    assert prompts(llm.chat(hi, GREEDY)) == [b"hi"]
    assert prompts(llm.chat([hi, hi], GREEDY, tools=[tool])) == [b"weatherhi"] * 2
    given = [Conversation(hi, [tool]), hi, "hi"]
    assert prompts(llm.generate(given, GREEDY)) == [b"weatherhi", b"hi", b"hi"]
    assert prompts(llm.generate(given[0], GREEDY)) == [b"weatherhi"]
    assert prompts(llm.chat([given[0].messages], GREEDY, tools=[tool])) == [b"weatherhi"]


def test_h03_one_chat_that_is_refused_harms_no_other(llm, monkeypatch):
    refusing = "{{ raise_exception('no system role') if messages[0].role == 'system' }}hi"
    monkeypatch.setattr(llm.loaded.source.tokenizer, "chat_template", ChatTemplate(refusing))
    contents = ["hi", None, [{"type": "text", "text": "hi"}], "hi"]
    chats = [[{"role": "user", "content": content}] for content in contents]
    chats[3][0]["role"] = "system"

    outputs = llm.chat(chats, GREEDY)

    assert [output.finish_reason == "error" for output in outputs] == [False, True, False, True]
    assert outputs[1].error.startswith("chat template: content of message 0 must be a string")
    assert outputs[3].error == "chat template: no system role"
    assert outputs[0].token_ids == outputs[2].token_ids == llm.generate("hi", GREEDY)[0].token_ids


def test_params_must_be_one_or_as_many_as_prompts(llm):
    with pytest.raises(NoriaError, match="2 sampling params for 3 prompts"):
        llm.generate(["a", "b", "c"], [GREEDY, GREEDY])


def test_j07_the_end_token_is_counted_but_is_not_text(llm):
    (free,) = llm.generate([5, 6], SamplingParams(temperature=0, max_tokens=12))
    stop = free.token_ids[4]

    (output,) = llm.generate(
        [5, 6], SamplingParams(temperature=0, max_tokens=12, stop_token_ids=(stop,))
    )

    kept = free.token_ids[: free.token_ids.index(stop)]
    assert output.token_ids == (*kept, stop)
    assert output.finish_reason == "stop"
    assert output.text == llm.loaded.source.tokenizer.decode(kept)


@pytest.mark.parametrize(
    ("change", "error", "fragment"),
    [
        ({"max_model_len": 999}, (ConfigError, ModelError), "max_model_len"),
        ({"model": "no-such-model"}, ModelError, "no-such-model"),
        ({"num_blocks": "auto", "kv_cache_memory": 4096}, ConfigError, "kv_cache_memory"),
        ({"backend": "neuron", "block_size": 8}, (BackendError, ConfigError), "neuron"),
        ({"num_threads": 10_000}, ConfigError, "num_threads: 10000 exceeds"),
    ],
    ids=["beyond-positions", "unknown-model", "too-little-memory", "neuron", "threads"],
)
def test_what_does_not_fit_is_refused_at_load(change, error, fragment):
    with pytest.raises(error, match=fragment):
        LLM(
            {
                key: value
                for key, value in TINY.items()
                if not ("kv_cache_memory" in change and key == "num_blocks")
            }
            | change
        )


def test_num_blocks_auto_is_resolved_once_and_says_how():
    config = {key: value for key, value in TINY.items() if key != "num_blocks"}

    size = LLM(config).loaded.cache_size
    limited = LLM(config | {"kv_cache_memory": 20 * 2048}).loaded.cache_size

    assert size.num_blocks == (4 * 8 + 1,)
    assert "4 requests of 64 tokens" in size.reason
    assert limited.num_blocks < size.num_blocks
    assert "kv_cache_memory" in limited.reason


def test_progress_names_every_graph():
    seen = []

    llm = LLM(TINY, progress=lambda text, index, total: seen.append((text, index, total)))

    labels = [bucket.label for bucket in llm.loaded.plan.buckets]
    assert [text for text, _, _ in seen] == [*(f"compile {label}" for label in labels), "done"]
    assert seen[-1] == ("done", len(labels), len(labels))


def test_interleaved_streams_lose_no_text(llm):
    params = SamplingParams(temperature=0, max_tokens=12)
    expected = [output.text for output in llm.generate(["first", "second"], params)]
    streams = [llm.stream("first", params), llm.stream("second", params)]
    pieces = [[], []]

    while streams[0] or streams[1]:
        for index, stream in enumerate(streams):
            if stream is not None:
                piece = next(stream, None)
                pieces[index].append(piece or "")
                streams[index] = stream if piece is not None else None

    assert ["".join(one) for one in pieces] == expected


@pytest.mark.parametrize(
    "prompt", [5, None, {"prompt": "x"}, {1, 2}, b"bytes"], ids=lambda value: type(value).__name__
)
def test_a_prompt_of_a_wrong_type_gives_an_error_and_leaves_nothing_behind(llm, prompt):
    outputs = llm.generate(["good", prompt], GREEDY)

    assert [output.finish_reason for output in outputs] == ["length", "error"]
    assert not llm.loaded.engine.has_unfinished


@pytest.mark.parametrize("prompts", [None, 5, {"role": "user"}, b"bytes"], ids=repr)
def test_prompts_of_a_wrong_type_are_refused(llm, prompts):
    with pytest.raises(NoriaError, match="prompts are a text"):
        llm.generate(prompts)


def test_numpy_arrays_and_generators_of_prompts_are_accepted(llm):
    ids = np.array([3, 4, 5])
    (expected,) = llm.generate([[3, 4, 5]], GREEDY)

    outputs = [*llm.generate(ids, GREEDY), *llm.generate([ids], GREEDY)]
    outputs += llm.generate(iter([[3, 4, 5]]), GREEDY)

    assert [output.token_ids for output in outputs] == [expected.token_ids] * 3


@pytest.mark.parametrize("params", [[{"temperature": 0}], 3, SamplingParams, iter([GREEDY])])
def test_params_of_a_wrong_type_are_refused(llm, params):
    with pytest.raises(NoriaError, match="SamplingParams"):
        llm.generate(["a"], params)
    with pytest.raises(NoriaError, match="SamplingParams"):
        next(llm.stream("a", params))


def test_chat_refuses_plain_texts(llm):
    for conversations in ("hello", ["hello"]):
        with pytest.raises(NoriaError, match="lists of messages"):
            llm.chat(conversations)


def test_threads_may_share_an_engine(llm):
    prompts = [f"prompt {i}" for i in range(12)]
    expected = [output.token_ids for output in llm.generate(prompts, GREEDY)]

    with ThreadPoolExecutor(4) as pool:
        outputs = list(pool.map(lambda prompt: llm.generate(prompt, GREEDY)[0], prompts * 3))

    assert [output.token_ids for output in outputs] == expected * 3
    assert not llm.loaded.engine.has_unfinished


def test_weights_that_are_not_finite_are_refused_at_load(monkeypatch):
    make = RandomTensors.__getitem__

    def poisoned(tensors, name):
        tensor = make(tensors, name)
        return tensor.fill_(float("nan")) if name == "model.norm.weight" else tensor

    monkeypatch.setattr(RandomTensors, "__getitem__", poisoned)

    with pytest.raises(ModelError, match="not finite"):
        LLM(TINY)


def test_i02_extreme_but_legal_settings_harm_nobody(llm):
    params = [
        SamplingParams(top_k=2**40, seed=1, max_tokens=4),
        SamplingParams(temperature=1e38, seed=1, max_tokens=4),
        GREEDY,
    ]
    (expected,) = llm.generate(["good"], GREEDY)

    outputs = llm.generate(["a", "b", "good"], params)

    assert [output.finish_reason for output in outputs] == ["length"] * 3
    assert outputs[2].token_ids == expected.token_ids


def test_steps_give_all_that_finished_in_them_at_once(llm):
    steps = list(llm.iterate_steps(["a", "b", "c"], GREEDY))

    sizes = [len(finished) for finished in steps if finished]
    assert sizes == [3]
    assert len(steps) == 1 + 6


@pytest.mark.parametrize(
    ("method", "fragment"),
    [("make_linear", "the weights"), ("zeros", "the KV cache")],
    ids=["weights", "cache"],
)
def test_too_little_memory_at_load_is_one_clear_error(monkeypatch, method, fragment):
    def fail(*args, **kwargs):
        raise MemoryError("no memory for 7 bytes")

    monkeypatch.setattr(ReferenceKernels, method, fail)

    with pytest.raises(BackendError, match=rf"not enough memory for {fragment}: no memory for 7"):
        LLM(TINY)
