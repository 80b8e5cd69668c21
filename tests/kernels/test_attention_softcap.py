"""The soft cap of scores: against the dense oracle, its bits, and what it bounds."""

import itertools
from dataclasses import replace

import pytest
import torch
from attention_cases import (
    Heads,
    Layout,
    Request,
    make_decode,
    make_prefill,
    same_bits,
    single_steps,
)
from attention_targets import (
    DTYPES,
    PHASES,
    TARGETS,
    TOLERANCES,
    error_of,
    rows_of,
)

from noria.kernels.contract import AttentionSpec

CAPS = pytest.mark.parametrize("softcap", [0.25, 1.0, 50.0])
REQUESTS = [Request(70, 4, 1), Request(0, 3, 2), Request(15, 1, 3), Request(33, 2, 4)]


def heads_of(softcap: float | None, dtype: torch.dtype = torch.float32, **more: int) -> Heads:
    return Heads(2, 3, 24, 24, dtype=dtype, softcap=softcap, **more)


@TARGETS
@PHASES
@DTYPES
@CAPS
@pytest.mark.parametrize("window", [None, 9])
def test_caps_match_the_dense_oracle(kernels, make, dtype, softcap: float, window: int | None):
    for block_size in (3, 16):
        heads = heads_of(softcap, dtype, block_size=block_size, window=window)
        step = make(REQUESTS, heads, Layout(filler=float("nan")))

        assert error_of(step, step.run(kernels)[0]) <= TOLERANCES[dtype]


@TARGETS
@PHASES
def test_the_dense_oracle_tells_a_cap_that_is_left_out(kernels, make):
    step = make(REQUESTS, heads_of(1.0))

    uncapped = replace(step, heads=heads_of(None))

    assert error_of(step, uncapped.run(kernels)[0]) > 1e-2


@TARGETS
@DTYPES
@CAPS
@pytest.mark.parametrize("group", [1, 3])
def test_rows_have_the_same_bits_however_they_are_laid_out(kernels, dtype, softcap, group: int):
    heads = replace(heads_of(softcap, dtype, block_size=3, window=40), group=group)
    prompt = Request(0, 60, 7)
    (whole,) = rows_of(make_prefill([prompt], heads), kernels)

    for edges in [(0, 1, 60), (0, 32, 41, 60), (0, 7, 12, 13, 60)]:
        chunks = [Request(start, end - start, 7) for start, end in itertools.pairwise(edges)]
        alone = [rows_of(make_prefill([chunk], heads), kernels)[0] for chunk in chunks]
        assert same_bits(torch.cat(alone), whole)
    singles = list(single_steps(prompt))[::7]
    layout = Layout(num_requests=11, padding=float("nan"), filler=float("nan"))
    packed = torch.cat(rows_of(make_decode(singles, heads, layout), kernels))
    assert same_bits(packed, whole[::7])


@TARGETS
@PHASES
@pytest.mark.parametrize("size", [1e4, 1e18])
def test_a_cap_bounds_scores_of_any_size(kernels, make, size: float):
    """Up to the ends of fp32, where plain scores would choose one key."""
    step = make([Request(9, 2, 1)], heads_of(2.0))
    step.args[0], step.args[1], step.args[3] = (step.args[n] * size for n in (0, 1, 3))

    output, *_ = step.run(kernels)

    q, k, v = (tensor.double() for tensor in Request(9, 2, 1).tensors(step.heads))
    keys, values = k[:10].repeat_interleave(3, dim=1), v[:10].repeat_interleave(3, dim=1)
    signs = torch.einsum("hd,chd->hc", q[9], keys).sign()
    expected = torch.einsum("hc,chd->hd", (2 * signs).softmax(dim=1), values)
    torch.testing.assert_close(output[0].double(), expected.flatten(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("softcap", [0.0, -1.0, float("inf"), float("nan")])
def test_caps_that_mean_nothing_are_refused(softcap: float):
    with pytest.raises(ValueError, match=f"softcap is {softcap}, expected a finite number above 0"):
        AttentionSpec(scale=1.0, softcap=softcap)
