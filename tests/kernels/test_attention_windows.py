"""Sliding windows and block offsets, on the reference and in C++: values, bits and poison."""

import itertools
from dataclasses import dataclass, replace

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
from torch import Tensor

from noria.kernels.contract import AttentionSpec
from noria.kernels.cpu import CpuKernels
from noria.kernels.kernel_set import KernelSet
from noria.kernels.reference import ReferenceKernels

CPU = CpuKernels()
TARGETS = pytest.mark.parametrize("kernels", [ReferenceKernels(), CPU], ids=["reference", "cpu"])
PHASES = pytest.mark.parametrize("make", [make_prefill, make_decode])
TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
DTYPES = pytest.mark.parametrize("dtype", list(TOLERANCES), ids=["f32", "bf16"])
BLOCK_SIZES = pytest.mark.parametrize("block_size", [3, 4, 16, 32])
NAN = float("nan")
ODD = [Request(70, 4, 1), Request(0, 3, 2), Request(15, 1, 3), Request(33, 2, 4)]


def windows_of(block_size: int) -> list[int | None]:
    """One token, around a block edge, two blocks, past every context, and none."""
    return [1, block_size - 1, block_size, block_size + 1, 2 * block_size, 1000, None]


def heads_of(block_size: int, window: int | None, dtype: torch.dtype = torch.float32) -> Heads:
    return Heads(dtype=dtype, block_size=block_size, window=window, group=3)


def rows_of(step: Step, kernels: KernelSet) -> list[Tensor]:
    return step.request_rows(step.run(kernels)[0])


def all_same_bits(first: list[Tensor], second: list[Tensor]) -> bool:
    return all(same_bits(*pair) for pair in zip(first, second, strict=True))


def error_of(step: Step, output: Tensor) -> float:
    """The largest difference from the dense oracle; NaN counts as infinite."""
    pairs = zip(step.request_rows(output), dense_attention(step), strict=True)
    errors = [rows.double() - torch.from_numpy(expected) for rows, expected in pairs]
    return max(float(error.abs().nan_to_num(nan=float("inf")).max()) for error in errors)


@dataclass(frozen=True)
class Counted(Request):
    """Equal scores, and value ``i`` is the unit vector i: an output names the tokens it saw."""

    def tensors(self, heads: Heads) -> tuple[Tensor, Tensor, Tensor]:
        q, k, _ = super().tensors(heads)
        one_hot = torch.eye(self.num_tokens, heads.v_dim, dtype=heads.dtype)
        v = one_hot[:, None].expand(-1, heads.num_kv_heads, -1)
        return torch.zeros_like(q), k, v.contiguous()


@TARGETS
@pytest.mark.parametrize("block_size", [4, 3])
@pytest.mark.parametrize(
    ("window", "expected"),
    [
        (4, [1, 2, 3, 4, 4, 4, 4, 4, 4, 4]),
        (1000, list(range(1, 11))),
        (None, list(range(1, 11))),
    ],
    ids=["on_a_block_edge", "past_the_limit", "none"],
)
def test_k12_window_counts_the_query_itself(kernels, block_size: int, window, expected):
    heads = Heads(2, 2, 16, 16, block_size, torch.float32, window)
    whole = Counted(0, 10)
    chunks = [Counted(start, end - start) for start, end in [(0, 3), (3, 5), (5, 10)]]

    def counts(steps: list[Step]) -> list[int]:
        rows = torch.cat([row for step in steps for row in rows_of(step, kernels)])
        seen = rows.view(10, 4, 16) > 0
        lasts = [[int(head.nonzero().max()) for head in row] for row in seen]
        assert lasts == [[position] * 4 for position in range(10)]
        assert bool((seen == seen[:, :1]).all())
        return seen[:, 0].sum(dim=1).tolist()

    assert counts([make_prefill([whole], heads)]) == expected
    assert counts([make_prefill([chunk], heads) for chunk in chunks]) == expected
    assert counts([make_decode([single], heads) for single in single_steps(whole)]) == expected


@TARGETS
@PHASES
@BLOCK_SIZES
@DTYPES
def test_windows_match_the_dense_oracle(kernels, make, block_size: int, dtype: torch.dtype):
    """Whatever share of the freed blocks lies before the table, and whatever they hold."""
    for window in windows_of(block_size):
        for dropped, stale in [(None, False), (0.0, False), (0.5, True), (1.0, False)]:
            layout = Layout(dropped=dropped, stale=stale, filler=NAN, extra_columns=1)
            step = make(ODD, heads_of(block_size, window, dtype), layout)

            output, *caches = step.run(kernels)

            assert error_of(step, output) <= TOLERANCES[dtype]
            assert all_same_bits(caches, list(step.expected_caches))


@TARGETS
@settings(max_examples=25, deadline=None)
@given(
    requests=st.lists(
        st.builds(Request, st.integers(0, 90), st.integers(1, 40), st.integers(0, 99)),
        min_size=1,
        max_size=3,
    ),
    window=st.integers(1, 70),
    block_size=st.sampled_from([1, 3, 4, 16, 33]),
    sizes=st.tuples(st.integers(1, 2), st.integers(1, 5), st.sampled_from([8, 24, 64])),
    dropped=st.sampled_from([None, 0.0, 0.4, 1.0]),
)
def test_any_window_matches_the_dense_oracle(
    kernels, requests, window: int, block_size: int, sizes, dropped: float | None
):
    kv_heads, group, dim = sizes
    heads = Heads(kv_heads, group, dim, dim, block_size, torch.float32, window)

    for make in (make_prefill, make_decode):
        step = make(requests, heads, Layout(dropped=dropped, filler=NAN, stale=True))
        assert error_of(step, step.run(kernels)[0]) <= 1e-5


