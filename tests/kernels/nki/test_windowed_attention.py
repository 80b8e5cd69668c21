"""Sliding windows and block offsets in the simulator: values, bits, bytes and poison."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from attention_cases import Heads, Layout, Request, Step, same_bits, single_steps
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
    with_request,
)
from nki_rules import copied_out, loaded
from torch import Tensor

from noria.kernels.nki.simulator import Trace, simulate
from noria.kernels.nki.simulator.cost import traffic
from noria.kernels.nki.target import NkiSimKernels

TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
CACHES = ("k_cache", "v_cache")
NAN = float("nan")
ODD = [Request(70, 3, 1), Request(0, 3, 2), Request(15, 1, 3), Request(33, 2, 4)]
LAYOUTS = [(None, False), (0.0, False), (0.5, True), (1.0, False)]


@dataclass(frozen=True)
class Phase:
    """How steps of a phase are laid out and run."""

    make: Callable[..., Step]
    run: Callable[..., Tensor]

    def rows(self, requests: list[Request], heads: Heads, layout: Layout | None = None) -> Any:
        step = self.make(requests, heads, layout)
        return step.request_rows(self.run(step))


DECODE = Phase(make_nki_decode, run_decode)
PREFILL = Phase(make_nki_prefill, run_prefill)
PHASES = pytest.mark.parametrize("phase", [DECODE, PREFILL], ids=["decode", "prefill"])


def heads_of(block_size: int, window: int | None, **sizes: Any) -> Heads:
    return replace(Heads(2, 2, 8, 8, block_size, torch.float32, window), **sizes)


def windows_of(block_size: int) -> list[int]:
    """One token, around a block edge, two blocks, past every context."""
    return [1, block_size - 1, block_size, block_size + 1, 2 * block_size, 1000]


def error_of(step: Step, output: Tensor) -> float:
    return largest_error(step, output, dense_attention(step))


@PHASES
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("block_size", [3, 16])
def test_windows_match_the_dense_oracle(phase: Phase, block_size: int, dtype: torch.dtype) -> None:
    """Whatever share of the freed blocks lies before the table, and whatever they hold."""
    for window in windows_of(block_size):
        for dropped, stale in LAYOUTS if dtype == torch.float32 else LAYOUTS[-1:]:
            layout = Layout(dropped=dropped, stale=stale, filler=NAN, padding=NAN, num_requests=5)
            step = phase.make(ODD, heads_of(block_size, window, dtype=dtype), layout)

            output = phase.run(step)

            assert error_of(step, output) <= TOLERANCES[dtype]
            padding = output[step.is_padding()]
            assert same_bits(padding, torch.zeros_like(padding))


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_any_window_matches_the_dense_oracle(data: st.DataObject) -> None:
    heads = Heads(
        num_kv_heads=data.draw(st.integers(1, 2)),
        group=data.draw(st.integers(1, 3)),
        k_dim=(dim := data.draw(st.sampled_from([1, 7, 24]))),
        v_dim=dim,
        block_size=data.draw(st.sampled_from([1, 2, 3, 16, 33, 48])),
        dtype=data.draw(st.sampled_from(list(TOLERANCES))),
        window=data.draw(st.integers(1, 200)),
        softcap=data.draw(st.sampled_from([None, 1.5])),
    )
    phase, most = data.draw(st.sampled_from([(DECODE, 8), (PREFILL, 150)]))
    request = st.builds(Request, st.integers(0, 300), st.integers(1, most), st.integers(0, 99))
    layout = Layout(
        dropped=data.draw(st.sampled_from([None, 0.0, 0.4, 1.0])),
        stale=data.draw(st.booleans()),
        filler=NAN,
        extra_columns=data.draw(st.integers(0, 3)),
    )
    requests = data.draw(st.lists(request, min_size=1, max_size=2))

    step = phase.make(requests, heads, layout)

    assert error_of(step, phase.run(step)) <= TOLERANCES[heads.dtype]


@PHASES
@pytest.mark.parametrize("block_size", [4, 16])
def test_freed_blocks_and_offsets_change_no_bit(phase: Phase, block_size: int) -> None:
    """Poisoned: freed blocks, the null block, unused slots, padded rows."""
    for window in (block_size + 1, 37):
        heads = heads_of(block_size, window)
        whole = phase.rows(ODD, heads)

        for filler, (dropped, stale) in itertools.product((NAN, 1e30), LAYOUTS[1:]):
            layout = Layout(
                num_requests=5,
                filler=filler,
                padding=filler,
                dropped=dropped,
                stale=stale,
                block_seed=1,
            )
            found = phase.rows(ODD, heads, layout)
            assert all(same_bits(*pair) for pair in zip(found, whole, strict=True))


@PHASES
def test_what_a_neighbour_left_in_stale_tiles_changes_no_bit(phase: Phase) -> None:
    step = phase.make(ODD, heads_of(4, 9), Layout(dropped=1.0))

    alone = step.request_rows(phase.run(step))
    dirty = step.request_rows(phase.run(with_request(step, 0, NAN)))

    assert all(same_bits(*pair) for pair in zip(alone[1:], dirty[1:], strict=True))


@PHASES
def test_a_window_that_holds_every_context_gives_the_bits_of_none(phase: Phase) -> None:
    plain = phase.rows(ODD, heads_of(4, None))

    for window, is_same in ((73, True), (1000, True), (72, False)):
        found = phase.rows(ODD, heads_of(4, window))
        assert all(same_bits(*pair) for pair in zip(found, plain, strict=True)) is is_same


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("window", [1, 15, 128, 300, 513])
def test_chunks_over_the_edge_of_a_window_give_the_bits_of_one_prefill(
    window: int, dtype: torch.dtype
) -> None:
    """Chunks start inside of windows, blocks and steps of keys, with the oldest blocks freed."""
    heads, layout = heads_of(16, window, num_kv_heads=1, dtype=dtype), Layout(dropped=1.0)
    (whole,) = PREFILL.rows([Request(0, 700, 7)], heads)

    edges = [0, 1, 130, 300, 517, 700]
    chunks = [Request(start, end - start, 7) for start, end in itertools.pairwise(edges)]
    found = [PREFILL.rows([chunk], heads, layout)[0] for chunk in chunks]

    assert same_bits(torch.cat(found), whole)


def test_decode_steps_and_drafts_are_the_rows_of_a_prefill() -> None:
    heads, layout = heads_of(4, 11), Layout(dropped=1.0, filler=NAN)
    request = Request(30, 3, 5)
    (rows,) = PREFILL.rows([request], heads)

    (drafts,) = DECODE.rows([request], heads, layout)
    singles = torch.cat([DECODE.rows([one], heads, layout)[0] for one in single_steps(request)])

    assert float((drafts - rows).abs().max()) <= 1e-5
    assert float((singles - rows).abs().max()) <= 1e-5


@pytest.mark.parametrize("window", [1, 127, 128, 129, 257])
@pytest.mark.parametrize("query_len", [1, 3])
def test_windows_of_several_folds(window: int, query_len: int) -> None:
    """Blocks of one token: 128 tokens to a fold, which begins where the window does."""
    heads = heads_of(1, window)
    requests = [Request(length, query_len, length) for length in (0, 126, 130, 384, 511)]
    for dropped in (0.0, 0.7, 1.0):
        step = make_nki_decode(requests, heads, Layout(dropped=dropped, filler=NAN))

        assert error_of(step, run_decode(step)) <= 1e-5


@PHASES
@pytest.mark.parametrize("block_size", [1, 3, 48])
def test_windows_far_from_the_start(phase: Phase, block_size: int) -> None:
    """Sizes that are no powers of two are divided by on chip."""
    heads = Heads(1, 1, 2, 2, block_size, torch.float32, window=37)
    step = phase.make([Request(70_001, 3), Request(49_999, 1)], heads, Layout(dropped=1.0))

    assert error_of(step, phase.run(step)) <= 1e-5


@pytest.mark.parametrize("size", [1, 3, 48, 100, 127, 384, 512])
def test_numbers_up_to_2_to_the_22_are_divided_exactly(size: int) -> None:
    def divide(values: Any) -> Any:
        return copied_out(KERNELS.windows.whole_multiples(loaded(values), size))

    numbers = np.concatenate([np.arange(2**15), 2**22 - np.arange(2**15)]).reshape(128, -1)

    found = simulate(divide)(numbers.astype(np.float32))

    np.testing.assert_array_equal(found, numbers // size)


@PHASES
def test_a_windowed_layer_of_full_size_fits_on_chip(phase: Phase) -> None:
    """32 query heads over 8 key/value heads of 128, with a soft cap."""
    heads = Heads(8, 4, 128, 128, 16, torch.bfloat16, window=40, softcap=30.0)
    step = phase.make([Request(60, 8)], heads, Layout(dropped=1.0))

    assert error_of(step, phase.run(step)) <= TOLERANCES[heads.dtype]


@pytest.mark.parametrize(("window", "query_len"), [(1, 1), (16, 1), (40, 3), (1000, 1)])
def test_decode_moves_the_bytes_of_the_windows_blocks_alone(window: int, query_len: int) -> None:
    """Stale entries before the window and behind the last token move nothing either."""
    heads = heads_of(16, window)
    requests = [Request(length, query_len) for length in (0, 15, 16, 200, 999)]
    for dropped in (0.0, 1.0):
        layout = Layout(dropped=dropped, stale=True, num_requests=6, extra_columns=200)
        step = make_nki_decode(requests, heads, layout)
        table = step.named["block_table_SW"]
        stale = step.with_named(block_table_SW=table.masked_fill(table < 0, 1))
        for each in (step, stale):
            trace = Trace()
            run_decode(each, trace=trace)

            firsts = [heads.first_seen(request.context_len) // 16 for request in requests]
            lasts = [(request.num_tokens - 1) // 16 for request in requests]
            live = sum(last + 1 - first for first, last in zip(firsts, lasts, strict=True))
            block_bytes = 16 * heads.num_kv_heads * (heads.k_dim + heads.v_dim) * 4
            assert traffic(trace, CACHES).moved_bytes == live * block_bytes


@pytest.mark.parametrize("window", [1, 100, 512, 10_000])
def test_the_loop_over_keys_is_bounded_by_the_window(window: int) -> None:
    """Each tile of rows reads the tokens that it sees, in the steps of 512 that hold them."""
    heads = heads_of(16, window, num_kv_heads=1)
    requests = [Request(1400, 200, 1), Request(0, 20, 2)]
    for dropped in (0.0, 1.0):
        layout = Layout(num_rows=512, num_requests=3, dropped=dropped, extra_columns=100)
        step = make_nki_prefill(requests, heads, layout)
        trace = Trace()

        run_prefill(step, trace=trace)

        tiles = [(1400, 1528), (1528, 1600), (0, 20)]
        seen = [(heads.first_seen(start), end) for start, end in tiles]
        token_bytes = (heads.k_dim + heads.v_dim) * 4
        moved = traffic(trace, CACHES).moved_bytes
        assert moved == sum(end - first for first, end in seen) * token_bytes
        gathers = sum(any(op.tensor == "k_cache" for op in item.operands) for item in trace)
        assert gathers == sum(4 * (-(-end // 512) - first // 512) for first, end in seen)


MISTAKES = {
    "first-token": ("windows", "float(1 - window)", "float(2 - window)"),
    "one-less": ("windows", "bounds_from([seen], window)", "bounds_from([seen], window - 1)"),
    "one-more": ("windows", "bounds_from([seen], window)", "bounds_from([seen], window + 1)"),
    "edge": ("masks", "op0=nl.greater_equal", "op0=nl.greater"),
    "rounding": ("windows", "(size - 1) / 2", "0.0"),
}
OFFSET_IGNORED = [
    (DECODE, ("windows", "data2=offsets, op=nl.subtract", "data2=offsets, op=nl.maximum")),
    (PREFILL, ("prefill_attention", "op1=nl.subtract,\n", "op1=nl.maximum,\n")),
]


def check_mistake(phase: Phase, patch: tuple[str, str, str]) -> None:
    """Windows that are no multiple of a block, and begin late in blocks and in steps of 512."""
    requests = [Request(1020, 3, 1), Request(90, 2, 2)]
    step = phase.make(requests, heads_of(16, 30), Layout(dropped=1.0, filler=NAN))
    assert error_of(step, phase.run(step)) <= 1e-5

    assert error_of(step, phase.run(step, load_kernels(patch))) > 1e-2


@PHASES
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_wrong_window_is_found(phase: Phase, mistake: str) -> None:
    check_mistake(phase, MISTAKES[mistake])


@pytest.mark.parametrize(("phase", "patch"), OFFSET_IGNORED, ids=["decode", "prefill"])
def test_an_offset_that_is_ignored_is_found(phase: Phase, patch: tuple[str, str, str]) -> None:
    check_mistake(phase, patch)


@PHASES
def test_values_before_the_window_that_are_not_selected_are_found(phase: Phase) -> None:
    """They are of the window's first block, and may be anything."""
    step = phase.make([Request(40, 1, 1)], heads_of(16, 5), Layout(dropped=1.0))
    for cache in step.expected_caches:
        cache[step.blocks[0][2], :4] = NAN
    mutant = load_kernels(
        ("windows", "_less(bounds[1], base), _less(first, base)", "_less(bounds[1], base)")
    )

    assert error_of(step, phase.run(step)) <= 1e-5
    assert error_of(step, phase.run(step, mutant)) == float("inf")


@PHASES
def test_the_target_refuses_tables_that_begin_inside_of_a_window(phase: Phase) -> None:
    step = phase.make([Request(33, 1, 4)], heads_of(4, 9), Layout(dropped=1.0, num_requests=2))
    kernels, offset = NkiSimKernels(), step.named["block_offset"]
    assert offset.tolist() == [6, 0]

    with pytest.raises(ValueError, match="a row sees 3 tokens that lie before its block table"):
        step.with_named(block_offset=offset + 1).run(kernels)
    with pytest.raises(ValueError, match=r"block_offset has shape \(1,\), expected \(2,\)"):
        step.with_named(block_offset=offset[:1]).run(kernels)
    with pytest.raises(ValueError, match="a row sees 24 tokens that lie before its block table"):
        replace(step, heads=heads_of(4, None)).run(kernels)
