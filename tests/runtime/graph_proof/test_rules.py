"""A small graph that breaks one rule is refused by exactly that rule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from noria.kernels.neuron import operators
from noria.runtime.graph_proof.capture import DEVICE, Capture, capture
from noria.runtime.graph_proof.proof import prove, rules_for

FLOATS = ((4, 8), torch.float32)
INTS = ((4, 8), torch.int32)
LONGS = ((4, 8), torch.int64)
BOOLS = ((4, 8), torch.bool)
PLACES = ((4, 2), torch.int64)
CACHE = ((16, 8, 2, 4), torch.float32)
SLOTS = ((4, 1), torch.int32)
NEW = ((4, 2, 4), torch.float32)
Kind = tuple[tuple[int, ...], torch.dtype]


class Toy(nn.Module):
    """A function with a weight."""

    weight: Tensor

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.register_buffer("weight", torch.ones(4, 8))

    def forward(self, *arguments: Tensor) -> Any:
        return self.function(self, *arguments)


@dataclass(frozen=True)
class Case:
    """A rule, and what breaks it: inputs of these kinds, of which the first may be caches."""

    rule: str
    function: Callable[..., Any]
    kinds: Sequence[Kind] = (FLOATS,)
    num_caches: int = 0

    @property
    def captured(self) -> Capture:
        inputs = [torch.zeros(shape, dtype=dtype, device=DEVICE) for shape, dtype in self.kinds]
        return capture("toy", Toy(self.function), inputs, inputs[: self.num_caches])


def breaks_the_graph(toy: Toy, x: Tensor) -> Tensor:
    torch._dynamo.graph_break()
    return x + 1


def prints(toy: Toy, x: Tensor) -> Tensor:
    print("x")
    return x + 1


def branches(toy: Toy, x: Tensor) -> Tensor:
    return x + 1 if x.sum() > 0 else x


def checks(toy: Toy, x: Tensor) -> Tensor:
    if not (x >= 0).all():
        raise ValueError(f"{int(x.min())} is negative")
    return x + 1


def adds_to(toy: Toy, x: Tensor) -> None:
    x.add_(1)


def writes_at(toy: Toy, x: Tensor, places: Tensor) -> None:
    x[places[:, 0]] = 0.0


def writes_a_view(toy: Toy, x: Tensor) -> None:
    x[0].copy_(x[1])


def adds_to_the_weight(toy: Toy, x: Tensor) -> Tensor:
    toy.weight.add_(1)
    return x + toy.weight


def writes_a_part_of_a_result(toy: Toy, x: Tensor) -> Tensor:
    y = x + 1
    y[0].add_(1)
    return y


def writes_a_part_of_a_cache(
    toy: Toy, k_cache: Tensor, v_cache: Tensor, new: Tensor, slots: Tensor
) -> None:
    operators.KV_WRITE.call(k_cache[1:], v_cache[1:], new, new, slots)


def counts_past_the_table(toy: Toy, x: Tensor) -> Tensor:
    return x.index_select(0, torch.arange(5, dtype=torch.int32, device=x.device))


CASES = [
    Case("one-graph", breaks_the_graph),
    Case("one-graph", prints),
    Case("no-data-dependent-shape", lambda toy, x: x.nonzero()),
    Case("no-data-dependent-shape", lambda toy, x: x[x > 0]),
    Case("no-data-dependent-shape", lambda toy, x: x.unique()),
    Case("no-host-sync", lambda toy, x: x + x.sum().item()),
    Case("no-host-sync", lambda toy, x: torch.ones(int(x[0, 0]), device=x.device)),
    Case("no-host-sync", lambda toy, x: x[0].tolist()),
    Case("no-host-sync", lambda toy, x: x[0].tolist(), (INTS,)),
    Case("no-host-sync", branches),
    Case("no-host-sync", checks),
    Case("one-device", lambda toy, x: x + torch.arange(8)),
    Case("one-device", lambda toy, x: x.cpu()),
    Case("no-empty-tensor", lambda toy, x: x[:0]),
    Case(
        "memory-format",
        lambda toy, x: x.clone(memory_format=torch.channels_last),
        (((2, 3, 4, 5), torch.float32),),
    ),
    Case("lookup-in-range", counts_past_the_table),
    Case("declared-mutations", adds_to, (CACHE,), 1),
    Case("declared-mutations", writes_at, (CACHE, PLACES), 1),
    Case("declared-mutations", writes_a_view, (CACHE,), 1),
    Case("declared-mutations", adds_to),
    Case("declared-mutations", adds_to_the_weight),
    Case("no-view-changed", writes_a_part_of_a_result),
    Case("no-view-changed", writes_a_part_of_a_cache, (CACHE, CACHE, NEW, SLOTS), 2),
    Case("caches-stay", lambda toy, x: x[0], (CACHE,), 1),
    Case("no-float64", lambda toy, x: x.double()),
    Case("no-complex", lambda toy, x: x.to(torch.complex64)),
    Case("int64-indices-only", lambda toy, i: i + 1, (LONGS,)),
    Case("int64-indices-only", lambda toy, x: x.argmax(dim=1) + 1),
    Case("int64-indices-only", lambda toy, i: i.sum(dim=1), (INTS,)),
    Case("no-integer-matmul", lambda toy, i: i @ i.t(), (LONGS,)),
    Case("no-integer-matmul", lambda toy, i: i @ i.t(), (INTS,)),
    Case("no-integer-topk", lambda toy, i: i.topk(2, dim=1), (INTS,)),
    Case(
        "no-integer-scatter-reduce",
        lambda toy, i, at: i.scatter_add(1, at, i[:, :2].clone()),
        (INTS, PLACES),
    ),
    Case("no-int64-pow", lambda toy, i: i**2, (LONGS,)),
    Case("shift-32-bits", lambda toy, i: i >> 1, (((4, 8), torch.int16),)),
    Case("constants-32-bits", lambda toy, i: i + 2**40, (INTS,)),
    Case(
        "no-bool-scatter",
        lambda toy, m, at: m.scatter(1, at, m[:, :2].clone()),
        (BOOLS, PLACES),
    ),
    Case("no-bool-scan", lambda toy, m: m.cumsum(1, dtype=torch.int32), (BOOLS,)),
    Case("no-bool-sort", lambda toy, m: m.sort(dim=1)[0], (BOOLS,)),
    Case("fp8-format", lambda toy, x: x.to(torch.float8_e4m3fn)),
    Case("known-operator", lambda toy, x: torch.special.bessel_j0(x)),
]
"""Of every rule that a function can break; inputs and sizes that are no numbers have tests."""


def rules_broken(captured: Capture, target: str = "trn2") -> set[str]:
    return {one.rule for one in prove(captured, rules_for(target)).violations}


@pytest.fixture(autouse=True)
def twins() -> None:
    operators.register_twins()


@pytest.mark.parametrize("case", CASES, ids=[f"{i}-{case.rule}" for i, case in enumerate(CASES)])
def test_what_breaks_a_rule_is_refused_by_exactly_that_rule(case: Case) -> None:
    proof = prove(case.captured, rules_for("trn2"))

    assert {one.rule for one in proof.violations} == {case.rule}
    assert all(".py:" in one.line for one in proof.violations)


def test_every_rule_has_a_graph_that_breaks_it() -> None:
    elsewhere = {"no-symbolic-shape", "inputs-distinct", "inputs-dense"}

    assert {case.rule for case in CASES} | elsewhere == {rule.id for rule in rules_for("trn2")}


def test_a_size_that_is_no_number_is_refused() -> None:
    graph = make_fx(lambda x: x + 1, tracing_mode="symbolic")(torch.zeros(4, 8, device=DEVICE))

    broken = rules_broken(Capture("toy", list(graph.graph.nodes), {}, {}, (), ()))

    assert broken == {"no-symbolic-shape"}


def test_a_tensor_that_is_given_twice_is_refused() -> None:
    x = torch.zeros(4, 8, device=DEVICE)

    assert rules_broken(capture("toy", Toy(lambda toy, x, y: x + y), [x, x])) == {"inputs-distinct"}


def test_an_input_with_strides_is_refused() -> None:
    x = torch.zeros(8, 4, device=DEVICE).t()

    assert rules_broken(capture("toy", Toy(lambda toy, x: x + 1), [x])) == {"inputs-dense"}


def writes_as_declared(toy: Toy, k: Tensor, v: Tensor, new: Tensor, slots: Tensor) -> Tensor:
    operators.KV_WRITE.call(k, v, new, new, slots)
    y = new + 1
    y.mul_(2).add_(1)  # a whole result, twice
    ids = y.flatten(1).argmax(dim=1).int()
    counts = torch.arange(4, dtype=torch.int32, device=ids.device)
    return y.index_select(0, counts) + ids[:, None, None]


def test_a_graph_that_keeps_all_rules_is_proved() -> None:
    case = Case("", writes_as_declared, (CACHE, CACHE, NEW, SLOTS), 2)

    proof = prove(case.captured, rules_for("trn2"))

    assert proof.violations == ()
    assert "noria_neuron.kv_write.default" in proof.operators


def test_a_newer_generation_has_the_fp8_format_of_caches() -> None:
    (case,) = (case for case in CASES if case.rule == "fp8-format")

    assert rules_broken(case.captured, "trn3") == set()


def test_a_view_is_not_named_for_what_it_shows() -> None:
    captured = Case("", lambda toy, x: x.double()[0].unsqueeze(0)).captured

    (violation,) = prove(captured, rules_for("trn2")).violations

    assert (violation.rule, violation.num_nodes) == ("no-float64", 1)


def test_the_same_line_in_many_nodes_is_one_violation() -> None:
    def many(toy: Toy, x: Tensor) -> Sequence[Tensor]:
        return [(x + index).double() for index in range(3)]

    (violation,) = prove(Case("", many).captured, rules_for("trn2")).violations

    assert violation.num_nodes == 3
