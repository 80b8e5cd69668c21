"""Expert MLPs: exact values, rows that never meet, padding that reaches no expert."""

import pytest
import torch
import torch.nn.functional as F
from attention_cases import same_bits
from row_targets import CPU, CPU_DTYPES, EVERY, INVARIANT, REFERENCE, int32, rand, tokens, wide
from torch import Tensor, nn

from noria.kernels.cpu import CpuKernels
from noria.kernels.cpu.registry import OPERATORS

NAN = float("nan")


class Case:
    """Weights of X experts and rows routed to A of them."""

    def __init__(self, dtype: torch.dtype, num_rows: int = 13, **sizes: int) -> None:
        self.hidden, self.inner = sizes.get("hidden", 24), sizes.get("inner", 40)
        self.num_experts, self.top_k = sizes.get("num_experts", 6), sizes.get("top_k", 2)
        self.dtype = dtype
        shape = (self.num_experts, 2 * self.inner, self.hidden)
        self.gate_up = (rand(*shape, dtype=torch.float64, seed=1) / self.hidden**0.5).to(dtype)
        shape = (self.num_experts, self.hidden, self.inner)
        self.down = (rand(*shape, dtype=torch.float64, seed=2) / self.inner**0.5).to(dtype)
        self.x = rand(num_rows, self.hidden, dtype=dtype, seed=3)
        logits = rand(num_rows, self.num_experts, dtype=dtype, seed=4)
        routed = REFERENCE.route(logits, tokens(num_rows), self.top_k, True)
        self.experts, self.weights = routed

    def make(self, kernels) -> nn.Module:
        return kernels.make_experts(self.gate_up, self.down, "silu")

    def exact(self) -> Tensor:
        """In fp64, but for the two roundings that every target shares."""
        total = torch.zeros(self.x.shape, dtype=torch.float64)
        for row in range(self.x.shape[0]):
            for expert, weight in zip(self.experts[row], self.weights[row], strict=True):
                if expert >= 0:
                    hidden = (self.gate_up[expert].double() @ self.x[row].double()).to(self.dtype)
                    gate, up = hidden.double().chunk(2)
                    inner = (F.silu(gate) * up).to(self.dtype).double()
                    total[row] += weight.double() * (self.down[expert].double() @ inner)
        return total


SIZES = [
    {"hidden": 1, "inner": 1, "num_experts": 1, "top_k": 1},
    {"hidden": 7, "inner": 5, "num_experts": 3, "top_k": 3},
    {"hidden": 24, "inner": 40, "num_experts": 6, "top_k": 2},
    {"hidden": 33, "inner": 17, "num_experts": 16, "top_k": 4},
    {"hidden": 112, "inner": 64, "num_experts": 4, "top_k": 1},
]


@EVERY
@pytest.mark.parametrize("sizes", SIZES, ids=lambda sizes: "-".join(map(str, sizes.values())))
def test_rows_are_weighted_sums_of_their_experts(kernels, dtype: torch.dtype, sizes):
    case = Case(dtype, num_rows=29, **sizes)

    output = case.make(kernels)(case.x, case.experts, case.weights)

    exact = case.exact()
    # A sum that lies between two bf16 may round to the other, and so change what follows.
    tolerance = {torch.float64: 1e-12, torch.float32: 3e-6, torch.bfloat16: 1.5e-2}[dtype]
    assert output.dtype == dtype
    torch.testing.assert_close(output.double(), exact, rtol=tolerance, atol=tolerance)


@CPU_DTYPES
def test_one_expert_of_weight_1_is_a_dense_mlp_to_the_bit_on_the_cpu(dtype: torch.dtype):
    case = Case(dtype, num_rows=21, num_experts=1, top_k=1)
    gate_up = CPU.make_linear(case.gate_up[0], None, dtype)
    down = CPU.make_linear(case.down[0], None, dtype)

    output = case.make(CPU)(case.x, torch.zeros_like(case.experts), torch.ones(21, 1))

    assert same_bits(output, down(CPU.silu_mul(gate_up(case.x))))


