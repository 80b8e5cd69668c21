"""The reference attention against the dense oracle, and its promises to the last bit."""

import itertools

import pytest
import torch
from attention_cases import (
    Heads,
    Layout,
    Request,
    Step,
    make_decode,
    make_prefill,
    same_bits,
    single_steps,
)
from dense_attention import dense_attention
from hypothesis import given, settings
from hypothesis import strategies as st

from noria.kernels.contract import AttentionSpec
from noria.kernels.reference import ReferenceKernels, attention
from noria.kernels.reference.attention import tree_sum

TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2}

heads_strategy = st.builds(
    Heads,
    num_kv_heads=st.integers(1, 3),
    group=st.integers(1, 4),
    k_dim=st.sampled_from([1, 2, 6, 16]),
    v_dim=st.sampled_from([1, 4, 7]),
    block_size=st.sampled_from([1, 2, 3, 4, 7, 16]),
    dtype=st.sampled_from(list(TOLERANCES)),
)
requests_strategy = st.lists(
    st.builds(Request, st.integers(0, 20), st.integers(1, 9), st.integers(0, 99)),
    min_size=1,
    max_size=4,
)


def assert_matches_dense(step: Step, kernels: ReferenceKernels | None = None) -> None:
    output, k_cache, v_cache = step.run(kernels or ReferenceKernels())

    tolerance = TOLERANCES[step.heads.dtype]
    for rows, expected in zip(step.request_rows(output), dense_attention(step), strict=True):
        difference = rows.double() - torch.from_numpy(expected)
        assert float(difference.abs().max()) <= tolerance
    assert output.dtype == step.heads.dtype
    assert same_bits(k_cache, step.expected_caches[0])
    assert same_bits(v_cache, step.expected_caches[1])


@settings(max_examples=40, deadline=None)
@given(requests_strategy, heads_strategy, st.sampled_from([1, 4]))
def test_prefill_matches_the_dense_oracle(requests: list[Request], heads: Heads, tile: int):
    step = make_prefill(requests, heads, Layout(tile=tile))

    assert_matches_dense(step, ReferenceKernels(prefill_tile=tile))


@settings(max_examples=40, deadline=None)
@given(requests_strategy, heads_strategy, st.integers(0, 3))
def test_decode_matches_the_dense_oracle(requests: list[Request], heads: Heads, spare: int):
    longest = max(request.query_len for request in requests)

    assert_matches_dense(make_decode(requests, heads, Layout(query_len=longest + spare)))


@pytest.mark.parametrize("group", range(1, 17))
def test_every_grouping_of_heads_matches_the_dense_oracle(group: int):
    heads = Heads(num_kv_heads=2, group=group, k_dim=4, v_dim=4)

    assert_matches_dense(make_prefill([Request(5, 3, 1), Request(0, 6, 2)], heads))


@pytest.mark.parametrize("block_size", [1, 2, 3, 8, 16, 31, 32, 64, 128])
def test_lengths_around_block_edges_match_the_dense_oracle(block_size: int):
    edges = sorted({max(0, n * block_size + d) for n in (0, 1, 2) for d in (-1, 0, 1)})
    requests = [Request(context_len, 2, seed) for seed, context_len in enumerate(edges)]

    assert_matches_dense(make_prefill(requests, Heads(block_size=block_size, k_dim=2, v_dim=2)))


def reference_rows(step: Step) -> list[torch.Tensor]:
    return step.request_rows(step.run(ReferenceKernels(prefill_tile=1))[0])


DTYPES = pytest.mark.parametrize("dtype", list(TOLERANCES), ids=lambda dtype: str(dtype)[6:])


@DTYPES
def test_packed_requests_with_prior_context_equal_each_alone(dtype: torch.dtype):
    heads = Heads(dtype=dtype)
    requests = [Request(9, 5, 1), Request(0, 7, 2), Request(16, 1, 3), Request(3, 2, 4)]

    packed = reference_rows(make_prefill(requests, heads))

    for rows, request in zip(packed, requests, strict=True):
        (alone,) = reference_rows(make_prefill([request], heads))
        assert same_bits(rows, alone)


@DTYPES
@pytest.mark.parametrize("tile", [4, 8])
def test_alignment_gaps_change_no_bit(dtype: torch.dtype, tile: int):
    heads = Heads(dtype=dtype)
    requests = [Request(9, 5, 1), Request(0, 8, 2), Request(16, 1, 3)]
    step = make_prefill(requests, heads, Layout(tile=tile, num_rows=32, padding=float("nan")))

    output, *caches = step.run(ReferenceKernels(prefill_tile=tile))

    for rows, tight in zip(
        step.request_rows(output), reference_rows(make_prefill(requests, heads)), strict=True
    ):
        assert same_bits(rows, tight)
    assert not output[step.is_padding()].any()
    assert same_bits(caches[0], step.expected_caches[0])


