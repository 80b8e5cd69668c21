"""Penalties, bias, masks and logprobs of every target against brute force, and at their edges."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch
from brute_sampler import logprobs, penalized
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from noria.kernels.cpu import CpuKernels
from noria.kernels.kernel_set import KernelSet
from noria.kernels.neuron.target import NeuronKernels
from noria.kernels.reference import ReferenceKernels

REFERENCE, CPU = ReferenceKernels(), CpuKernels()
NEURON = NeuronKernels(device="cpu")
TARGETS = pytest.mark.parametrize(
    "kernels", [REFERENCE, CPU, NEURON], ids=["reference", "cpu", "neuron"]
)
VOCABS = [1, 15, 16, 31, 32, 33, 61, 64, 100, 4099]


def random_logits(rows: int, vocab: int = 61, seed: int = 0) -> Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * 3


def ids_tensor(lists: list[list[int]], width: int) -> Tensor:
    return torch.tensor([[*ids, *[-1] * (width - len(ids))] for ids in lists], dtype=torch.int32)


def history(
    prompts: list[list[int]], outputs: list[list[int]], width: int
) -> tuple[Tensor, Tensor]:
    """Return distinct ids and output counts, in any order."""
    listed = [sorted({*p, *o}, key=hash) for p, o in zip(prompts, outputs, strict=True)]
    counts = [[o.count(i) for i in ids] for ids, o in zip(listed, outputs, strict=True)]
    return ids_tensor(listed, width), ids_tensor(counts, width).clamp(min=0)


@TARGETS
@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    repetition=st.sampled_from([0.5, 1.0, 1.3, 2.0]),
    presence=st.sampled_from([-2.0, 0.0, 0.7]),
    frequency=st.sampled_from([-0.5, 0.0, 1.0]),
)
def test_penalties_are_those_of_brute_force(kernels, seed, repetition, presence, frequency):
    rng = random.Random(seed)
    vocab, rows = rng.choice(VOCABS), 3
    prompts, outputs = (
        [[rng.randrange(vocab) for _ in range(rng.randrange(9))] for _ in range(rows)]
        for _ in range(2)
    )
    logits = random_logits(rows, vocab, seed)
    values = {"repetition": repetition, "presence": presence, "frequency": frequency}

    got = kernels.penalize(
        logits,
        *history(prompts, outputs, 20),
        *(torch.full((rows,), value) for value in values.values()),
    )

    rounded = {name: float(np.float32(value)) for name, value in values.items()}
    for row in range(rows):
        expected = penalized(
            logits[row].tolist(), prompt=prompts[row], output=outputs[row], **rounded
        )
        torch.testing.assert_close(got[row], torch.tensor(expected), rtol=1e-6, atol=1e-6)


@TARGETS
def test_penalties_that_change_nothing_change_no_bit(kernels: KernelSet):
    logits = random_logits(2)
    ids, counts = history([[3, 4], []], [[4, 4], [60]], 8)
    one, zero = torch.ones(2), torch.zeros(2)

    assert torch.equal(kernels.penalize(logits, ids, counts, one, zero, zero), logits)
    assert not torch.equal(kernels.penalize(logits, ids, counts, 2 * one, zero, zero), logits)


@TARGETS
@pytest.mark.parametrize("bad", [-1, -7, 61, 2**31 - 1])
def test_i06_padding_of_a_list_counts_for_nothing(kernels: KernelSet, bad: int):
    """The same history in a row of another width, its padding set to what no token has."""
    logits = random_logits(1)
    strong = [torch.full((1,), value) for value in (1.5, 0.5, 1.0)]
    ids, counts = history([[0, 5]], [[5, 9, 9]], 3)
    wide_ids, wide_counts = history([[0, 5]], [[5, 9, 9]], 40)
    wide_ids[wide_ids < 0] = bad
    wide_counts[wide_ids == bad] = 7

    assert torch.equal(
        kernels.penalize(logits, ids, counts, *strong),
        kernels.penalize(logits, wide_ids, wide_counts, *strong),
    )


@TARGETS
def test_a_banned_token_stays_banned_under_every_penalty(kernels: KernelSet):
    logits = torch.full((1, 4), -math.inf)
    ids, counts = history([[0]], [[1, 1]], 4)
    values = [torch.full((1,), value) for value in (0.5, -2.0, -2.0)]

    assert torch.equal(kernels.penalize(logits, ids, counts, *values), logits)


@TARGETS
@pytest.mark.parametrize("vocab", VOCABS)
def test_bias_is_added_to_the_listed_ids_only(kernels: KernelSet, vocab: int):
    logits = random_logits(3, vocab)
    lists = [[vocab - 1], [0, vocab // 2] if vocab > 2 else [0], []]
    ids = ids_tensor(lists, 5)
    bias = torch.tensor([[-math.inf, 9, 9, 9, 9], [2.5, -100, 9, 9, 9], [9.0] * 5])

    got = kernels.add_bias(logits, ids, bias)

    expected = logits.clone()
    for row, listed in enumerate(lists):
        for place, token_id in enumerate(listed):
            expected[row, token_id] += bias[row, place]
    assert torch.equal(got, expected)
    assert got[0, vocab - 1] == -math.inf


@TARGETS
@pytest.mark.parametrize("vocab", VOCABS)
def test_a_mask_leaves_what_its_bits_allow(kernels: KernelSet, vocab: int):
    logits = random_logits(4, vocab)
    is_allowed = torch.rand(4, vocab, generator=torch.Generator().manual_seed(5)) < 0.5
    is_allowed[0], is_allowed[1] = True, False

    got = kernels.mask_logits(logits, bitmask(is_allowed))

    assert torch.equal(got, torch.where(is_allowed, logits, -math.inf))
    assert kernels.greedy(got)[1] == -1, "nothing is allowed"


@TARGETS
def test_i08_a_mask_hides_no_nan(kernels: KernelSet):
    logits = random_logits(2)
    logits[1, 40] = math.nan
    is_allowed = torch.zeros(2, 61, dtype=torch.bool)
    is_allowed[:, 7] = True

    masked = kernels.mask_logits(logits, bitmask(is_allowed))

    assert kernels.greedy(masked).tolist() == [7, -1]


@TARGETS
@settings(max_examples=60, deadline=None)
@given(
    logits=st.lists(st.integers(-12, 12).map(lambda n: n / 2), min_size=1, max_size=70),
    num=st.sampled_from([0, 1, 3, 20, 70, 100]),
    pick=st.integers(0, 10**6),
)
def test_logprobs_are_those_of_brute_force(kernels, logits, num, pick):
    """Ties included: the small grid of logits makes them common."""
    token_id = pick % len(logits)
    expected = logprobs(logits)

    values, top_ids, ranks = kernels.top_logprobs(
        torch.tensor([logits]), torch.tensor([token_id], dtype=torch.int32), num
    )

    ranked = list(expected)
    missing = max(0, num - len(logits))
    assert top_ids.tolist() == [ranked[:num] + [-1] * missing]
    assert ranks.tolist() == [ranked.index(token_id) + 1]
    wanted = [expected[i] for i in (token_id, *ranked[:num])] + [-math.inf] * missing
    torch.testing.assert_close(values, torch.tensor([wanted]), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("vocab", [64, 4099, 50_000])
@pytest.mark.parametrize("num", [1, 20, 64])
def test_logprobs_of_large_vocabularies_are_those_of_the_reference(vocab: int, num: int):
    logits = random_logits(6, vocab)
    logits[1] = logits[1].sort().values
    logits[2] = logits[2].sort(descending=True).values
    logits[3] = 0
    logits[4, vocab // 2 :] = -math.inf
    logits[5] = logits[5].round()
    ids = torch.tensor([5, vocab - 1, 0, 33, vocab - 2, 17], dtype=torch.int32)

    got, expected = (kernels.top_logprobs(logits, ids, num) for kernels in (CPU, REFERENCE))

    assert torch.equal(got[1], expected[1])
    assert torch.equal(got[2], expected[2])
    torch.testing.assert_close(got[0], expected[0], rtol=1e-6, atol=2e-6)


@TARGETS
def test_i08_logprobs_of_rows_without_a_token_say_so(kernels: KernelSet):
    logits = random_logits(4)
    logits[0], logits[1, 9], logits[2] = math.nan, math.nan, -math.inf
    ids = torch.tensor([3, 3, 3, -1], dtype=torch.int32)

    values, top_ids, ranks = kernels.top_logprobs(logits, ids, 2)

    assert values[:3].tolist() == [[-math.inf] * 3] * 3
    assert top_ids[:3].tolist() == [[-1, -1]] * 3
    assert ranks.tolist() == [0] * 4
    assert values[3, 0] == -math.inf
    assert values[3, 1:].isfinite().all()


@TARGETS
def test_i08_an_infinite_logit_has_all_the_probability(kernels: KernelSet):
    logits = random_logits(1)
    logits[0, 7] = math.inf

    values, top_ids, ranks = kernels.top_logprobs(logits, torch.tensor([7], dtype=torch.int32), 1)

    assert kernels.greedy(logits).tolist() == [7]
    assert (values.tolist(), top_ids.tolist(), ranks.tolist()) == ([[0.0, 0.0]], [[7]], [1])


@TARGETS
def test_a_row_gets_the_same_bits_alone_and_beside_any_neighbours(kernels: KernelSet):
    logits = random_logits(9, 1000)
    logits[4] = math.nan
    ids = ids_tensor([[row, row + 50] for row in range(9)], 3)
    mask = bitmask(torch.rand(9, 1000, generator=torch.Generator().manual_seed(1)) < 0.5)
    scale = torch.linspace(0.5, 2, 9)
    operators = {
        "penalize": (logits, ids, ids.clamp(min=0), scale, scale, scale),
        "add_bias": (logits, ids, ids.float()),
        "mask_logits": (logits, mask),
        "top_logprobs": (logits, ids[:, 0].contiguous()),
    }

    for name, arguments in operators.items():
        extra = (5,) if name == "top_logprobs" else ()
        together = results(getattr(kernels, name)(*arguments, *extra))
        for row in range(9):
            one = [argument[row : row + 1] for argument in arguments]
            alone = results(getattr(kernels, name)(*one, *extra))
            for whole, single in zip(together, alone, strict=True):
                assert torch.equal(whole[row : row + 1].nan_to_num(7), single.nan_to_num(7)), name


@TARGETS
def test_logits_stay_as_they_were(kernels: KernelSet):
    logits = random_logits(1)
    before = logits.clone()
    ids, one = ids_tensor([[5]], 1), torch.ones(1)

    kernels.penalize(logits, ids, ids, 2 * one, one, one)
    kernels.add_bias(logits, ids, ids.float())
    kernels.mask_logits(logits, torch.zeros(1, 2, dtype=torch.int32))

    assert torch.equal(logits, before)


@TARGETS
def test_lists_of_another_shape_are_refused(kernels: KernelSet):
    logits, one = random_logits(2), torch.ones(2)
    ids = ids_tensor([[5], [6]], 2)

    with pytest.raises(ValueError, match=r"output_counts has shape \(2, 1\), expected \(2, 2\)"):
        kernels.penalize(logits, ids, ids[:, :1].contiguous(), one, one, one)
    with pytest.raises(ValueError, match=r"presence has shape \(1,\), expected \(2,\)"):
        kernels.penalize(logits, ids, ids, one, one[:1], one)
    with pytest.raises(ValueError, match=r"bias has shape \(1, 2\), expected \(2, 2\)"):
        kernels.add_bias(logits, ids, torch.ones(1, 2))
    with pytest.raises(ValueError, match=r"bitmask has shape \(2, 1\), expected \(2, 2\)"):
        kernels.mask_logits(logits, torch.zeros(2, 1, dtype=torch.int32))
    with pytest.raises(ValueError, match=r"ids has shape \(2, 2\), expected \(2,\)"):
        kernels.top_logprobs(logits, ids, 1)


def bitmask(is_allowed: Tensor) -> Tensor:
    """Pack by numpy, which counts bits of a byte from the lowest, and bytes as they lie."""
    rows, vocab = is_allowed.shape
    padded = np.zeros((rows, -(-vocab // 32) * 32), dtype=np.uint8)
    padded[:, :vocab] = is_allowed.numpy()
    return torch.from_numpy(np.packbits(padded, axis=1, bitorder="little").view(np.int32))


def results(value: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (value,) if isinstance(value, Tensor) else value
