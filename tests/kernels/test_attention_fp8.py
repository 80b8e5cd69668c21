"""FP8 caches: rounding when written, the scaled values when read, and the bits of rows."""

import itertools
import math

import ml_dtypes
import numpy as np
import pytest
import torch
from attention_cases import (
    FP8,
    Heads,
    Layout,
    Request,
    make_decode,
    make_prefill,
    same_bits,
    single_steps,
)
from attention_targets import (
    CPU,
    DTYPES,
    NAN,
    PHASES,
    TARGETS,
    TOLERANCES,
    error_of,
    rows_of,
)
from torch import Tensor

from noria.kernels.contract import AttentionSpec
from noria.kernels.kernel_set import KernelSet
from noria.kernels.reference import ReferenceKernels

SCALES = pytest.mark.parametrize("scales", [(1.0, 1.0), (0.0123, 0.37), (3.0, 0.5)])
REQUESTS = [Request(70, 4, 1), Request(0, 3, 2), Request(15, 1, 3), Request(33, 2, 4)]


def heads_of(dtype: torch.dtype, scales: tuple[float, float] = (1.0, 1.0), **more) -> Heads:
    return Heads(
        2, 3, 24, 24, dtype=dtype, cache_dtype=FP8, k_scale=scales[0], v_scale=scales[1], **more
    )


@TARGETS
@PHASES
@DTYPES
@SCALES
@pytest.mark.parametrize("window", [None, 9])
def test_fp8_caches_match_the_dense_oracle(kernels, make, dtype, scales, window: int | None):
    """The oracle is fp64 over ``scale * stored``; what is stored comes from another library."""
    for block_size in (3, 16):
        heads = heads_of(dtype, scales, block_size=block_size, window=window)
        step = make(REQUESTS, heads, Layout(filler=NAN, padding=NAN, dropped=1.0, num_requests=5))

        output, *caches = step.run(kernels)

        assert error_of(step, output) <= TOLERANCES[dtype]
        assert all(same_bits(*pair) for pair in zip(caches, step.expected_caches, strict=True))


@PHASES
@DTYPES
@pytest.mark.parametrize("dim", [8, 16, 72, 80, 128, 256])
@pytest.mark.parametrize("kv_heads", [1, 3])
def test_head_dims_match_the_reference(make, dtype, dim: int, kv_heads: int):
    heads = Heads(kv_heads, 3, dim, dim, 16, dtype, cache_dtype=FP8, k_scale=0.02, v_scale=0.3)
    step = make(REQUESTS, heads, Layout(filler=NAN))

    output, *caches = step.run(CPU)

    expected, *others = step.run(ReferenceKernels())
    tolerance = TOLERANCES[dtype]
    torch.testing.assert_close(output.float(), expected.float(), rtol=tolerance, atol=tolerance)
    assert all(same_bits(*pair) for pair in zip(caches, others, strict=True))


@TARGETS
@DTYPES
@pytest.mark.parametrize("block_size", [3, 16])
def test_rows_have_the_same_bits_however_they_are_laid_out(kernels, dtype, block_size: int):
    prompt, layout = Request(0, 60, 7), Layout(dropped=1.0, filler=NAN)
    for window, softcap in ((None, None), (21, 2.0)):
        heads = heads_of(dtype, (0.02, 0.3), block_size=block_size, window=window, softcap=softcap)
        (whole,) = rows_of(make_prefill([prompt], heads), kernels)

        for edges in [(0, 1, 60), (0, 32, 41, 60), (0, 7, 12, 13, 60)]:
            chunks = [Request(start, end - start, 7) for start, end in itertools.pairwise(edges)]
            alone = [rows_of(make_prefill([chunk], heads, layout), kernels)[0] for chunk in chunks]
            assert same_bits(torch.cat(alone), whole)
        singles = list(single_steps(prompt))[::7]
        assert same_bits(
            torch.cat(rows_of(make_decode(singles, heads, layout), kernels)), whole[::7]
        )