@DTYPES
def test_any_chunking_of_a_prompt_gives_the_bits_of_one_prefill(dtype: torch.dtype):
    heads = Heads(dtype=dtype)
    (whole,) = reference_rows(make_prefill([Request(0, 14, 7)], heads))

    for edges in [(0, 1, 14), (0, 4, 8, 14), (0, 3, 5, 13, 14)]:
        chunks = [
            reference_rows(make_prefill([Request(start, end - start, 7)], heads))[0]
            for start, end in itertools.pairwise(edges)
        ]
        assert same_bits(torch.cat(chunks), whole)


@DTYPES
def test_verification_rows_equal_single_decode_steps_and_prefill(dtype: torch.dtype):
    heads = Heads(dtype=dtype)
    requests = [Request(6, 4, 1), Request(0, 3, 2), Request(15, 1, 3)]

    verified = reference_rows(make_decode(requests, heads))

    for rows, request in zip(verified, requests, strict=True):
        singles = [reference_rows(make_decode([one], heads))[0] for one in single_steps(request)]
        assert same_bits(rows, torch.cat(singles))
        assert same_bits(rows, reference_rows(make_prefill([request], heads))[0])


@DTYPES
@settings(max_examples=15, deadline=None)
@given(requests=requests_strategy, columns=st.integers(0, 9), spare=st.integers(0, 5))
def test_bucket_and_table_width_change_no_bit(
    dtype: torch.dtype, requests: list[Request], columns: int, spare: int
):
    heads = Heads(dtype=dtype)
    rows = sum(request.query_len for request in requests) + spare
    wide = Layout(
        num_rows=rows,
        num_requests=len(requests) + spare,
        extra_columns=columns,
        padding=float("nan"),
    )
    for make in (make_prefill, make_decode):
        step = make(requests, heads, wide)
        output, *caches = step.run(ReferenceKernels())

        tight = reference_rows(make(requests, heads))
        assert all(same_bits(*pair) for pair in zip(step.request_rows(output), tight, strict=True))
        assert same_bits(caches[0], step.expected_caches[0])
        assert not output[step.is_padding()].any()


@pytest.mark.parametrize("make", [make_prefill, make_decode])
def test_rows_and_physical_blocks_can_be_permuted(make):
    requests = [Request(9, 2, 1), Request(0, 3, 2), Request(16, 1, 3)]
    first = reference_rows(make(requests))

    for seed in range(1, 6):
        shifted = requests[seed % 3 :] + requests[: seed % 3]
        rows = reference_rows(make(shifted, None, Layout(block_seed=seed)))
        back = len(rows) - seed % 3
        for got, expected in zip(rows[back:] + rows[:back], first, strict=True):
            assert same_bits(got, expected)


@DTYPES
@pytest.mark.parametrize("window", [None, 1, 5, 8])
@settings(max_examples=20, deadline=None)
@given(requests=requests_strategy)
def test_skipping_columns_that_no_row_sees_is_exact(
    dtype: torch.dtype, window: int | None, requests: list[Request]
):
    """The loop runs from the first column with keys to the last; all of them change no bit."""
    layout = Layout(extra_columns=3, filler=float("nan"))
    step = make_decode(requests, Heads(dtype=dtype, window=window), layout)
    shortened, *_ = step.run(ReferenceKernels())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            attention,
            "_seen_columns",
            lambda first, last, table, block_size: range(table.shape[1]),
        )
        full, *_ = step.run(ReferenceKernels())

    assert same_bits(shortened, full)


def test_negative_zero_does_not_tell_how_many_columns_ran():
    """Underflow can leave -0.0 in the running output; an empty block would turn it into 0.0."""
    tiny = torch.finfo(torch.float64).smallest_normal
    q = torch.tensor([[[1.0]]], dtype=torch.float64)
    keys = torch.tensor([0.0, 700.0], dtype=torch.float64).view(2, 1, 1, 1)
    values = torch.tensor([-tiny, -0.0], dtype=torch.float64).view(2, 1, 1, 1)
    rows = attention.QueryRows(torch.tensor([0]), torch.tensor([2], dtype=torch.int32))
    table = torch.tensor([[0, 1]], dtype=torch.int32)

    output = attention.attend(q, keys, values, table, rows, spec=AttentionSpec(scale=1.0))

    assert same_bits(output, torch.zeros(1, 1, dtype=torch.float64))


def test_scores_near_the_ends_of_the_range_stay_numbers():
    for sign in (1.0, -1.0):
        q = torch.tensor([[[sign * 1e19]]], dtype=torch.float32)
        keys = torch.tensor([1e19, -1e19], dtype=torch.float32).view(1, 2, 1, 1)
        values = torch.tensor([1.0, 2.0], dtype=torch.float32).view(1, 2, 1, 1)
        rows = attention.QueryRows(torch.tensor([0]), torch.tensor([2], dtype=torch.int32))
        table = torch.zeros(1, 1, dtype=torch.int32)

        output = attention.attend(q, keys, values, table, rows, spec=AttentionSpec(scale=1.0))

        assert output.item() == (1.0 if sign > 0 else 2.0)


@pytest.mark.parametrize("size", range(1, 20))
def test_tree_sum_adds_every_term_once(size: int):
    terms = 2.0 ** torch.arange(size, dtype=torch.float64)

    assert tree_sum(terms.expand(3, size), dim=1).tolist() == [2.0**size - 1] * 3
