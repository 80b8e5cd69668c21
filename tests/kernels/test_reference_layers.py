"""Linear, embedding, norms, rope and activation of the reference, against plain formulas."""

import numpy as np
import pytest
import torch
from attention_cases import same_bits
from torch import Tensor

from noria.kernels.reference import ReferenceKernels

KERNELS = ReferenceKernels()
HALF_ULP = {torch.float64: 2**-53, torch.float32: 2**-24, torch.bfloat16: 2**-8}
NOISE = {torch.float64: 1e-14, torch.float32: 1e-6, torch.bfloat16: 1e-6}
DTYPES = pytest.mark.parametrize("dtype", list(HALF_ULP), ids=lambda dtype: str(dtype)[6:])


def random(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def assert_rounds_to(
    actual: Tensor, expected: Tensor, *, noise: float = 1.0, roundings: int = 1
) -> None:
    """Check for fp64 ``expected`` after some noise of the compute dtype and these roundings."""
    error = NOISE[actual.dtype] * noise
    rtol = HALF_ULP[actual.dtype] * roundings + error
    torch.testing.assert_close(actual.double(), expected, rtol=rtol, atol=error)


@DTYPES
@pytest.mark.parametrize("has_bias", [False, True])
def test_linear_is_the_matrix_product(dtype: torch.dtype, has_bias: bool):
    weight, x = random(5, 7, dtype=dtype, seed=1), random(3, 7, dtype=dtype, seed=2)
    bias = random(5, dtype=dtype, seed=3) if has_bias else None

    output = KERNELS.make_linear(weight, bias, dtype)(x)

    expected = torch.from_numpy(np.asarray(x.double()) @ np.asarray(weight.double()).T)
    assert output.dtype == dtype
    assert_rounds_to(
        output, expected if bias is None else expected + bias.double(), noise=4, roundings=2
    )


def test_linear_with_a_wider_output_is_not_rounded_to_the_weight_dtype():
    weight = random(64, 96, dtype=torch.bfloat16, seed=1)
    x = random(4, 96, dtype=torch.bfloat16, seed=2)

    output = KERNELS.make_linear(weight, None, torch.float32)(x)

    assert output.dtype == torch.float32
    assert_rounds_to(output, x.double() @ weight.double().T, noise=30)
    assert not torch.equal(output, output.bfloat16().float())


def test_linear_shares_a_weight_that_needs_no_conversion():
    weight = random(5, 7)

    module = KERNELS.make_linear(weight, None, torch.float64)

    assert module.weight.data_ptr() == weight.data_ptr()


def test_linear_refuses_a_bias_of_another_size():
    with pytest.raises(ValueError, match=r"bias has shape \(4,\), expected \(5,\)"):
        KERNELS.make_linear(random(5, 7), random(4), torch.float64)


def test_embed_looks_rows_up():
    table = random(6, 4)
    ids = torch.tensor([5, 0, 0, 3], dtype=torch.int32)

    assert torch.equal(KERNELS.embed(ids, table), table[[5, 0, 0, 3]])


@pytest.mark.parametrize("token_id", [-1, 6])
def test_embed_refuses_ids_outside_the_table(token_id: int):
    with pytest.raises(IndexError):
        KERNELS.embed(torch.tensor([0, token_id], dtype=torch.int32), random(6, 4))


def exact_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    x = x.double()
    return x / (x.square().mean(dim=1, keepdim=True) + eps).sqrt() * weight.double()


@DTYPES
@pytest.mark.parametrize("size", [1.0, 1e-4, 1e4])
def test_rms_norm_is_the_formula_rounded_once(dtype: torch.dtype, size: float):
    x, weight = random(5, 48, dtype=dtype, seed=1) * size, random(48, dtype=dtype, seed=2)

    normed = KERNELS.rms_norm(x, weight, 1e-5)

    assert normed.dtype == dtype
    assert_rounds_to(normed, exact_norm(x, weight, 1e-5), noise=2)


def test_rms_norm_of_zeros_is_zeros():
    assert not KERNELS.rms_norm(torch.zeros(2, 8), torch.ones(8), 1e-5).any()


@DTYPES
def test_add_rms_norm_norms_the_rounded_sum_and_returns_it(dtype: torch.dtype):
    x, residual = random(5, 48, dtype=dtype, seed=1), random(5, 48, dtype=dtype, seed=2) * 100
    weight, before = random(48, dtype=dtype, seed=3), residual.clone()

    normed, total = KERNELS.add_rms_norm(x, residual, weight, 1e-6)

    assert torch.equal(total, (x.double() + residual.double()).to(dtype))
    assert torch.equal(normed, KERNELS.rms_norm(total, weight, 1e-6))
    assert torch.equal(residual, before)


def rope_table(num_positions: int, dim: int, dtype: torch.dtype = torch.float64) -> Tensor:
    rates = 1000.0 ** (-torch.arange(dim // 2, dtype=torch.float64) / (dim // 2))
    angles = torch.arange(num_positions, dtype=torch.float64)[:, None] * rates
    return torch.cat((angles.cos(), angles.sin()), dim=1).to(dtype)


@DTYPES
def test_rope_turns_each_pair_of_halves_as_a_complex_number(dtype: torch.dtype):
    table_dtype = torch.promote_types(dtype, torch.float32)
    q, k = random(4, 3, 8, dtype=dtype, seed=1), random(4, 2, 8, dtype=dtype, seed=2)
    positions = torch.tensor([0, 5, 31, 2], dtype=torch.int32)
    table = rope_table(32, 8, table_dtype)

    rotated = KERNELS.rope(q, k, positions, table)

    exact = table.double()[positions]
    turn = torch.complex(exact[:, :4], exact[:, 4:]).unsqueeze(1)
    for before, after in zip((q, k), rotated, strict=True):
        pairs = torch.complex(before.double()[..., :4], before.double()[..., 4:]) * turn
        assert after.dtype == dtype
        assert_rounds_to(after, torch.cat((pairs.real, pairs.imag), dim=2), noise=4)


def test_rope_at_position_zero_changes_nothing():
    q, k = random(3, 2, 8, seed=1), random(3, 1, 8, seed=2)

    rotated = KERNELS.rope(q, k, torch.zeros(3, dtype=torch.int32), rope_table(4, 8))

    assert torch.equal(rotated[0], q)
    assert torch.equal(rotated[1], k)


@pytest.mark.parametrize("outside", [10**6, 32, -1, -(2**31), 2**31 - 1])
def test_rope_takes_positions_outside_the_table_as_zero_c05(outside: int):
    q, k, table = random(3, 2, 8, seed=1), random(3, 1, 8, seed=2), rope_table(32, 8)

    rotated = KERNELS.rope(q, k, torch.tensor([7, outside, 31], dtype=torch.int32), table)

    expected = KERNELS.rope(q, k, torch.tensor([7, 0, 31], dtype=torch.int32), table)
    assert torch.equal(rotated[0], expected[0])
    assert torch.equal(rotated[1], expected[1])


def test_rope_takes_views_with_a_row_stride_and_leaves_them_alone():
    joined = random(3, 40)
    before = joined.clone()
    q, k = joined[:, :24].unflatten(1, (3, 8)), joined[:, 24:].unflatten(1, (2, 8))
    positions, table = torch.tensor([1, 2, 3], dtype=torch.int32), rope_table(4, 8)

    rotated = KERNELS.rope(q, k, positions, table)

    copied = KERNELS.rope(q.clone(), k.clone(), positions, table)
    assert all(torch.equal(*pair) for pair in zip(rotated, copied, strict=True))
    assert torch.equal(joined, before)


@pytest.mark.parametrize("rows", [2, 4])
def test_rope_refuses_positions_of_another_length_c05(rows: int):
    q, k = random(3, 2, 8), random(3, 1, 8)

    with pytest.raises(ValueError, match=r"positions has shape"):
        KERNELS.rope(q, k, torch.zeros(rows, dtype=torch.int32), rope_table(4, 8))


@DTYPES
def test_silu_mul_is_the_formula_rounded_once(dtype: torch.dtype):
    gate_up = random(5, 2 * 33, dtype=dtype, seed=1) * 4

    output = KERNELS.silu_mul(gate_up)

    gate, up = gate_up.double().chunk(2, dim=1)
    assert output.dtype == dtype
    assert_rounds_to(output, gate * torch.sigmoid(gate) * up, noise=4)


def test_silu_mul_at_the_ends_of_the_range():
    gate_up = torch.tensor([[2.0**99, 1000.0, -1000.0, -1e30, 0.0, 2.0, 2.0, 2.0, 2.0, 2.0]])

    assert KERNELS.silu_mul(gate_up).tolist() == [[2.0**100, 2000.0, 0.0, 0.0, 0.0]]


def test_take_rows_repeats_rows_and_copies_them():
    x = random(4, 3)
    rows = KERNELS.take_rows(x, torch.tensor([2, 0, 0], dtype=torch.int32))
    expected = x[[2, 0, 0]].clone()

    x.zero_()

    assert torch.equal(rows, expected)


@pytest.mark.parametrize("row", [-1, 4])
def test_take_rows_refuses_rows_outside(row: int):
    with pytest.raises(IndexError):
        KERNELS.take_rows(random(4, 3), torch.tensor([row], dtype=torch.int32))


def norm_rows(x: Tensor) -> Tensor:
    return KERNELS.rms_norm(x, random(x.shape[1], dtype=x.dtype, seed=9), 1e-5)


def add_norm_rows(x: Tensor) -> Tensor:
    return torch.cat(KERNELS.add_rms_norm(x, x / 3, random(x.shape[1], dtype=x.dtype), 1e-5), 1)


def rope_rows(x: Tensor) -> Tensor:
    heads = x[:, : x.shape[1] // 8 * 8].unflatten(1, (-1, 8))
    table = rope_table(32, 8, torch.promote_types(x.dtype, torch.float32))
    positions = torch.full((x.shape[0],), 11, dtype=torch.int32)
    return torch.cat(KERNELS.rope(heads, heads[:, :1], positions, table), dim=1)


@DTYPES
@pytest.mark.parametrize("width", [8, 18, 62, 96, 577 * 2])
@pytest.mark.parametrize(
    "operator", [norm_rows, add_norm_rows, rope_rows, KERNELS.silu_mul], ids=lambda f: f.__name__
)
def test_row_bits_do_not_depend_on_other_rows(operator, width: int, dtype: torch.dtype):
    rows = random(33, width, dtype=dtype, seed=4) * 3
    together = operator(rows)

    for count in (1, 2, 3, 4, 8, 17):
        for first in (0, 1, 16):
            part = operator(rows[first : first + count].clone())
            assert same_bits(part, together[first : first + count])
