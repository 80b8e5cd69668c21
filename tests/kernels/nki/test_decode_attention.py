"""Decode attention in the simulator: against fp64, and its promises to the last bit."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from attention_cases import Heads, Layout, Request, Step, same_bits
from dense_attention import dense_attention
from hypothesis import given, settings
from hypothesis import strategies as st
from nki_kernels import (
    largest_error,
    load_kernels,
    make_nki_decode,
    run_decode,
    run_write,
    with_fp8_cache,
    with_request,
    with_unused,
    wrap_negative_indices,
)

from noria.kernels.nki.simulator import SimulationError, Trace, isa_dma
from noria.kernels.nki.simulator.cost import traffic
from noria.kernels.reference import ReferenceKernels

# bf16 keeps 8 bits: probabilities are rounded before they meet the values, results when stored.
TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
PATHWAYS = ["decode_attention", "decode_attention_transposed"]
CACHES = ("k_cache", "v_cache")
BOTH = [Request(37, 3, 1), Request(0, 1, 2), Request(70, 2, 3), Request(15, 1, 4)]


def small_heads(**sizes: object) -> Heads:
    return replace(Heads(2, 2, 16, 16, 16, torch.float32), **sizes)


def wide_heads() -> Heads:
    """What both pathways take."""
    return Heads(2, 2, 128, 128, 16, torch.bfloat16)


def check(step: Step, pathway: str = PATHWAYS[0]) -> torch.Tensor:
    output = run_decode(step, pathway=pathway)

    assert largest_error(step, output, dense_attention(step)) <= TOLERANCES[step.heads.dtype]
    padding = output[step.is_padding()]
    assert same_bits(padding, torch.zeros_like(padding))
    return output


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_random_steps(data: st.DataObject) -> None:
    heads = Heads(
        num_kv_heads=data.draw(st.integers(1, 3)),
        group=data.draw(st.sampled_from([1, 2, 3, 5, 8, 16])),
        k_dim=(dim := data.draw(st.sampled_from([1, 7, 16, 64, 80]))),
        v_dim=dim,
        block_size=data.draw(st.sampled_from([1, 2, 3, 5, 16, 24])),
        dtype=data.draw(st.sampled_from(list(TOLERANCES))),
    )
    request = st.builds(Request, st.integers(0, 60), st.integers(1, 8), st.integers(0, 99))
    requests = data.draw(st.lists(request, min_size=1, max_size=3))
    layout = Layout(
        num_requests=len(requests) + data.draw(st.integers(0, 2)),
        query_len=data.draw(st.sampled_from([None, 8])),
        block_seed=data.draw(st.integers(0, 9)),
        filler=data.draw(st.sampled_from([0.0, float("nan")])),
    )

    check(make_nki_decode(requests, heads, layout))


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128])
def test_head_dims(head_dim: int, dtype: torch.dtype) -> None:
    heads = small_heads(k_dim=head_dim, v_dim=head_dim, dtype=dtype)

    check(make_nki_decode(BOTH, heads, Layout(num_requests=5)))


@pytest.mark.parametrize("group", [1, 2, 3, 4, 7, 8, 16])
def test_gqa_ratios_with_the_most_query_tokens(group: int) -> None:
    check(make_nki_decode([Request(19, 8), Request(3, 5)], small_heads(group=group)))


@pytest.mark.parametrize("query_len", range(1, 9))
def test_query_lens(query_len: int) -> None:
    requests = [Request(33, query_len, 1), Request(0, 1, 2)]

    check(make_nki_decode(requests, small_heads(), Layout(query_len=query_len)))


@pytest.mark.parametrize("block_size", [1, 2, 8, 16, 32, 48, 64, 128])
def test_block_sizes(block_size: int) -> None:
    requests = [Request(2 * block_size - 1, 3, 1), Request(block_size, 1, 2)]

    check(make_nki_decode(requests, small_heads(block_size=block_size)))


@pytest.mark.parametrize("pathway", PATHWAYS)
@pytest.mark.parametrize("context_len", [127, 128, 129, 255, 256, 300])
def test_several_folds(context_len: int, pathway: str) -> None:
    """Blocks of one token: 128 tokens to a fold."""
    heads = replace(wide_heads(), block_size=1)

    check(make_nki_decode([Request(context_len, 2), Request(5, 1)], heads), pathway)


def test_d01_every_length_around_block_borders() -> None:
    """Lengths 1 to 3 * block size + 2, one request each."""
    requests = [Request(length, 1, length) for length in range(15)]

    check(make_nki_decode(requests, small_heads(block_size=4)))


@pytest.mark.parametrize("pathway", PATHWAYS)
def test_c04_requests_without_tokens_are_exact_zeros(pathway: str) -> None:
    step = make_nki_decode(BOTH[:2], wide_heads(), Layout(num_requests=8, filler=float("nan")))
    empty = make_nki_decode([Request(0, 0)], wide_heads(), Layout(num_requests=4, query_len=2))

    check(step, pathway)
    output = run_decode(empty, pathway=pathway)
    assert same_bits(output, torch.zeros_like(output))


def test_rows_beyond_a_requests_drafts_are_exact_zeros() -> None:
    step = make_nki_decode([Request(9, 2)], small_heads(), Layout(query_len=8, padding=1e30))

    check(step)


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_agrees_with_the_reference_kernels(dtype: torch.dtype) -> None:
    step = make_nki_decode(BOTH, small_heads(dtype=dtype), Layout(num_requests=6))

    expected = step.run(ReferenceKernels())[0]

    difference = (run_decode(step) - expected).abs().max()
    assert float(difference) <= TOLERANCES[dtype]


@pytest.mark.parametrize("valid", [1, 15, 16, 17, 31])
def test_c11_transposed_pathway_is_bit_identical(valid: int) -> None:
    """Also with a number of valid entries that is no multiple of 16."""
    step = make_nki_decode([Request(16 * valid - 3, 2, 1), Request(0, 1, 2)], wide_heads())

    first, second = (check(step, pathway) for pathway in PATHWAYS)

    assert same_bits(first, second)


@pytest.mark.parametrize("pathway", PATHWAYS)
def test_block_0_in_place_of_minus_1_changes_no_bit(pathway: str) -> None:
    step = make_nki_decode(BOTH, wide_heads(), Layout(num_requests=5), folds=2)
    table = step.named["block_table_SW"]
    saturated = step.with_named(block_table_SW=table.clamp(min=0))

    assert same_bits(run_decode(step, pathway=pathway), run_decode(saturated, pathway=pathway))


@pytest.mark.parametrize("pathway", PATHWAYS)
@pytest.mark.parametrize("poison", [float("nan"), 1e30], ids=["nan", "1e30"])
def test_c03_what_lies_in_unused_slots_changes_no_bit(poison: float, pathway: str) -> None:
    """Free blocks, the null block and tails; padded rows of q too."""
    clean = make_nki_decode(BOTH, wide_heads(), Layout(num_requests=5))
    dirty = make_nki_decode(BOTH, wide_heads(), Layout(num_requests=5, padding=poison))

    assert same_bits(
        run_decode(clean, pathway=pathway), run_decode(with_unused(dirty, poison), pathway=pathway)
    )


@pytest.mark.parametrize("pathway", PATHWAYS)
@pytest.mark.parametrize("poison", [float("nan"), 1e30], ids=["nan", "1e30"])
def test_what_a_neighbour_left_in_stale_tiles_changes_no_bit(poison: float, pathway: str) -> None:
    step = make_nki_decode(BOTH, wide_heads())

    alone = step.request_rows(run_decode(step, pathway=pathway))
    dirty = step.request_rows(run_decode(with_request(step, 0, poison), pathway=pathway))

    assert all(same_bits(a, d) for a, d in zip(alone[1:], dirty[1:], strict=True))


def test_c07_old_entries_behind_the_live_ones_change_no_bit() -> None:
    step = with_unused(make_nki_decode(BOTH, small_heads()), float("nan"))
    table = step.named["block_table_SW"]
    stale = step.with_named(block_table_SW=table.masked_fill(table < 0, int(step.blocks[0][0])))

    assert same_bits(run_decode(step), run_decode(stale))


@pytest.mark.parametrize("folds", [2, 3])
def test_a_wider_table_changes_no_bit(folds: int) -> None:
    tight = make_nki_decode(BOTH, small_heads())
    wide = make_nki_decode(BOTH, small_heads(), folds=folds)

    assert same_bits(run_decode(tight), run_decode(wide))


def test_c10_block_ids_and_neighbours_change_no_bit() -> None:
    """Any placement of blocks, alone or in a batch."""
    batch = make_nki_decode(BOTH, small_heads(), Layout(query_len=3))
    moved = make_nki_decode(BOTH, small_heads(), Layout(query_len=3, block_seed=7))
    together = batch.request_rows(run_decode(batch))

    assert same_bits(run_decode(batch), run_decode(moved))
    for request, rows in zip(BOTH, together, strict=True):
        alone = make_nki_decode([request], small_heads(), Layout(query_len=3))
        assert same_bits(rows, alone.request_rows(run_decode(alone))[0])


def test_c14_a_result_outlives_later_runs() -> None:
    first, second = (make_nki_decode([request], small_heads()) for request in BOTH[:2])
    output = run_decode(first)
    kept = output.clone()

    run_decode(second)

    assert same_bits(output, kept)


def test_d03_slots_written_are_the_slots_read() -> None:
    """Cross-phase: write token by token, poison the rest, read after every step."""
    request, heads = Request(0, 11, 5), small_heads(block_size=4)
    whole = with_unused(make_nki_decode([request], heads), float("nan"))
    caches = tuple(torch.full_like(cache, float("nan")) for cache in whole.expected_caches)
    slots, expected = whole.named["slot_mapping_R"], dense_attention(whole)[0]
    for position in range(request.query_len):
        one = slice(position, position + 1)
        caches = run_write(caches, [new[one] for new in whole.args[1:3]], slots[one])
        step = replace(
            make_nki_decode([Request(position, 1, 5)], heads), expected_caches=caches
        ).with_named(block_table_SW=whole.named["block_table_SW"])

        assert largest_error(step, run_decode(step), [expected[one]]) <= 1e-5


def test_an_fp8_cache_is_read_as_its_values() -> None:
    exact, fp8 = with_fp8_cache(make_nki_decode(BOTH, small_heads(dtype=torch.bfloat16)))

    assert same_bits(run_decode(exact), run_decode(fp8))


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("block_size", [16, 128])
def test_a_layer_of_full_size_fits_on_chip(block_size: int, dtype: torch.dtype) -> None:
    """32 query heads over 8 key/value heads of 128, the most query tokens."""
    heads = Heads(8, 4, 128, 128, block_size, dtype)

    check(make_nki_decode([Request(20, 8)], heads))


@pytest.mark.parametrize("pathway", PATHWAYS)
def test_generations(pathway: str) -> None:
    step = make_nki_decode(BOTH[:1], wide_heads())

    assert same_bits(run_decode(step, pathway=pathway), run_decode(step, target="trn3"))
    with pytest.raises(SimulationError, match="needs trn2"):
        run_decode(step, pathway=pathway, target="trn1")


@pytest.mark.parametrize("block_size", [1, 16, 64, 128])
@pytest.mark.parametrize("num_kv_heads", [1, 3])
def test_bytes_moved_are_those_of_live_blocks(block_size: int, num_kv_heads: int) -> None:
    """Live shares of the table from 0 to 100 %; the last request has no tokens at all."""
    heads = small_heads(num_kv_heads=num_kv_heads, k_dim=4, v_dim=4, block_size=block_size)
    shares = [0.01, 0.25, 0.5, 0.75, 1.0]
    requests = [Request(max(int(128 * share) * block_size - 1, 0), 1) for share in shares]
    step = make_nki_decode(requests, heads, Layout(num_requests=len(shares) + 1))
    trace = Trace()

    run_decode(step, trace=trace)

    live_blocks = sum(len(blocks) for blocks in step.blocks)
    needed = live_blocks * block_size * num_kv_heads * (heads.k_dim + heads.v_dim) * 4
    moved = traffic(trace, CACHES)
    assert needed <= moved.moved_bytes <= 1.05 * needed
    whole = len(shares) + 1
    assert moved.moved_bytes + moved.skipped_bytes == whole * 128 * needed // live_blocks


def test_the_transposed_pathway_moves_the_whole_table() -> None:
    step = make_nki_decode([Request(20, 1)], wide_heads())
    trace = Trace()

    run_decode(step, pathway=PATHWAYS[1], trace=trace)

    table_bytes = 128 * 16 * 2 * (128 + 128) * 2
    assert traffic(trace, CACHES).moved_bytes == table_bytes


@pytest.mark.parametrize(
    ("patch", "problem"),
    [
        (("block_gather", "    nisa.memset(dst=values, value=0.0)\n", ""), "uninitialised"),
        (("block_gather", "nisa.oob_mode.skip", "nisa.oob_mode.error"), "out of bounds"),
    ],
    ids=["no-memset-of-values", "error-in-place-of-skip"],
)
def test_a_gather_that_cannot_skip_is_found(patch: tuple[str, str, str], problem: str) -> None:
    with pytest.raises(SimulationError, match=problem):
        run_decode(make_nki_decode(BOTH, small_heads()), load_kernels(patch))


@pytest.mark.parametrize(
    "patch",
    [
        ("decode_attention", "values = select_live(values, is_live, q.dtype)", "pass"),
        ("online_softmax", "on_false=MASKED,", "on_false=MASKED, reverse_pred=True,"),
        (
            "masks",
            "pattern=[[1, num_offsets], [block_size, FOLD_BLOCKS]]",
            "pattern=[[FOLD_BLOCKS, num_offsets], [1, FOLD_BLOCKS]]",
        ),
        ("decode_rows", "operand1=1.0", "operand1=0.0"),
        ("masks", "channel_multiplier=block_size", "channel_multiplier=1"),
    ],
    ids=["no-tail-select", "mask-reversed", "column-order", "not-itself", "row-order"],
)
def test_a_wrong_selection_is_found(patch: tuple[str, str, str]) -> None:
    step = with_unused(make_nki_decode(BOTH, small_heads()), float("nan"))
    assert largest_error(step, run_decode(step), dense_attention(step)) <= 1e-5

    output = run_decode(step, load_kernels(patch))

    assert largest_error(step, output, dense_attention(step)) > 1e-2


def test_a_simulator_that_wraps_minus_one_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that is -1 reaches a result, but all of it would be moved."""
    monkeypatch.setattr(isa_dma, "_row_index", wrap_negative_indices)
    trace = Trace()

    run_decode(make_nki_decode([Request(20, 1)], small_heads()), trace=trace)

    assert traffic(trace, CACHES).skipped_bytes == 0
