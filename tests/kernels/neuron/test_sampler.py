"""The sampler of a device against brute force and the reference, and what its graphs hold."""

from __future__ import annotations

import math
import re
from collections import Counter

import pytest
import torch
from brute_sampler import kept_tokens, midpoints
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from noria.kernels.neuron.target import NeuronKernels
from noria.kernels.reference import ReferenceKernels

KERNELS, REFERENCE = NeuronKernels(device="cpu"), ReferenceKernels()
LARGEST_UNIFORM = 1 - 2**-24
INF, NAN = math.inf, math.nan


def arguments(rows: int, uniform, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0) -> list[Tensor]:
    def per_row(value: float | list[float], dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.tensor(value if isinstance(value, list) else [value] * rows, dtype=dtype)

    floats = [per_row(value) for value in (top_p, min_p, uniform)]
    return [per_row(temperature), per_row(top_k, torch.int32), *floats]


@settings(max_examples=200, deadline=None)
@given(
    logits=st.lists(st.integers(-12, 12).map(lambda n: n / 2), min_size=1, max_size=12),
    temperature=st.sampled_from([0.25, 0.5, 1.0, 2.0]),
    top_k=st.sampled_from([0, 1, 2, 3, 5, 100]),
    top_p=st.sampled_from([0.0, 0.1, 0.3, 0.5, 0.75, 0.9, 0.99, 1.0]),
    min_p=st.sampled_from([0.0, 0.01, 0.1, 0.3, 0.7, 1.0]),
)
def test_kept_set_is_the_brute_force_one(logits, temperature, top_k, top_p, min_p) -> None:
    """Ties included: the small grid of logits makes them common."""
    top_p, min_p = float(torch.tensor(top_p)), float(torch.tensor(min_p))
    filters = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    kept = kept_tokens(logits, **filters)
    assume(min(kept.values()) > 1e-5)

    inside = [*midpoints(kept).values(), 0.0, LARGEST_UNIFORM]
    rows = torch.tensor([logits] * len(inside))
    tokens = KERNELS.sample(rows, *arguments(len(inside), inside, **filters))

    assert tokens.tolist() == [*kept, min(kept), max(kept)]


def test_a_goal_that_nothing_exceeds_takes_the_last_token_kept() -> None:
    logits = torch.tensor([[3.0, 1.0, 2.0, -9.0]])

    assert KERNELS.sample(logits, *arguments(1, 1.0, top_k=3)).tolist() == [2]


def test_draws_are_those_of_the_reference_but_where_fp32_rounds_otherwise() -> None:
    generator = torch.Generator().manual_seed(5)
    logits = torch.randn(4000, 997, generator=generator) * 4
    uniform = torch.rand(4000, generator=generator).tolist()
    given_ = arguments(4000, uniform, temperature=0.8, top_k=200, top_p=0.95)

    equal = KERNELS.sample(logits, *given_) == REFERENCE.sample(logits, *given_)

    assert equal.float().mean() > 0.995


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ([1.0, 3.0, 3.0, 2.0], 1),
        ([0.0, -0.0], 0),
        ([INF, 1.0, INF], 0),
        ([-INF, -INF, -5.0], 2),
        ([-INF, -INF], -1),
        ([1.0, NAN], -1),
    ],
)
def test_rows_at_the_edges(row: list[float], expected: int) -> None:
    logits = torch.tensor([row])

    assert KERNELS.greedy(logits).tolist() == [expected]
    for temperature in (0.0, 1e-30):
        one = arguments(1, 0.0, temperature=temperature)
        assert KERNELS.sample(logits, *one).tolist() == [expected]


class Every(nn.Module):
    """All operators of a sampler in one graph."""

    def forward(self, logits: Tensor, ids: Tensor, words: Tensor, row: Tensor, k: Tensor):
        bias = ids * 0.5
        logits = KERNELS.penalize(logits, ids, ids.abs(), row, row, row)
        logits = KERNELS.mask_logits(KERNELS.add_bias(logits, ids, bias), words)
        chosen = KERNELS.sample(logits, row, k, row, row, row)
        return chosen, KERNELS.greedy(logits), *KERNELS.top_logprobs(logits, chosen, 3)


def test_a_graph_holds_no_64_bit_numbers_but_what_a_sort_returns_unused() -> None:
    int32 = torch.ones((2, 3), dtype=torch.int32)
    row = torch.ones(2)
    inputs = (torch.randn(2, 61), int32, int32[:, :2].contiguous(), row, int32[:, 0].contiguous())
    with torch.no_grad():
        graph = torch.export.export(Every(), inputs, strict=False).graph

    wide = Counter(
        node.name
        for node in graph.nodes
        if isinstance(value := node.meta.get("val"), Tensor)
        if value.dtype in (torch.int64, torch.float64) and node.users
    )
    called = {str(node.target) for node in graph.nodes if node.op == "call_function"}
    assert wide == {}
    assert not [name for name in called if re.search("argmax|scatter|gather", name)]
