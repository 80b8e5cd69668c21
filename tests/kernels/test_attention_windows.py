"""Sliding windows and block offsets, on the reference and in C++, against the dense oracle."""

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
    single_steps,
)
from attention_targets import (
    BLOCK_SIZES,
    DTYPES,
    NAN,
    ODD,
    PHASES,
    TARGETS,
    TOLERANCES,
    all_same_bits,
    error_of,
    heads_of,
    rows_of,
    windows_of,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from noria.kernels.contract import AttentionSpec
from noria.kernels.kernel_set import KernelSet
from noria.kernels.reference import ReferenceKernels


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
