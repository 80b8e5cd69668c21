"""Random traffic on random engines: tokens equal the dense model's, whatever happens."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from noria.kernels.cpu import CpuKernels
from noria.runtime.errors import RequestError
from noria.runtime.sampling_params import SamplingParams


@st.composite
def shapes(draw, make_shape):
    max_model_len = draw(st.integers(8, 64))
    max_num_seqs = draw(st.integers(1, 6))
    limit = draw(st.integers(4, max_model_len))
    tokens = draw(st.sets(st.integers(1, limit), max_size=2)) | {limit}
    seqs = draw(st.sets(st.integers(1, max_num_seqs), max_size=2)) | {max_num_seqs}
    contexts = st.sets(st.integers(1, max_model_len - 1), max_size=2).map(sorted).map(tuple)
    block_size = draw(st.sampled_from([1, 2, 3, 4, 7, 16, 32, 128]))
    return make_shape(
        max_num_batched_tokens=limit,
        max_num_seqs=max_num_seqs,
        max_model_len=max_model_len,
        max_num_prefill_seqs=draw(st.integers(1, max_num_seqs)),
        block_size=block_size,
        num_blocks=draw(st.integers(2, 2 + 2 * -(-max_model_len // block_size))),
        tokens=tuple(sorted(tokens)),
        seqs=tuple(sorted(seqs)),
        prefill_context=draw(contexts),
        decode_context=draw(contexts),
    )


params = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0, 0, 0.7, 1.3]),
    top_k=st.sampled_from([None, 1, 5]),
    top_p=st.sampled_from([1.0, 0.8]),
    max_tokens=st.integers(1, 8),
    seed=st.integers(0, 9),
    stop_token_ids=st.sampled_from([(), (0, 7, 21), tuple(range(0, 61, 4))]),
)
operations = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.lists(st.integers(0, 60), min_size=1, max_size=20), params),
        st.tuples(st.just("step"), st.integers(1, 6), st.none()),
        st.tuples(st.just("cancel"), st.integers(0, 99), st.none()),
    ),
    max_size=25,
)


def check_traffic(tiny, dense, traffic) -> None:
    """Apply operations, checking invariants after each, then finish and compare tokens."""
    requests, cancelled = [], set()
    for name, value, settings_ in traffic:
        if name == "submit":
            try:
                requests.append(tiny.submit(value, settings_))
            except RequestError:
                continue
        elif name == "step":
            for _ in range(value):
                tiny.engine.step()
                tiny.engine.check_invariants()
        elif requests:
            request = requests[value % len(requests)]
            if not request.is_finished:
                cancelled.add(request.request_id)
            tiny.engine.cancel(request)
        tiny.engine.check_invariants()
    before = tiny.graphs.num_compilations
    tiny.run()

    assert tiny.graphs.num_compilations == before
    assert set(tiny.runner.padding.by_bucket) <= set(tiny.plan.buckets)
    for request in requests:
        num_tokens = len(request.output_token_ids)
        if request.request_id not in cancelled:
            is_stopped = request.output_token_ids[-1] in request.params.stop_token_ids
            assert is_stopped or request.num_tokens == request.max_total_tokens
        assert not set(request.output_token_ids[:-1]) & set(request.params.stop_token_ids)
        expected = dense.generate(request.prompt_token_ids, request.params, num_tokens)
        assert request.output_token_ids == expected


FUZZ = settings(
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@settings(FUZZ, max_examples=40)
@given(st.data())
def test_tokens_equal_the_dense_model_for_any_traffic(make_engine, make_shape, dense, data):
    tiny = make_engine(data.draw(shapes(make_shape)))

    check_traffic(tiny, dense, data.draw(operations))


@pytest.fixture(scope="module")
def compiled(make_engine, make_shape):
    shape = make_shape(max_num_seqs=5, seqs=(1, 3, 5), tokens=(9, 64), decode_context=(16,))
    return make_engine(shape, kernels=CpuKernels(), dtype=torch.float32)


@settings(FUZZ, max_examples=25)
@given(traffic=operations)
def test_compiled_graphs_give_the_tokens_of_the_dense_model_for_any_traffic(
    compiled, dense, traffic
):
    check_traffic(compiled, dense, traffic)


@pytest.mark.long
@settings(FUZZ, max_examples=2000)
@given(st.data())
def test_tokens_equal_the_dense_model_for_much_more_traffic(make_engine, make_shape, dense, data):
    tiny = make_engine(data.draw(shapes(make_shape)))

    check_traffic(tiny, dense, data.draw(operations))


def test_the_comparison_can_fail(make_engine, dense):
    """A slot mapping that is off by one is a wrong answer that this fuzz must see."""
    tiny = make_engine()
    inner = tiny.runner.run_graph

    def run_graph(graph, output):
        inner(graph, output)
        for cache in tiny.cache.keys:
            cache.copy_(cache.roll(1, dims=1))

    tiny.runner.run_graph = run_graph
    greedy = SamplingParams(temperature=0, max_tokens=8)

    with pytest.raises(AssertionError):
        check_traffic(tiny, dense, [("submit", [i, 3, 9], greedy) for i in range(4)])