def written(kernels: KernelSet, x: Tensor, scale: float) -> Tensor:
    """What one decode step leaves in the key cache for ``x`` ``[R, 8]``, as bytes."""
    num_rows = x.shape[0]
    rows = x[:, None]
    caches = [torch.zeros(num_rows, 1, 1, 8).to(FP8) for _ in range(2)]
    int32 = torch.arange(num_rows, dtype=torch.int32)
    kernels.attend_decode(
        torch.zeros_like(rows),
        rows,
        rows,
        *caches,
        slot_mapping_R=int32,
        block_table_SW=int32[:, None],
        context_lens_S=torch.zeros_like(int32),
        query_lens_S=torch.ones_like(int32),
        spec=AttentionSpec(scale=1.0, k_scale=scale, v_scale=scale),
    )
    assert same_bits(*caches)
    return caches[0].flatten(1).view(torch.uint8)


def expected_bytes(x: Tensor, scale: float) -> Tensor:
    scaled = x.float().numpy() / np.float32(scale)
    codes = np.clip(scaled, -448, 448).astype(ml_dtypes.float8_e4m3fn)
    return torch.from_numpy(codes.view(np.uint8))


def all_codes() -> Tensor:
    """Every FP8 number, ascending."""
    codes = torch.arange(256, dtype=torch.uint8).view(FP8).float()
    return codes[codes.isfinite()].unique()


def around(x: Tensor) -> Tensor:
    """Each number, and its neighbours in fp32."""
    inf = torch.tensor(float("inf"))
    return torch.cat([x, torch.nextafter(x, inf), torch.nextafter(x, -inf)])


def in_rows(x: Tensor) -> Tensor:
    return torch.cat([x, x.new_zeros(-len(x) % 8)]).view(-1, 8)


@TARGETS
@DTYPES
@pytest.mark.parametrize("scale", [1.0, 0.7, 2.0**-10, 300.0])
def test_written_numbers_are_rounded_to_nearest_even(kernels, dtype, scale: float):
    """All codes, all ties with their neighbours, all magnitudes, and far beyond the largest."""
    codes = all_codes()
    ties = (codes[1:] + codes[:-1]) / 2
    generator = torch.Generator().manual_seed(1)
    spread = torch.randn(4096, generator=generator) * 2 ** torch.empty(4096).uniform_(
        -14, 10, generator=generator
    )
    edges = torch.tensor([0.0, -0.0, 1e-45, -1e-40, 464.0, 465.0, 1e30, -1e30, math.inf, -math.inf])
    x = in_rows(torch.cat([around(codes), around(ties), spread, edges]) * scale).to(dtype)

    assert torch.equal(written(kernels, x, scale), expected_bytes(x, scale))


@TARGETS
@DTYPES
def test_codes_survive_a_round_trip(kernels, dtype):
    codes = in_rows(all_codes()).to(dtype)

    assert torch.equal(written(kernels, codes, 1.0).view(FP8).float(), codes.float())


@TARGETS
def test_nan_stays_nan(kernels):
    """As in any other cache: a request whose keys are NaN must not get plausible tokens."""
    signs = torch.tensor([[1.0, -1.0] * 4])
    nan = torch.full((1, 8), NAN).copysign(signs)

    assert written(kernels, nan, 1.0).view(FP8).float().isnan().all()


@TARGETS
def test_every_code_is_read_as_its_number(kernels):
    """One key per request, so the output is the value; exact for a scale of 2."""
    codes = in_rows(all_codes())
    num_rows = codes.shape[0]
    caches = [codes.to(FP8)[:, None, None].clone() for _ in range(2)]
    int32 = torch.arange(num_rows, dtype=torch.int32)

    output = kernels.attend_decode(
        *(torch.zeros(num_rows, 1, 8) for _ in range(3)),
        *caches,
        slot_mapping_R=torch.full_like(int32, -1),
        block_table_SW=int32[:, None],
        context_lens_S=torch.zeros_like(int32),
        query_lens_S=torch.ones_like(int32),
        spec=AttentionSpec(scale=1.0, v_scale=2.0),
    )

    assert torch.equal(output, 2 * codes)


@TARGETS
@PHASES
def test_scales_of_other_caches_are_refused(kernels, make):
    heads = Heads(2, 3, 24, 24, dtype=torch.float32, v_scale=0.5)

    with pytest.raises(ValueError, match=r"v_scale 0.5, a cache of torch.float32 expects 1"):
        make(REQUESTS, heads).run(kernels)


@pytest.mark.parametrize("scale", [0.0, -1.0, float("inf"), NAN])
def test_scales_that_mean_nothing_are_refused(scale: float):
    with pytest.raises(ValueError, match=f"k_scale is {scale}, expected a finite number above 0"):
        AttentionSpec(scale=1.0, k_scale=scale)
