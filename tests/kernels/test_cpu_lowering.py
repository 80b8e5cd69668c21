"""Torch operators between ours, views and outputs in lowered graphs; what is refused."""

import pytest
import torch
from attention_cases import same_bits
from torch import Tensor, nn

from noria.kernels.cpu import CpuKernels

KERNELS = CpuKernels()


class Torch(nn.Module):
    """Operators of torch between ours, of every kind that lowering tells apart."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        x = KERNELS.rms_norm(x, weight, 1e-5)
        if self.kind == "function":
            x = x * 2 + x.flip(0)
        elif self.kind == "two results":
            values, order = x.sort(dim=1)
            x = values + order
        elif self.kind == "in place":
            x = x.clone()
            x.mul_(3)
        elif self.kind == "copying reshape":
            x = x.t().reshape(4, 8)
        elif self.kind == "views":
            x = x[1:3].unsqueeze(0).expand(2, 2, 8).reshape(4, 8)
        elif self.kind == "last":
            return KERNELS.rms_norm(x.contiguous(), weight, 1e-5).t().contiguous().view(4, 8)
        elif self.kind == "unused":
            KERNELS.silu_mul(x)
        elif self.kind == "input":
            return weight.expand(4, 8)
        return KERNELS.rms_norm(x, weight, 1e-5)


KINDS = [
    *("function", "two results", "in place", "copying reshape"),
    *("views", "last", "unused", "input"),
]


@pytest.mark.parametrize("kind", KINDS)
def test_torch_operators_run_between_commands(kind: str):
    x, weight = torch.randn(4, 8), torch.rand(8) + 0.5
    output = torch.zeros(4, 8)
    run = KERNELS.compile(Torch(kind), [x, weight], [output])

    for _ in range(3):
        x.copy_(torch.randn(4, 8))
        run()
        assert same_bits(output, Torch(kind)(x, weight).contiguous())


def test_the_result_may_be_a_view_of_an_operators_result():
    class Reshaped(nn.Module):
        def forward(self, x: Tensor, weight: Tensor) -> Tensor:
            return KERNELS.rms_norm(x, weight, 1e-5).view(2, 2, 8)

    class Part(nn.Module):
        def forward(self, x: Tensor, weight: Tensor) -> Tensor:
            return KERNELS.rms_norm(x, weight, 1e-5)[1:3]

    x, weight = torch.randn(4, 8), torch.rand(8) + 0.5
    outputs = [torch.zeros(2, 2, 8), torch.zeros(2, 8)]
    runs = [
        KERNELS.compile(graph, [x, weight], [output])
        for graph, output in zip((Reshaped(), Part()), outputs, strict=True)
    ]

    for run in runs:
        run()

    expected = KERNELS.rms_norm(x, weight, 1e-5)
    assert same_bits(outputs[0], expected.view(2, 2, 8))
    assert same_bits(outputs[1], expected[1:3])
    assert [len(run.steps) for run in runs] == [1, 2]


def test_an_output_that_is_also_an_input_is_written_last():
    class Twice(nn.Module):
        def forward(self, x: Tensor, weight: Tensor) -> Tensor:
            normed = KERNELS.rms_norm(x, weight, 1e-5)
            return KERNELS.add_rms_norm(normed, x, weight, 1e-5)[1]

    x, weight = torch.randn(4, 8), torch.rand(8) + 0.5
    expected = Twice()(x, weight)

    KERNELS.compile(Twice(), [x, weight], [x])()

    assert same_bits(x, expected)


def test_an_output_buffer_that_does_not_fit_is_refused():
    x, weight = torch.ones(4, 8), torch.ones(8)

    for output in (torch.zeros(4, 7), torch.zeros(4, 8, dtype=torch.bfloat16)):
        with pytest.raises(ValueError, match="output buffer is"):
            KERNELS.compile(Torch("unused"), [x, weight], [output])


class Results(nn.Module):
    """A graph whose results are chosen by a function of x and weight."""

    def __init__(self, results) -> None:
        super().__init__()
        self.results = results

    def forward(self, x: Tensor, weight: Tensor):
        return self.results(x, weight)


RESULTS = {
    "none": (lambda x, w: None, 0),
    "one in a tuple": (lambda x, w: (KERNELS.rms_norm(x, w, 1e-5),), 1),
    "both of an operator": (lambda x, w: KERNELS.add_rms_norm(x, x.flip(0), w, 1e-5), 2),
    "both, in the other order": (
        lambda x, w: KERNELS.add_rms_norm(x, x.flip(0), w, 1e-5)[::-1],
        2,
    ),
    "one twice": (lambda x, w: (KERNELS.rms_norm(x, w, 1e-5),) * 2, 2),
    "one and what is computed from it": (
        lambda x, w: ((y := KERNELS.rms_norm(x, w, 1e-5)), KERNELS.rms_norm(y, w, 1.0)),
        2,
    ),
    "of torch and an input": (lambda x, w: (x * 2, KERNELS.rms_norm(x, w, 1e-5), x), 3),
}


@pytest.mark.parametrize("name", RESULTS)
def test_a_graph_has_any_number_of_results(name: str):
    results, number = RESULTS[name]
    x, weight = torch.randn(4, 8), torch.rand(8) + 0.5
    outputs = [torch.full((4, 8), float("nan")) for _ in range(number)]
    run = KERNELS.compile(Results(results), [x, weight], outputs)

    for _ in range(2):
        x.copy_(torch.randn(4, 8))
        run()
        expected = results(x, weight) or ()
        for output, value in zip(outputs, expected, strict=True):
            assert same_bits(output, value)


def test_all_results_of_operators_are_computed_in_their_outputs():
    results, _ = RESULTS["both of an operator"]
    outputs = [torch.zeros(4, 8), torch.zeros(4, 8)]

    run = KERNELS.compile(Results(results), [torch.ones(4, 8), torch.ones(8)], outputs)

    assert len(run.steps) == 2  # x.flip, then commands: nothing is copied


def test_outputs_that_are_also_inputs_may_be_exchanged():
    x, y = torch.randn(4, 8), torch.randn(4, 8)
    before = y.clone(), x.clone()
    run = KERNELS.compile(Results(lambda x, y: (y, x)), [x, y], [x, y])

    run()

    assert same_bits(x, before[0])
    assert same_bits(y, before[1])


@pytest.mark.parametrize("number", [0, 1, 3])
def test_another_number_of_results_than_outputs_is_refused(number: int):
    results, _ = RESULTS["both of an operator"]
    outputs = [torch.zeros(4, 8) for _ in range(number)]

    with pytest.raises(ValueError, match=f"the graph returns 2 values, not {number}"):
        KERNELS.compile(Results(results), [torch.ones(4, 8), torch.ones(8)], outputs)


def test_wrong_shapes_are_refused_when_compiling():
    with pytest.raises(ValueError, match=r"x has shape \(4, 8\), expected \(4, 7\)"):
        KERNELS.compile(Torch("unused"), [torch.ones(4, 8), torch.ones(7)], [torch.zeros(4, 8)])


def test_data_dependent_shapes_are_refused():
    class Unknown(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x[x > 0]

    with pytest.raises(ValueError, match="shape that is not static"):
        KERNELS.compile(Unknown(), [torch.ones(4)], [torch.zeros(4)])
