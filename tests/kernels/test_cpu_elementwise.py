"""Embedding, norms, rope, activation and row choice in C++ against the reference."""

import pytest
import torch
from attention_cases import same_bits

from noria.kernels.cpu import CpuKernels
from noria.kernels.reference import ReferenceKernels

KERNELS = CpuKernels()
REFERENCE = ReferenceKernels()
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
WIDTHS = pytest.mark.parametrize("width", [1, 8, 15, 16, 40, 576, 1000])
INT32_MAX, INT32_MIN = 2**31 - 1, -(2**31)


def rand(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(dtype)


def int32(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def assert_close(got: torch.Tensor, expected: torch.Tensor) -> None:
    assert got.dtype == expected.dtype
    tolerance = 1e-5 if got.dtype == torch.float32 else 8e-3
    torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)


@DTYPES
@WIDTHS
def test_embed_and_take_rows_copy_rows(dtype: torch.dtype, width: int):
    table = rand(20, width, dtype=dtype)
    ids = int32(3, 19, 0, 3)

    assert same_bits(KERNELS.embed(ids, table), table[ids])
    assert same_bits(KERNELS.take_rows(table, ids), table[ids])


@DTYPES
def test_ids_outside_the_table_read_row_0(dtype: torch.dtype):
    table = rand(4, 24, dtype=dtype)
    ids = int32(-1, 4, INT32_MAX, INT32_MIN, 2)

    assert same_bits(KERNELS.embed(ids, table), table[[0, 0, 0, 0, 2]])
    assert same_bits(KERNELS.take_rows(table, ids), table[[0, 0, 0, 0, 2]])


@DTYPES
@WIDTHS
def test_norms_match_the_reference(dtype: torch.dtype, width: int):
    x, residual = rand(5, width, dtype=dtype), rand(5, width, dtype=dtype, seed=1)
    weight = rand(width, dtype=torch.float32, seed=2)

    normed, total = KERNELS.add_rms_norm(x, residual, weight, 1e-5)

    assert_close(KERNELS.rms_norm(x, weight, 1e-5), REFERENCE.rms_norm(x, weight, 1e-5))
    assert same_bits(total, x + residual)
    assert same_bits(normed, KERNELS.rms_norm(total, weight, 1e-5))
    assert same_bits(residual, rand(5, width, dtype=dtype, seed=1))


@DTYPES
def test_norm_uses_eps_and_takes_a_row_of_zeros(dtype: torch.dtype):
    x, weight = torch.zeros(1, 24, dtype=dtype), torch.ones(24)

    assert not KERNELS.rms_norm(x, weight, 1e-5).any()
    assert_close(KERNELS.rms_norm(x + 1, weight, 3.0), torch.full_like(x, 0.5))


@DTYPES
@pytest.mark.parametrize("dim", [2, 6, 16, 64, 80])
def test_rope_matches_the_reference_on_views(dtype: torch.dtype, dim: int):
    qkv = rand(7, 5 * dim, dtype=dtype)
    q, k = (
        qkv[:, : 3 * dim].unflatten(1, (3, dim)),
        qkv[:, 3 * dim : 4 * dim].unflatten(1, (1, dim)),
    )
    cos_sin, positions = rand(30, dim, dtype=torch.float32), int32(0, 29, 4, 4, 13, 1, 2)

    results = KERNELS.rope(q, k, positions, cos_sin)

    for got, expected in zip(results, REFERENCE.rope(q, k, positions, cos_sin), strict=True):
        assert_close(got, expected)
        assert got.is_contiguous()


@DTYPES
def test_positions_of_padding_never_index_the_rope_table_c05(dtype: torch.dtype):
    q, k = rand(5, 2, 16, dtype=dtype), rand(5, 1, 16, dtype=dtype)
    cos_sin = rand(30, 16, dtype=torch.float32)
    wild = KERNELS.rope(q, k, int32(7, 10**6, INT32_MAX, INT32_MIN, -1), cos_sin)
    zeros = KERNELS.rope(q, k, int32(7, 0, 0, 0, 0), cos_sin)

    assert all(same_bits(*pair) for pair in zip(wild, zeros, strict=True))


@DTYPES
@WIDTHS
def test_silu_mul_matches_the_reference(dtype: torch.dtype, width: int):
    gate_up = rand(5, 2 * width, dtype=dtype) * 5

    assert_close(KERNELS.silu_mul(gate_up), REFERENCE.silu_mul(gate_up))


@DTYPES
def test_silu_of_large_values_stays_finite(dtype: torch.dtype):
    gate = torch.tensor([[-1e30, -1000, -90, 0, 90, 1000, 1e30]])
    gate_up = torch.cat((gate, torch.ones_like(gate)), 1).to(dtype)

    output = KERNELS.silu_mul(gate_up)[0]

    assert output[:4].abs().max() < 1e-30
    assert same_bits(output[4:], gate_up[0, 4:7])


@DTYPES
@pytest.mark.parametrize("num_rows", [1, 2, 3, 17, 64, 300])
def test_a_row_has_the_same_bits_at_every_row_count(dtype: torch.dtype, num_rows: int):
    x, weight = rand(300, 66, dtype=dtype), rand(66, dtype=torch.float32)

    for operator in (lambda rows: KERNELS.rms_norm(rows, weight, 1e-5), KERNELS.silu_mul):
        assert same_bits(operator(x[-num_rows:]), operator(x)[-num_rows:])


def test_exponential_is_accurate_to_a_few_units_in_the_last_place():
    """silu(x) * (1 + e^-x) is x: checks e^-x over its whole range."""
    x = torch.linspace(-80, 80, 20001).view(1, -1)

    output = KERNELS.silu_mul(torch.cat((x, torch.ones_like(x)), 1)).double()

    expected = x.double() / (1 + (-x.double()).exp())
    torch.testing.assert_close(output, expected, rtol=1e-6, atol=1e-35)


def test_inputs_that_do_not_fit_are_refused():
    x, weight = torch.zeros(2, 8), torch.ones(8)
    heads = torch.zeros(2, 1, 8)

    with pytest.raises(ValueError, match=r"weight has dtype torch.bfloat16"):
        KERNELS.rms_norm(x, weight.bfloat16(), 1e-5)
    with pytest.raises(ValueError, match=r"x has shape \(2, 8\), expected \(2, 7\)"):
        KERNELS.rms_norm(x, weight[:7], 1e-5)
    with pytest.raises(ValueError, match=r"x has dtype torch.float64, expected torch.float32 or"):
        KERNELS.rms_norm(x.double(), weight.double(), 1e-5)
    with pytest.raises(ValueError, match=r"residual has shape \(1, 8\)"):
        KERNELS.add_rms_norm(x, x[:1], weight, 1e-5)
    with pytest.raises(ValueError, match=r"positions has shape \(1,\), expected \(2,\)"):
        KERNELS.rope(heads, heads, int32(0), torch.zeros(4, 8))
    with pytest.raises(ValueError, match="expected an even number"):
        KERNELS.silu_mul(torch.zeros(2, 7))
    with pytest.raises(ValueError, match=r"row ids has dtype torch.int64"):
        KERNELS.embed(torch.zeros(2, dtype=torch.int64), x)
    with pytest.raises(ValueError, match="expected dense rows"):
        KERNELS.silu_mul(torch.zeros(2, 16)[:, ::2])
