"""Prefill attention in the simulator: against fp64, and its promises to the last bit."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from attention_cases import Heads, Layout, Request, Step, make_prefill, same_bits
from dense_attention import dense_attention
from hypothesis import given, settings
from hypothesis import strategies as st
from nki_kernels import (
    KERNELS,
    largest_error,
    load_kernels,
    make_nki_decode,
    make_nki_prefill,
    run_decode,
    run_prefill,
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
CACHES = ("k_cache", "v_cache")
PACKED = [Request(37, 130, 1), Request(0, 20, 2), Request(600, 3, 3), Request(128, 128, 4)]


def small_heads(**sizes: object) -> Heads:
    return replace(Heads(2, 2, 16, 16, 16, torch.float32), **sizes)


def check(step: Step) -> torch.Tensor:
    output = run_prefill(step)

    assert largest_error(step, output, dense_attention(step)) <= TOLERANCES[step.heads.dtype]
    padding = output[step.is_padding()]
    assert same_bits(padding, torch.zeros_like(padding))
    return output


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_random_steps(data: st.DataObject) -> None:
    heads = Heads(
        num_kv_heads=data.draw(st.integers(1, 2)),
        group=data.draw(st.sampled_from([1, 2, 3])),
        k_dim=(dim := data.draw(st.sampled_from([1, 7, 16, 80]))),
        v_dim=dim,
        block_size=data.draw(st.sampled_from([1, 2, 3, 5, 16, 24, 48])),
        dtype=data.draw(st.sampled_from(list(TOLERANCES))),
    )
    request = st.builds(Request, st.integers(0, 300), st.integers(1, 150), st.integers(0, 99))
    requests = data.draw(st.lists(request, min_size=1, max_size=2))
    layout = Layout(
        num_rows=128 * data.draw(st.integers(4, 5)),
        num_requests=len(requests) + data.draw(st.integers(0, 2)),
        extra_columns=data.draw(st.integers(0, 5)),
        block_seed=data.draw(st.integers(0, 9)),
        filler=data.draw(st.sampled_from([0.0, float("nan")])),
    )

    check(make_nki_prefill(requests, heads, layout))


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128])
def test_head_dims(head_dim: int, dtype: torch.dtype) -> None:
    heads = small_heads(k_dim=head_dim, v_dim=head_dim, dtype=dtype)

    check(make_nki_prefill([Request(30, 40, 1), Request(0, 129, 2)], heads))


@pytest.mark.parametrize("group", [1, 4, 7, 16])
def test_gqa_ratios(group: int) -> None:
    check(make_nki_prefill([Request(19, 8)], small_heads(group=group)))


@pytest.mark.parametrize("block_size", [1, 2, 8, 16, 32, 48, 64, 100, 128])
def test_block_sizes(block_size: int) -> None:
    requests = [Request(2 * block_size - 1, 30, 1), Request(block_size, 1, 2)]

    check(make_nki_prefill(requests, small_heads(block_size=block_size)))


@pytest.mark.parametrize("context_len", [0, 127, 128, 384, 511, 512, 513, 1100])
def test_prior_context_over_several_steps_of_keys(context_len: int) -> None:
    check(make_nki_prefill([Request(context_len, 129)], small_heads(num_kv_heads=1)))


def test_many_key_value_heads_take_fewer_tiles_per_step() -> None:
    heads = small_heads(num_kv_heads=32, group=1, k_dim=128, v_dim=128)

    check(make_nki_prefill([Request(290, 9)], heads))


def test_c04_a_step_without_requests_is_exact_zeros() -> None:
    layout = Layout(num_rows=256, extra_columns=8, padding=1e30)
    empty = make_nki_prefill([Request(0, 0)], small_heads(), layout)
    empty = empty.with_named(tile_request=torch.full((2,), -1, dtype=torch.int32))

    output = run_prefill(empty)

    assert same_bits(output, torch.zeros_like(output))


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_agrees_with_the_reference_kernels(dtype: torch.dtype) -> None:
    heads = small_heads(num_kv_heads=1, dtype=dtype)
    step = make_nki_prefill(PACKED, heads, Layout(num_rows=768, num_requests=5))

    by_row = step.named["tile_request"].repeat_interleave(128)
    expected = step.with_named(tile_request=by_row).run(ReferenceKernels())[0]

    assert float((run_prefill(step) - expected).abs().max()) <= TOLERANCES[dtype]


def test_block_0_in_place_of_minus_1_changes_no_bit() -> None:
    step = make_nki_prefill(PACKED, small_heads(), Layout(num_requests=6, extra_columns=40))
    table = step.named["block_table_PW"]
    saturated = step.with_named(block_table_PW=table.clamp(min=0))

    assert same_bits(run_prefill(step), run_prefill(saturated))


@pytest.mark.parametrize("poison", [float("nan"), 1e30], ids=["nan", "1e30"])
def test_c03_what_lies_in_unused_slots_changes_no_bit(poison: float) -> None:
    """Free blocks, the null block and tails; padded rows of q too."""
    layout = Layout(num_rows=896, num_requests=5)
    clean = make_nki_prefill(PACKED, small_heads(), layout)
    dirty = make_nki_prefill(PACKED, small_heads(), replace(layout, padding=poison))

    assert same_bits(run_prefill(clean), run_prefill(with_unused(dirty, poison)))


@pytest.mark.parametrize("poison", [float("nan"), 1e30], ids=["nan", "1e30"])
def test_what_a_neighbour_left_in_stale_tiles_changes_no_bit(poison: float) -> None:
    step = make_nki_prefill(PACKED, small_heads())

    alone = step.request_rows(run_prefill(step))
    dirty = step.request_rows(run_prefill(with_request(step, 0, poison)))

    assert all(same_bits(a, d) for a, d in zip(alone[1:], dirty[1:], strict=True))


def test_c07_old_entries_behind_the_live_ones_change_no_bit() -> None:
    step = with_unused(
        make_nki_prefill(PACKED, small_heads(), Layout(extra_columns=9)), float("nan")
    )
    table = step.named["block_table_PW"]
    stale = step.with_named(block_table_PW=table.masked_fill(table < 0, int(step.blocks[0][0])))

    assert same_bits(run_prefill(step), run_prefill(stale))


def test_c09_the_bucket_changes_no_bit() -> None:
    """More rows, more requests, a wider table."""
    step = make_nki_prefill(PACKED[:2], small_heads())
    wide = make_nki_prefill(
        PACKED[:2], small_heads(), Layout(num_rows=1024, num_requests=4, extra_columns=50)
    )

    assert same_bits(run_prefill(step), run_prefill(wide)[: step.args[0].shape[0]])


def test_c10_block_ids_and_neighbours_change_no_bit() -> None:
    """Any placement of blocks, alone or in a batch."""
    batch = make_nki_prefill(PACKED, small_heads())
    moved = make_nki_prefill(PACKED, small_heads(), Layout(block_seed=7))
    together = batch.request_rows(run_prefill(batch))

    assert same_bits(run_prefill(batch), run_prefill(moved))
    for request, rows in zip(PACKED, together, strict=True):
        alone = make_nki_prefill([request], small_heads())
        assert same_bits(rows, alone.request_rows(run_prefill(alone))[0])


@pytest.mark.parametrize("cut", [1, 15, 16, 17, 128, 150])
def test_a_prompt_in_two_chunks_is_the_prompt_in_one(cut: int) -> None:
    """Chunk edges at block borders and beside them; one cached chunk is also a prefix hit."""
    whole = make_nki_prefill([Request(0, 200)], small_heads())
    chunks = [Request(0, cut), Request(cut, 200 - cut)]
    outputs = [run_prefill(make_nki_prefill([chunk], small_heads())) for chunk in chunks]
    rows = [output[: chunk.query_len] for output, chunk in zip(outputs, chunks, strict=True)]

    assert same_bits(torch.cat(rows), run_prefill(whole)[:200])


def test_prefill_then_decode_is_one_prefill() -> None:
    whole = make_nki_prefill([Request(0, 40, 3)], small_heads())
    last = make_nki_decode([Request(39, 1, 3)], small_heads())

    difference = (run_decode(last)[0] - run_prefill(whole)[39]).abs().max()

    assert float(difference) <= 1e-5


def test_an_fp8_cache_is_read_as_its_values() -> None:
    heads = small_heads(dtype=torch.bfloat16)
    step = make_nki_prefill(PACKED[:2], heads)
    exact, fp8 = with_fp8_cache(step)

    assert same_bits(run_prefill(exact), run_prefill(fp8))


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_a_layer_of_full_size_fits_on_chip(dtype: torch.dtype) -> None:
    """32 query heads over 8 key/value heads of 128."""
    heads = Heads(8, 4, 128, 128, 16, dtype)

    check(make_nki_prefill([Request(20, 9)], heads))


def test_it_reads_what_the_write_kernel_wrote() -> None:
    step = make_nki_prefill(PACKED[:2], small_heads(), Layout(num_rows=512))
    caches = run_write(step.args[3:], step.args[1:3], step.named["slot_mapping_T"])

    check(replace(step, expected_caches=caches))


def test_the_loop_over_keys_is_bounded_by_what_is_live() -> None:
    """Bytes: each tile of rows reads the tokens that it sees, whatever the bucket."""
    heads = small_heads(num_kv_heads=1)
    step = make_nki_prefill(PACKED, heads, Layout(num_rows=1024, num_requests=6, extra_columns=100))
    trace = Trace()

    run_prefill(step, trace=trace)

    seen = [37 + 128, 37 + 130, 20, 603, 256]
    token_bytes = (heads.k_dim + heads.v_dim) * 4
    assert traffic(trace, CACHES).moved_bytes == sum(seen) * token_bytes
    gathers = sum(any(op.tensor == "k_cache" for op in item.operands) for item in trace)
    assert gathers == sum(4 * -(-count // 512) for count in seen)


@pytest.mark.parametrize(
    ("patch", "problem"),
    [
        (("token_gather", "    nisa.memset(dst=values, value=0.0)\n", ""), "uninitialised"),
        (("token_gather", "nisa.oob_mode.skip", "nisa.oob_mode.error"), "out of bounds"),
    ],
    ids=["no-memset-of-values", "error-in-place-of-skip"],
)
def test_a_gather_that_cannot_skip_is_found(patch: tuple[str, str, str], problem: str) -> None:
    with pytest.raises(SimulationError, match=problem):
        run_prefill(make_nki_prefill(PACKED[:1], small_heads()), load_kernels(patch))


@pytest.mark.parametrize(
    "patch",
    [
        ("online_softmax", "on_false=MASKED,", "on_false=MASKED, reverse_pred=True,"),
        ("tile_rows", "operand1=1.0", "operand1=0.0"),
        ("prefill_attention", "data=left, op0=nl.subtract", "data=left, op0=nl.add"),
        ("token_gather", "[[span, tiles], [1, span]]", "[[1, tiles], [tiles, span]]"),
        ("token_gather", "data2=offsets, op=nl.add", "data2=offsets, op=nl.maximum"),
    ],
    ids=["mask-reversed", "not-itself", "base-not-moved", "column-order", "slot"],
)
def test_a_wrong_selection_is_found(patch: tuple[str, str, str]) -> None:
    step = with_unused(make_nki_prefill([Request(600, 20)], small_heads()), float("nan"))
    assert largest_error(step, run_prefill(step), dense_attention(step)) <= 1e-5

    output = run_prefill(step, load_kernels(patch))

    assert largest_error(step, output, dense_attention(step)) > 1e-2


def test_values_that_are_not_selected_are_found() -> None:
    """Stale rows of a neighbour that holds NaN."""
    step = with_request(make_nki_prefill(PACKED[:2], small_heads()), 0, float("nan"))
    mutant = load_kernels(("token_gather", "target[1]), selected", "target[1]), values"))

    clean, found = (step.request_rows(run_prefill(step, k))[1] for k in (KERNELS, mutant))

    assert not clean.isnan().any()
    assert found.isnan().all()


def test_a_simulator_that_wraps_minus_one_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that is -1 reaches a result, but all of it would be moved."""
    monkeypatch.setattr(isa_dma, "_row_index", wrap_negative_indices)
    trace = Trace()

    run_prefill(make_nki_prefill([Request(20, 1)], small_heads()), trace=trace)

    assert traffic(trace, CACHES).skipped_bytes == 0


def test_unaligned_chunks_are_refused() -> None:
    step = make_prefill([Request(0, 100)], small_heads())

    with pytest.raises(AssertionError):
        run_prefill(step)
