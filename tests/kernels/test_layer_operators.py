"""Scaled embedding, norms of heads, partial rope, gelu and soft caps, in every target."""

import pytest
import torch
import torch.nn.functional as F
from attention_cases import same_bits
from row_targets import CPU, EVERY, REFERENCE, int32, rand, wide
from torch import Tensor, nn

HALF_ULP = {torch.float64: 2**-53, torch.float32: 2**-24, torch.bfloat16: 2**-8}
NOISE = {torch.float64: 1e-15, torch.float32: 4e-7, torch.bfloat16: 4e-7}


def assert_rounds_to(actual: Tensor, expected: Tensor, *, dtype: torch.dtype) -> None:
    """Check for the fp64 value after a little noise of the compute dtype and one rounding."""
    assert actual.dtype == dtype
    tolerance = HALF_ULP[dtype] + NOISE[dtype]
    torch.testing.assert_close(actual.double(), expected, rtol=tolerance, atol=NOISE[dtype])


@EVERY
@pytest.mark.parametrize("width", [1, 15, 16, 100])
def test_a_scaled_embedding_is_rounded_once(kernels, dtype: torch.dtype, width: int):
    table, ids = rand(7, width, dtype=dtype), int32([3, 0, 6, 3])
    scale = float(torch.tensor(width**0.5 + 0.1).to(dtype))

    rows = kernels.embed(ids, table, scale)

    assert torch.equal(rows, (table[ids].to(wide(dtype)) * scale).to(dtype))
    assert torch.equal(kernels.embed(ids, table), table[ids])
    assert torch.equal(kernels.embed(ids, table, 1.0), table[ids])


def test_scaled_ids_outside_the_table_read_row_0_on_the_cpu():
    table = rand(4, 24, dtype=torch.float32)

    rows = CPU.embed(int32([-1, 4, 2**31 - 1, 2]), table, 3.0)

    assert same_bits(rows, table[[0, 0, 0, 2]] * 3)


@EVERY
@pytest.mark.parametrize("dim", [1, 8, 40, 128])
def test_each_head_of_a_view_is_normed_alone(kernels, dtype: torch.dtype, dim: int):
    """The q and k of a joined projection, as Qwen3 norms them."""
    qkv = rand(5, 6 * dim, dtype=dtype) * 3
    weight = rand(dim, dtype=wide(dtype), seed=1)
    for heads in (
        qkv[:, : 3 * dim].unflatten(1, (3, dim)),
        qkv[:, 3 * dim :].unflatten(1, (3, dim)),
    ):
        normed = kernels.rms_norm(heads, weight, 1e-6)

        x = heads.double()
        exact = x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight.double()
        assert_rounds_to(normed, exact, dtype=dtype)
        assert normed.is_contiguous()
        rows = [kernels.rms_norm(head.contiguous(), weight, 1e-6) for head in heads.unbind(1)]
        assert same_bits(normed, torch.stack(rows, 1))