@INVARIANT
@pytest.mark.parametrize("num_rows", [1, 2, 9, 64])
def test_a_row_has_the_same_bits_whatever_the_others(kernels, dtype, num_rows: int):
    """The others are more, fewer, elsewhere, of other experts, or all of the same one."""
    case = Case(dtype, num_rows=150, hidden=33, inner=50)
    experts = case.make(kernels)
    together = experts(case.x, case.experts, case.weights)

    part = slice(150 - num_rows, 150)
    alone = experts(case.x[part].clone(), case.experts[part], case.weights[part].clone())
    crowd = case.experts.clone()
    crowd[: 150 - num_rows] = case.experts[part][0]
    crowded = experts(case.x, crowd, case.weights)

    assert same_bits(alone, together[part])
    assert same_bits(crowded[part], together[part])


@EVERY
def test_rows_may_have_a_stride(kernels, dtype: torch.dtype):
    case = Case(dtype)
    experts = case.make(kernels)
    beside = torch.full((13, 60), NAN, dtype=dtype)
    beside[:, 9:33] = case.x

    strided = experts(beside[:, 9:33], case.experts, case.weights)

    assert same_bits(strided, experts(case.x, case.experts, case.weights))


@EVERY
def test_rows_of_no_expert_are_exact_zeros_and_reach_no_expert(kernels, dtype: torch.dtype):
    """Padded rows hold NaN; no other row changes by a bit."""
    case = Case(dtype)
    experts = case.make(kernels)
    clean = experts(case.x, case.experts, case.weights)
    padded = [0, 5, 6, 12]
    case.x[padded], case.experts[padded], case.weights[padded] = NAN, -1, NAN

    output = experts(case.x, case.experts, case.weights)

    kept = [row for row in range(13) if row not in padded]
    assert same_bits(output[padded], torch.zeros_like(output[padded]))
    assert same_bits(output[kept], clean[kept])


@EVERY
def test_skipping_one_of_two_experts_leaves_the_other(kernels, dtype: torch.dtype):
    case = Case(dtype)
    experts = case.make(kernels)
    without = case.experts.clone()
    without[:, 0] = -1

    output = experts(case.x, without, case.weights)

    assert same_bits(
        output, experts(case.x, case.experts[:, 1:].contiguous(), case.weights[:, 1:].contiguous())
    )


@EVERY
def test_weights_of_experts_without_rows_are_never_read(kernels, dtype: torch.dtype):
    """NaN weights show what is multiplied: only an expert that has a row, and only that row."""
    case = Case(dtype)
    clean = case.make(kernels)(case.x, case.experts, case.weights)
    case.experts[case.experts == 4] = -1
    without = case.make(kernels)(case.x, case.experts, case.weights)
    case.gate_up[4], case.down[4] = NAN, NAN
    poisoned = case.make(kernels)

    assert not same_bits(without, clean)
    assert same_bits(poisoned(case.x, case.experts, case.weights), without)
    case.experts[7, 0] = 4
    output = poisoned(case.x, case.experts, case.weights)
    assert output[7].isnan().all()
    assert not output[[row for row in range(13) if row != 7]].isnan().any()


@EVERY
def test_nan_in_one_row_stays_there(kernels, dtype: torch.dtype):
    case = Case(dtype, hidden=31, inner=17)
    experts = case.make(kernels)
    clean = experts(case.x, case.experts, case.weights)
    case.x[4] = NAN

    output = experts(case.x, case.experts, case.weights)

    kept = [row for row in range(13) if row != 4]
    assert output[4].isnan().all()
    assert same_bits(output[kept], clean[kept])


@EVERY
def test_ranks_add_up_in_their_order(kernels, dtype: torch.dtype):
    """Experts whose outputs cancel: only the order of ranks decides what is left."""
    case = Case(dtype, num_rows=1, num_experts=3, top_k=3, hidden=1, inner=1)
    case.gate_up[:], case.x[:] = 40.0, 1.0  # silu is the identity there
    case.down[:] = torch.tensor([2.0**60, -(2.0**60), 1.0]).view(3, 1, 1).to(dtype)
    ones = torch.ones(1, 3, dtype=wide(dtype))
    experts = case.make(kernels)

    first, last = (experts(case.x, int32([order]), ones) for order in ([0, 1, 2], [2, 0, 1]))

    assert first.item() == 1600
    assert last.item() == 0