@TARGETS
@PHASES
@DTYPES
@BLOCK_SIZES
def test_freed_blocks_and_offsets_change_no_bit(kernels, make, dtype, block_size: int):
    """Poisoned: freed blocks, the null block, unused slots, padded rows."""
    for window in windows_of(block_size):
        heads = heads_of(block_size, window, dtype)
        whole = rows_of(make(ODD, heads), kernels)

        for filler, dropped, stale in itertools.product((NAN, 1e30), (0, 0.5, 1), (False, True)):
            layout = Layout(
                num_rows=12,
                num_requests=5,
                filler=filler,
                padding=filler,
                dropped=dropped,
                stale=stale,
                block_seed=1,
            )
            assert all_same_bits(rows_of(make(ODD, heads, layout), kernels), whole)


@TARGETS
@DTYPES
@BLOCK_SIZES
def test_any_chunking_and_single_decode_steps_give_the_bits_of_one_prefill(
    kernels, dtype, block_size: int
):
    """Chunks start and end inside of windows and of key tiles, with the oldest blocks freed."""
    prompt, layout = Request(0, 80, 7), Layout(dropped=1.0, filler=NAN)
    for window in (1, block_size - 1, block_size + 1, 40):
        heads = heads_of(block_size, window, dtype)
        (whole,) = rows_of(make_prefill([prompt], heads), kernels)

        for edges in [(0, 1, 80), (0, 32, 64, 80), (0, 39, 43, 79, 80)]:
            chunks = [
                rows_of(make_prefill([Request(start, end - start, 7)], heads, layout), kernels)[0]
                for start, end in itertools.pairwise(edges)
            ]
            assert same_bits(torch.cat(chunks), whole)
        singles = list(single_steps(prompt))[::5]
        decoded = [rows_of(make_decode([one], heads, layout), kernels)[0] for one in singles]
        assert same_bits(torch.cat(decoded), whole[::5])


@TARGETS
@DTYPES
def test_packed_and_verified_rows_equal_each_alone(kernels, dtype: torch.dtype):
    layout = Layout(dropped=1.0, filler=NAN)
    for window in (1, 6, 33):
        heads = heads_of(4, window, dtype)
        packed = rows_of(make_prefill(ODD, heads, layout), kernels)
        verified = rows_of(make_decode(ODD, heads, layout), kernels)

        for index, request in enumerate(ODD):
            alone = rows_of(make_prefill([request], heads), kernels)[0]
            singles = [rows_of(make_decode([r], heads), kernels)[0] for r in single_steps(request)]
            assert same_bits(packed[index], alone)
            assert same_bits(verified[index], alone)
            assert same_bits(torch.cat(singles), alone)


@TARGETS
@PHASES
def test_a_window_that_holds_every_context_changes_no_bit(kernels, make):
    plain = rows_of(make(ODD, heads_of(4, None)), kernels)

    assert all_same_bits(rows_of(make(ODD, heads_of(4, 74)), kernels), plain)
    assert not all_same_bits(rows_of(make(ODD, heads_of(4, 73)), kernels), plain)


@TARGETS
@PHASES
def test_the_dense_oracle_tells_a_window_that_is_off_by_one(kernels, make):
    for window in (3, 4, 5, 32, 33):
        step = make(ODD, heads_of(4, window))

        for wrong in (window - 1, window + 1):
            other = replace(step, heads=replace(step.heads, window=wrong))
            assert error_of(step, other.run(kernels)[0]) > 1e-2


@TARGETS
@PHASES
def test_the_dense_oracle_tells_an_offset_that_is_ignored(kernels, make):
    step = make([Request(33, 2, 4)], heads_of(4, 9), Layout(dropped=1.0, extra_columns=6))
    assert int(step.named["block_offset"][0]) == 6
    later = step.with_named(block_offset=step.named["block_offset"] + 1)
    ignored = step.with_named(block_offset=step.named["block_offset"] * 0)

    assert error_of(step, step.run(kernels)[0]) <= 1e-5
    assert error_of(step, run_or_nan(later, kernels)) > 1e-2
    assert error_of(step, run_or_nan(ignored, kernels)) > 1e-2


def run_or_nan(step: Step, kernels: KernelSet) -> Tensor:
    """The output, or NaN from a target that refuses what its table does not hold."""
    try:
        return step.run(kernels)[0]
    except ValueError:
        return torch.full_like(step.args[0].flatten(1), NAN)


@TARGETS
@PHASES
def test_offsets_of_another_shape_or_dtype_are_refused(kernels, make):
    step = make(ODD, heads_of(4, 9), Layout(dropped=1.0))
    offset = step.named["block_offset"]

    with pytest.raises(ValueError, match=r"block_offset has shape \(3,\), expected \(4,\)"):
        step.with_named(block_offset=offset[:3]).run(kernels)
    with pytest.raises(ValueError, match=r"block_offset has dtype torch.int64, expected"):
        step.with_named(block_offset=offset.long()).run(kernels)


@pytest.mark.parametrize("window", [0, -1])
def test_windows_without_the_query_are_refused(window: int):
    with pytest.raises(ValueError, match=f"window is {window}, a query sees at least 1 token"):
        AttentionSpec(scale=1.0, window=window)


def test_tables_that_start_after_a_window_are_refused():
    step = make_decode([Request(33, 1, 4)], heads_of(4, 9), Layout(dropped=1.0, extra_columns=2))
    step = step.with_named(block_offset=step.named["block_offset"] + 1)

    with pytest.raises(ValueError, match="a row sees 3 tokens that lie before its block table"):
        step.run(ReferenceKernels())
