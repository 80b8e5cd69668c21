"""The operators of `noria_neuron`: schemas, what they change, and the bits of their twins."""

from __future__ import annotations

import pytest
import torch
from attention_cases import FP8, Heads, Layout, Request, Step, same_bits
from nki_kernels import make_nki_decode, make_nki_prefill
from torch import Tensor

from noria.kernels.neuron.operators import OPERATORS, Operator
from noria.kernels.neuron.target import NeuronKernels
from noria.kernels.nki.target import NkiSimKernels

SIMULATED, TWINS = NkiSimKernels(), NeuronKernels(device="cpu")
REQUESTS = [Request(70, 4, 1), Request(0, 3, 2), Request(15, 1, 3)]
F32 = torch.float32
MAKERS = pytest.mark.parametrize("make", [make_nki_prefill, make_nki_decode])
HEADS = {
    "f32": Heads(dtype=F32, block_size=16),
    "bf16": Heads(dtype=torch.bfloat16, block_size=16),
    "window": Heads(dtype=F32, block_size=16, window=20),
    "softcap": Heads(dtype=F32, block_size=16, softcap=3.0),
    "fp8": Heads(dtype=torch.bfloat16, cache_dtype=FP8, block_size=16, k_scale=0.5, v_scale=2.0),
}


def cache_bytes(cache: Tensor) -> Tensor:
    return cache.view(torch.uint8)


@MAKERS
@pytest.mark.parametrize("heads", HEADS.values(), ids=HEADS.keys())
def test_twins_give_the_bits_of_the_simulated_target(make, heads: Heads) -> None:
    step: Step = make(REQUESTS, heads, Layout(filler=float("nan")))

    got, expected = step.run(TWINS), step.run(SIMULATED)

    assert same_bits(got[0], expected[0])
    for cache, wanted in zip(got[1:], expected[1:], strict=True):
        assert torch.equal(cache_bytes(cache), cache_bytes(wanted))


@pytest.mark.parametrize("operator", OPERATORS.values(), ids=OPERATORS.keys())
def test_a_schema_declares_what_is_changed_and_returns_no_cache(operator) -> None:
    schema = getattr(torch.ops.noria_neuron, operator.function.__name__).default._schema

    changed = [one.name for one in schema.arguments if one.alias_info and one.alias_info.is_write]
    assert changed == list(operator.mutates)
    assert all(one.alias_info is None for one in schema.returns)
    assert len(schema.returns) == (not operator.mutates)


@MAKERS
@pytest.mark.parametrize("name", sorted(HEADS.keys() - {"fp8"}))  # torch compares no FP8
def test_twins_pass_the_checks_of_torch_for_custom_operators(make, name, monkeypatch) -> None:
    """Schema and aliasing, and the fake's results against the real ones."""
    calls = []
    monkeypatch.setattr(Operator, "call", lambda self, *args: record(calls, self, args))
    make(REQUESTS, HEADS[name]).run(TWINS)

    assert len(calls) == 2
    for overload, arguments in calls:
        torch.library.opcheck(overload, arguments, test_utils=("test_schema", "test_faketensor"))


def record(calls: list, operator: Operator, arguments: tuple) -> object:
    """Note a call with copies of its arguments, and do it."""
    overload = getattr(torch.ops.noria_neuron, operator.function.__name__).default
    copies = tuple(a.clone() if isinstance(a, Tensor) else a for a in arguments)
    calls.append((overload, copies))
    return overload(*arguments)


def test_a_twin_takes_dense_tensors_only() -> None:
    cache = torch.zeros(2, 4, 3, 8)
    new = torch.zeros(3, 5, 8).transpose(0, 1)

    with pytest.raises(ValueError, match=r"strides \(8, 40, 1\), expected dense rows"):
        torch.ops.noria_neuron.kv_write(cache, cache.clone(), new, new, torch.zeros(5, 1).int())