class Layer(nn.Module):
    """Router and experts, as in a model."""

    def __init__(self, kernels, case: Case) -> None:
        super().__init__()
        self.kernels, self.top_k = kernels, case.top_k
        router = rand(case.num_experts, case.hidden, dtype=case.dtype, seed=9)
        self.router = kernels.make_linear(router, None, torch.float32)
        self.experts = case.make(kernels)

    def forward(self, x: Tensor, token_mask: Tensor) -> Tensor:
        chosen = self.kernels.route(self.router(x), token_mask, self.top_k, True)
        return self.experts(x, *chosen)


@CPU_DTYPES
def test_graphs_of_any_number_of_rows_agree_to_the_bit(dtype: torch.dtype):
    """One bucket holds the rows alone, another with NaN padding around; memory is shared."""
    case, kernels = Case(dtype, num_rows=5, num_experts=8), CpuKernels()
    layer = Layer(kernels, case)
    outputs = []
    for num_rows in (5, 8, 64):
        x = torch.full((num_rows, case.hidden), NAN, dtype=dtype)
        mask = torch.zeros(num_rows, dtype=torch.int32)
        rows = torch.arange(5) * (num_rows // 5)
        x[rows], mask[rows] = case.x, 1
        output = torch.full_like(x, NAN)
        run = kernels.compile(layer, [x, mask], [output])
        run()
        run()
        padding = output[mask == 0]
        assert same_bits(padding, torch.zeros_like(padding))
        assert len(run.steps) == 1
        outputs.append(output[rows])

    assert same_bits(outputs[0], layer(case.x, tokens(5)))
    assert all(same_bits(output, outputs[0]) for output in outputs)


@CPU_DTYPES
def test_number_of_threads_changes_no_bit(dtype: torch.dtype):
    case = Case(dtype, num_rows=70, hidden=64, inner=130)
    experts, threads = case.make(CPU), torch.get_num_threads()

    try:
        torch.set_num_threads(1)
        alone = experts(case.x, case.experts, case.weights)
        torch.set_num_threads(5)
        together = experts(case.x, case.experts, case.weights)
    finally:
        torch.set_num_threads(threads)

    assert same_bits(alone, together)


def test_only_rows_of_an_expert_are_multiplied():
    """What the kernels group: each row once per expert of its own, the others nowhere."""
    experts = int32([[2, 0], [-1, -1], [0, 5], [2, -1], [7, -2]])

    starts, rows, places = OPERATORS["group_rows"].apply(CPU._library, experts, 6)

    assert starts.tolist() == [0, 2, 2, 4, 4, 4, 5]
    assert rows[:5].tolist() == [0, 2, 0, 3, 2]
    assert places.tolist() == [[2, 0], [-1, -1], [1, 4], [3, -1], [-1, -1]]


@pytest.mark.parametrize("kernels", [CPU, REFERENCE], ids=["cpu", "reference"])
def test_inputs_that_do_not_fit_are_refused(kernels):
    case = Case(torch.float32)
    experts = case.make(kernels)

    with pytest.raises(ValueError, match=r"x has shape \(13, 23\)|packed weights has shape"):
        experts(case.x[:, :23].contiguous(), case.experts, case.weights)
    with pytest.raises(ValueError, match=r"x has dtype torch.bfloat16, expected torch.float32"):
        experts(case.x.bfloat16(), case.experts, case.weights)
    with pytest.raises(ValueError, match=r"(x|experts) has shape \(1[23], 2?4?\)"):
        experts(case.x[:12], case.experts, case.weights)
    with pytest.raises(ValueError, match=r"experts has dtype torch.int64"):
        experts(case.x, case.experts.long(), case.weights)
    with pytest.raises(ValueError, match=r"expert weights has dtype torch.bfloat16"):
        experts(case.x, case.experts, case.weights.bfloat16())
    with pytest.raises(ValueError, match=r"gate_up has shape \(6, 80, 24\)"):
        kernels.make_experts(case.gate_up, case.down[..., :39], "silu")
    with pytest.raises(ValueError, match="experts have the activation 'gelu', expected silu"):
        kernels.make_experts(case.gate_up, case.down, "gelu")


def test_unknown_experts_are_refused_by_the_reference_and_skipped_on_the_cpu():
    case = Case(torch.float32)
    case.experts[3] = int32([6, -5])

    with pytest.raises(ValueError, match="expert 6 is not one of 6, nor -1"):
        case.make(REFERENCE)(case.x, case.experts, case.weights)
    assert not case.make(CPU)(case.x, case.experts, case.weights)[3].any()
