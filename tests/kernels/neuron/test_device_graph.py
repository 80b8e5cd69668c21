"""Graphs bound to a device's buffers: what is sent, what stays there, what comes back."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn

from noria.kernels.neuron.device_graph import DeviceGraph, move_weights


class Device:
    """A device in this machine's memory; what it holds is listed. Nothing is compiled."""

    device = torch.device("cpu")

    def __init__(self, *held: Tensor) -> None:
        self.held = held
        self.num_waits = 0
        self.calls: list[tuple[Tensor, ...]] = []

    def compile(self, module: nn.Module):
        def call(*tensors: Tensor):
            self.calls.append(tensors)
            return module(*tensors)

        return call

    def synchronize(self) -> None:
        self.num_waits += 1

    def only_compiled(self):
        return nullcontext()

    def has(self, tensor: Tensor) -> bool:
        return any(one is tensor for one in self.held)

    def build(self, graph: nn.Module, inputs, outputs) -> DeviceGraph:
        return DeviceGraph(self, graph, inputs, outputs, self.has)


class Sums(nn.Module):
    """Adds nested inputs of two dtypes to a buffer on the device; returns three values."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.tensor([10.0, 20.0]))

    def forward(self, inputs: dict[str, Tensor], state: Tensor):
        total = state + self.weight + inputs["a"][0] + inputs["b"]
        return total, inputs["ids"].sum(dtype=torch.int32), total * 2


@pytest.fixture
def inputs() -> dict[str, Tensor]:
    return {
        "a": torch.tensor([[1.0, 2.0], [5.0, 5.0]]),
        "ids": torch.tensor([1, 2, 3], dtype=torch.int32),
        "b": torch.tensor(0.5),
    }


def test_every_run_sends_what_the_host_wrote_and_leaves_results_where_they_belong(inputs) -> None:
    state, doubled, count = torch.zeros(2), torch.zeros(2), torch.zeros((), dtype=torch.int32)
    device = Device(state, doubled)
    graph = device.build(Sums(), [inputs, state], [state, count, doubled])
    assert device.num_waits == 1
    assert state.tolist() == [11.5, 22.5]  # the first run is the one that compiles

    inputs["a"][0] = torch.tensor([2.0, 1.0])
    inputs["ids"].fill_(7)
    graph.run()

    assert state.tolist() == [24.0, 44.0]
    assert doubled.tolist() == [48.0, 88.0]
    assert count.item() == 21
    graph.run()
    assert state.tolist() == [36.5, 65.5]


def test_the_host_sends_one_tensor_of_each_dtype(inputs) -> None:
    state, out = torch.zeros(2), torch.zeros(2)
    device = Device(state)
    device.build(Sums(), [inputs, state], [state, torch.zeros((), dtype=torch.int32), out])

    sizes = sorted((str(one.dtype), one.numel()) for one in device.calls[0])
    floats = [("torch.float32", size) for size in (2, 2, 5)]  # state, weights, what is sent
    assert sizes == [*floats, ("torch.int32", 3)]


def test_results_that_do_not_fit_their_buffers_are_refused(inputs) -> None:
    state = torch.zeros(2)
    for outputs, problem in (
        ([state], r"returns 3 values, not 1"),
        ([state, torch.zeros(1), state], r"shape \(\), expected \(1,\)"),
        ([state, torch.zeros(()), state], r"int32, expected torch.float32"),
    ):
        with pytest.raises(ValueError, match=problem):
            Device(state).build(Sums(), [inputs, state], outputs)


class Swap(nn.Module):
    """Returns its inputs in the other order."""

    def forward(self, first: Tensor, second: Tensor):
        return second, first


def test_outputs_that_are_inputs_are_written_after_all_was_read() -> None:
    first, second = torch.ones(3), torch.full((3,), 2.0)

    Device(first, second).build(Swap(), [first, second], [first, second])

    assert (first.tolist(), second.tolist()) == ([2.0] * 3, [1.0] * 3)


class Tied(nn.Module):
    """Two modules with one weight."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.first, self.second = nn.Module(), nn.Module()
        for one in (self.first, self.second):
            one.register_buffer("weight", weight)


def test_tied_weights_stay_tied_when_they_move() -> None:
    module = Tied(torch.ones(2))
    move_weights(module, torch.device("meta"))
    assert module.first.weight is module.second.weight
    assert module.first.weight.is_meta

    move_weights(module, torch.device("cpu"))
    assert module.first.weight is module.second.weight
    assert module.first.weight.tolist() == [0, 0]