@EVERY
@pytest.mark.parametrize("rotated", [2, 6, 24, 32])
def test_partial_rope_rotates_the_first_dims_and_copies_the_rest(kernels, dtype, rotated: int):
    qkv, table = rand(4, 4 * 32, dtype=dtype), rand(20, rotated, dtype=wide(dtype), seed=1)
    q, k = qkv[:, :96].unflatten(1, (3, 32)), qkv[:, 96:].unflatten(1, (1, 32))
    positions = int32([0, 19, 7, 7])

    results = kernels.rope(q, k, positions, table)

    exact = table.double()[positions].unsqueeze(1)
    turn = torch.complex(exact[..., : rotated // 2], exact[..., rotated // 2 :])
    for before, after in zip((q, k), results, strict=True):
        first, second = before.double()[..., :rotated].chunk(2, dim=2)
        pairs = torch.complex(first, second) * turn
        assert_rounds_to(
            after[..., :rotated], torch.cat((pairs.real, pairs.imag), dim=2), dtype=dtype
        )
        assert torch.equal(after[..., rotated:], before[..., rotated:])


@EVERY
def test_what_is_not_rotated_keeps_nan_to_itself(kernels, dtype: torch.dtype):
    q, table = torch.zeros(2, 1, 16, dtype=dtype), rand(4, 8, dtype=wide(dtype))
    q[0, 0, 8:] = float("nan")

    rotated, _ = kernels.rope(q, q, int32([1, 2]), table)

    assert rotated[0, 0, 8:].isnan().all()
    assert not rotated[0, 0, :8].any()
    assert not rotated[1].any()


@EVERY
@pytest.mark.parametrize("width", [1, 8, 33, 200])
def test_gelu_mul_is_the_approximation_by_tanh(kernels, dtype: torch.dtype, width: int):
    gate_up = rand(5, 2 * width, dtype=dtype) * 3

    output = kernels.gelu_mul(gate_up)

    gate, up = gate_up.double().chunk(2, dim=1)
    assert_rounds_to(output, F.gelu(gate, approximate="tanh") * up, dtype=dtype)


def test_gelu_is_neither_silu_nor_the_exact_gelu():
    gate_up = torch.tensor([[1.5, -0.75, 1.0, 1.0]])

    output = CPU.gelu_mul(gate_up)

    assert (output - CPU.silu_mul(gate_up)).abs().min() > 1e-2
    assert (output - F.gelu(gate_up[:, :2])).abs().min() > 5e-6


@EVERY
def test_gelu_at_the_ends_of_the_range(kernels, dtype: torch.dtype):
    gate = torch.tensor([[-1e30, -1000, -20, 0, 20, 1000, 1e30]])

    output = kernels.gelu_mul(torch.cat((gate, torch.ones_like(gate)), 1).to(dtype))[0]

    assert output[:4].abs().max() < 1e-30
    assert same_bits(output[4:], gate[0, 4:].to(dtype))


@EVERY
@pytest.mark.parametrize("cap", [30.0, 50.0, 0.5])
def test_soft_cap_is_the_formula_everywhere(kernels, dtype: torch.dtype, cap: float):
    small = torch.logspace(-30, 4, 1001, dtype=torch.float64)
    x = torch.stack((small, -small)).to(dtype)

    capped = kernels.soft_cap(x, cap)

    exact = cap * (x.double() / cap).tanh()
    assert capped.dtype == dtype
    torch.testing.assert_close(
        capped.double(), exact, rtol=HALF_ULP[dtype] + 2 * NOISE[dtype], atol=0
    )
    assert capped.abs().max() <= cap
    assert same_bits(capped[1], -capped[0])


@EVERY
def test_soft_cap_of_what_is_not_finite(kernels, dtype: torch.dtype):
    inf, nan = float("inf"), float("nan")

    capped = kernels.soft_cap(torch.tensor([[inf, -inf, 0, nan]]).to(dtype), 30.0)[0]

    assert capped[:3].tolist() == [30.0, -30.0, 0.0]
    assert capped[3].isnan()


def embed_rows(kernels, x: Tensor) -> Tensor:
    ids = torch.arange(x.shape[0], dtype=torch.int32)
    return kernels.embed(ids, x, 3.25)


def norm_heads(kernels, x: Tensor) -> Tensor:
    return kernels.rms_norm(
        x.unflatten(1, (2, -1)), torch.ones(x.shape[1] // 2).to(wide(x.dtype)), 1e-5
    )


def rope_heads(kernels, x: Tensor) -> Tensor:
    heads = x.unflatten(1, (1, -1))
    table = rand(12, x.shape[1] // 4 * 2, dtype=wide(x.dtype), seed=3)
    positions = torch.full((x.shape[0],), 11, dtype=torch.int32)
    return torch.cat(kernels.rope(heads, heads, positions, table))


OPERATORS = {
    "embed": embed_rows,
    "norm": norm_heads,
    "rope": rope_heads,
    "gelu_mul": lambda kernels, x: kernels.gelu_mul(x),
    "soft_cap": lambda kernels, x: kernels.soft_cap(x, 3.0),
}


@EVERY
@pytest.mark.parametrize("width", [4, 36, 250])
@pytest.mark.parametrize("operator", OPERATORS.values(), ids=OPERATORS)
def test_row_bits_depend_on_nothing_but_the_row(kernels, dtype, width: int, operator):
    """Neither on the number of rows, nor on the place, nor on what lies beside a strided row."""
    rows = rand(33, width, dtype=dtype, seed=4) * 3
    together = operator(kernels, rows)[:33]
    beside = torch.full((33, width + 20), float("nan"), dtype=dtype)
    beside[:, 7 : 7 + width] = rows

    strided = beside if operator is embed_rows else beside[:, 7 : 7 + width]
    if operator is not embed_rows:
        assert same_bits(operator(kernels, strided)[:33], together)
    for first, count in ((0, 1), (1, 2), (16, 3), (5, 17), (32, 1)):
        part = operator(kernels, rows[first : first + count].clone())[:count]
        assert same_bits(part, together[first : first + count])


class AllOperators(nn.Module):
    """Each operator once, to be lowered."""

    def __init__(self, kernels) -> None:
        super().__init__()
        self.kernels = kernels
        self.table, self.cos_sin = rand(9, 32, dtype=torch.float32), rand(9, 8, dtype=torch.float32)
        self.weight = rand(16, dtype=torch.float32)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        kernels = self.kernels
        x = kernels.embed(ids, self.table, 5.0)
        q = kernels.rms_norm(x.unflatten(1, (2, 16)), self.weight, 1e-5)
        q, k = kernels.rope(q, q[:, :1], ids, self.cos_sin)
        return kernels.soft_cap(kernels.gelu_mul(q.flatten(1)), 0.5), k


def test_a_graph_of_them_is_one_list_of_commands():
    ids, outputs = int32([1, 8, 0]), [torch.zeros(3, 16), torch.zeros(3, 1, 16)]

    run = CPU.compile(AllOperators(CPU), [ids], outputs)
    run()

    for output, eager, expected in zip(
        outputs, AllOperators(CPU)(ids), AllOperators(REFERENCE)(ids), strict=True
    ):
        assert same_bits(output, eager)
        torch.testing.assert_close(output, expected, rtol=1e-5, atol=1e-5)
    assert (len(run.steps), run.num_commands) == (1, 5)


@pytest.mark.parametrize("kernels", [CPU, REFERENCE], ids=["cpu", "reference"])
def test_inputs_that_do_not_fit_are_refused(kernels):
    heads, positions = torch.zeros(2, 1, 8), int32([0, 0])

    for rotated in (0, 3, 10):
        with pytest.raises(ValueError, match=f"rotates {rotated} dims, .* up to head dim 8"):
            kernels.rope(heads, heads, positions, torch.zeros(4, rotated))
    with pytest.raises(ValueError, match=r"cos_sin has dtype torch.bfloat16"):
        kernels.rope(heads, heads, positions, torch.zeros(4, 8).bfloat16())
    with pytest.raises(ValueError, match=r"expected \((2, 1, 7|8,)\)"):
        kernels.rms_norm(heads, torch.ones(7), 1e-5)


def test_layouts_that_the_cpu_cannot_read_are_refused():
    with pytest.raises(ValueError, match="expected dense rows"):
        CPU.soft_cap(torch.zeros(2, 16)[:, ::2], 3.0)
    with pytest.raises(ValueError, match="expected dense rows"):
        CPU.rms_norm(torch.zeros(2, 4, 8)[:, ::2], torch.ones(8), 1e-5)
    with pytest.raises(ValueError, match="expected an even number"):
        CPU.gelu_mul(torch.zeros(2, 7))
    with pytest.raises(ValueError, match=r"dtype torch.float64, expected torch.float32 or"):
        CPU.soft_cap(torch.zeros(2, 8).double(), 3.0)
