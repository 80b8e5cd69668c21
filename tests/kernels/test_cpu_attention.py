"""The C++ attention against the reference, and its promises to the last bit."""

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
from hypothesis import given, settings
from hypothesis import strategies as st

from noria.kernels.contract import AttentionSpec
from noria.kernels.cpu import CpuKernels
from noria.kernels.reference import ReferenceKernels

KERNELS = CpuKernels()
TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
DTYPES = pytest.mark.parametrize("dtype", list(TOLERANCES), ids=lambda dtype: str(dtype)[6:])
PHASES = pytest.mark.parametrize("make", [make_prefill, make_decode])
REQUESTS = [Request(9, 2, 1), Request(0, 3, 2), Request(70, 4, 4), Request(15, 1, 3)]
PAST_A_TILE = [Request(63, 9, 1), Request(0, 40, 2), Request(130, 1, 3)]


def heads_of(dim: int = 16, *, dtype: torch.dtype = torch.float32, **sizes: int) -> Heads:
    return Heads(k_dim=dim, v_dim=dim, dtype=dtype, **sizes)


def rows_of(step: Step) -> list[torch.Tensor]:
    return step.request_rows(step.run(KERNELS)[0])


def all_same_bits(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
    return all(same_bits(*pair) for pair in zip(first, second, strict=True))


def assert_matches_reference(step: Step) -> None:
    output, *caches = step.run(KERNELS)
    expected, *_ = step.run(ReferenceKernels())

    tolerance = TOLERANCES[step.heads.dtype]
    torch.testing.assert_close(output.float(), expected.float(), rtol=tolerance, atol=tolerance)
    assert output.dtype == step.heads.dtype
    assert all_same_bits(caches, list(step.expected_caches))


requests_strategy = st.lists(
    st.builds(Request, st.integers(0, 80), st.integers(1, 9), st.integers(0, 99)),
    min_size=1,
    max_size=4,
)


@settings(max_examples=20, deadline=None)
@given(
    requests=requests_strategy,
    kv_heads=st.integers(1, 3),
    group=st.integers(1, 4),
    dim=st.sampled_from([8, 16, 24, 64]),
    block_size=st.sampled_from([1, 3, 4, 16, 33]),
    dtype=st.sampled_from(list(TOLERANCES)),
)
def test_both_phases_match_the_reference(requests, kv_heads, group, dim, block_size, dtype):
    heads = heads_of(dim, dtype=dtype, num_kv_heads=kv_heads, group=group, block_size=block_size)

    for make in (make_prefill, make_decode):
        assert_matches_reference(make(requests, heads))


@DTYPES
@pytest.mark.parametrize("dim", [8, 16, 64, 72, 80, 96, 128, 256])
def test_head_dims_match_the_reference(dim: int, dtype: torch.dtype):
    heads = heads_of(dim, dtype=dtype, block_size=16)

    for make in (make_prefill, make_decode):
        assert_matches_reference(make(PAST_A_TILE, heads))


@DTYPES
@pytest.mark.parametrize("block_size", [1, 3, 16, 32, 48, 128])
def test_block_sizes_match_the_reference(block_size: int, dtype: torch.dtype):
    heads = heads_of(dtype=dtype, block_size=block_size)

    for make in (make_prefill, make_decode):
        assert_matches_reference(make(PAST_A_TILE, heads))


@DTYPES
@pytest.mark.parametrize("group", range(1, 17))
def test_every_grouping_of_heads_matches_the_reference(group: int, dtype: torch.dtype):
    heads = heads_of(dtype=dtype, group=group)

    assert_matches_reference(make_prefill(REQUESTS, heads))


@PHASES
def test_64_heads_on_one_key_head_match_the_reference(make):
    assert_matches_reference(make(REQUESTS, heads_of(num_kv_heads=1, group=64)))


@DTYPES
@pytest.mark.parametrize("block_size", [1, 16, 31, 32, 64])
def test_lengths_around_tile_edges_match_the_reference(block_size: int, dtype: torch.dtype):
    tile = block_size * max(1, 32 // block_size)
    edges = sorted({max(0, n * tile + d) for n in (0, 1, 2) for d in (-2, -1, 0, 1)})
    requests = [Request(context_len, 2, seed) for seed, context_len in enumerate(edges)]

    assert_matches_reference(make_prefill(requests, heads_of(dtype=dtype, block_size=block_size)))


@DTYPES
def test_packed_requests_with_prior_context_equal_each_alone(dtype: torch.dtype):
    heads = heads_of(dtype=dtype)

    packed = rows_of(make_prefill(REQUESTS, heads))

    for rows, request in zip(packed, REQUESTS, strict=True):
        assert all_same_bits([rows], rows_of(make_prefill([request], heads)))


@DTYPES
@pytest.mark.parametrize("block_size", [4, 16, 48])
def test_any_chunking_of_a_prompt_gives_the_bits_of_one_prefill(dtype, block_size: int):
    heads = heads_of(64, dtype=dtype, num_kv_heads=1, group=3, block_size=block_size)
    (whole,) = rows_of(make_prefill([Request(0, 150, 7)], heads))

    for edges in [(0, 1, 150), (0, 32, 64, 150), (0, 47, 49, 130, 150)]:
        chunks = [
            rows_of(make_prefill([Request(start, end - start, 7)], heads))[0]
            for start, end in itertools.pairwise(edges)
        ]
        assert same_bits(torch.cat(chunks), whole)


@DTYPES
@pytest.mark.parametrize("block_size", [3, 16])
def test_verification_rows_equal_single_decode_steps_and_prefill(dtype, block_size: int):
    heads = heads_of(24, dtype=dtype, num_kv_heads=2, group=3, block_size=block_size)

    verified = rows_of(make_decode(REQUESTS, heads))

    for rows, request in zip(verified, REQUESTS, strict=True):
        singles = [rows_of(make_decode([one], heads))[0] for one in single_steps(request)]
        assert same_bits(rows, torch.cat(singles))
        assert all_same_bits([rows], rows_of(make_prefill([request], heads)))


@DTYPES
@settings(max_examples=15, deadline=None)
@given(requests=requests_strategy, columns=st.integers(0, 9), spare=st.integers(0, 5))
def test_bucket_and_table_width_change_no_bit(dtype, requests, columns: int, spare: int):
    heads = heads_of(dtype=dtype)
    wide = Layout(
        num_rows=sum(request.query_len for request in requests) + spare,
        num_requests=len(requests) + spare,
        extra_columns=columns,
        padding=float("nan"),
    )
    for make in (make_prefill, make_decode):
        step = make(requests, heads, wide)
        output, *caches = step.run(KERNELS)

        assert all_same_bits(step.request_rows(output), rows_of(make(requests, heads)))
        assert all_same_bits(caches, list(step.expected_caches))
        assert same_bits(output[step.is_padding()], torch.zeros_like(output[step.is_padding()]))


@PHASES
@DTYPES
def test_rows_and_physical_blocks_can_be_permuted(make, dtype: torch.dtype):
    heads = heads_of(dtype=dtype)
    first = rows_of(make(REQUESTS, heads))

    for seed in range(1, 6):
        turn = seed % len(REQUESTS)
        turned = REQUESTS[turn:] + REQUESTS[:turn]
        rows = rows_of(make(turned, heads, Layout(block_seed=seed)))
        back = len(rows) - turn
        assert all_same_bits(rows[back:] + rows[:back], first)


@DTYPES
def test_number_of_threads_changes_no_bit(dtype: torch.dtype):
    step = make_prefill(PAST_A_TILE, heads_of(dtype=dtype))
    threads = torch.get_num_threads()

    try:
        torch.set_num_threads(1)
        alone = rows_of(step)
        torch.set_num_threads(5)
        together = rows_of(step)
    finally:
        torch.set_num_threads(threads)

    assert all_same_bits(alone, together)


@DTYPES
def test_block_ids_past_2_to_31_elements_are_addressed_in_64_bits(dtype: torch.dtype):
    """The caches are views of a huge untouched mapping: only the pages in use cost memory."""
    block_size, dim, num_blocks = 128, 256, 70_000
    heads = heads_of(dim, dtype=dtype, num_kv_heads=1, group=1, block_size=block_size)
    step = make_decode([Request(5, 1, 1)], heads)
    caches = [torch.empty(num_blocks, block_size, 1, dim, dtype=dtype) for _ in range(2)]
    block, last = int(step.blocks[0][0]), num_blocks - 1
    for cache, small in zip(caches, step.args[3:], strict=True):
        cache[last] = small[block]
    shift = (last - block) * block_size

    output = KERNELS.attend_decode(
        *step.args[:3],
        *caches,
        slot_mapping_R=step.named["slot_mapping_R"] + shift,
        block_table_SW=torch.full((1, 1), last, dtype=torch.int32),
        context_lens_S=step.named["context_lens_S"],
        query_lens_S=step.named["query_lens_S"],
        spec=AttentionSpec(scale=heads.scale),
    )

    assert caches[0].numel() > 2**31
    assert all_same_bits([output], rows_of(step))


def test_scores_near_the_ends_of_the_range_stay_numbers():
    """Squares of 1e19 are near the largest float: maxima start below, differences stay finite."""
    for sign in (1.0, -1.0):
        q = torch.full((1, 1, 8), 0.0)
        q[..., 0] = sign * 1e19
        caches = [torch.zeros(1, 2, 1, 8) for _ in range(2)]
        caches[0][0, :, 0, 0] = torch.tensor([1e19, 0.0])
        caches[1][0, :, 0] = torch.tensor([1.0, 0.0])[:, None]
        k, v = torch.zeros(1, 1, 8), torch.full((1, 1, 8), 2.0)
        k[..., 0] = -1e19

        output = KERNELS.attend_decode(
            q,
            k,
            v,
            *caches,
            slot_mapping_R=torch.tensor([1], dtype=torch.int32),
            block_table_SW=torch.tensor([[0]], dtype=torch.int32),
            context_lens_S=torch.tensor([1], dtype=torch.int32),
            query_lens_S=torch.tensor([1], dtype=torch.int32),
            spec=AttentionSpec(scale=1.0),
        )

        assert output.tolist() == [[1.0 if sign > 0 else 2.0] * 8]
