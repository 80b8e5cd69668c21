"""Draws follow the exact distributions: chi-square at fixed seeds, for every filter and mix.

Each test draws 20,000 tokens with fixed uniforms, so its result never changes, and holds the
p-value above ``LEAST_P``: an exact sampler fails one such test in ten thousand, and the mutations
at the end fail theirs by far.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

import numpy as np
import pytest
import torch
from brute_sampler import kept_tokens, penalized
from torch import Tensor

from noria.kernels.cpu import CpuKernels
from noria.kernels.kernel_set import KernelSet
from noria.kernels.neuron.target import NeuronKernels
from noria.kernels.reference import ReferenceKernels
from noria.runtime.random_draws import uniforms

LEAST_P = 1e-4
NUM_DRAWS = 20_000
LOGITS = [1.0, -1.0, 0.5, 2.0, 0.0, 1.5, -0.5, 1.0, -3.0, 0.25, 1.75, -1.5]
TARGETS = pytest.mark.parametrize(
    "kernels",
    [ReferenceKernels(), CpuKernels(), NeuronKernels(device="cpu")],
    ids=["reference", "cpu", "neuron"],
)
OFF = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
CHOICES = {"temperature": (1.0, 0.6, 2.5), "top_k": (0, 5), "top_p": (1.0, 0.8), "min_p": (0, 0.15)}
MIXES = [dict(zip(CHOICES, mix, strict=True)) for mix in itertools.product(*CHOICES.values())]


def p_value(statistic: float, freedom: int) -> float:
    """Return the share of chi-square values above this one."""
    half = torch.tensor([freedom / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


def goodness(counts: Mapping[int, int], expected: Mapping[int, float]) -> float:
    """Return the p-value of counts under a distribution; 0 if a token has no probability there."""
    num_draws = sum(counts.values())
    if not counts.keys() <= expected.keys():
        return 0.0
    statistic = sum(
        (counts.get(token, 0) - num_draws * p) ** 2 / (num_draws * p)
        for token, p in expected.items()
    )
    return p_value(statistic, len(expected) - 1) if len(expected) > 1 else 1.0


def fixed_uniforms(seed: int) -> Tensor:
    """Return what the engine would draw at 20,000 positions of one request."""
    return torch.from_numpy(uniforms(np.full(NUM_DRAWS, seed), np.arange(NUM_DRAWS)))


def draw(kernels: KernelSet, logits_V: Tensor, uniform: Tensor, **filters: float) -> dict[int, int]:
    def per_row(name: str, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.full((NUM_DRAWS,), filters[name], dtype=dtype)

    rows = logits_V.repeat(NUM_DRAWS, 1)
    top_k = per_row("top_k", torch.int32)
    tokens = kernels.sample(
        rows, per_row("temperature"), top_k, per_row("top_p"), per_row("min_p"), uniform
    )
    counts = torch.bincount(tokens.long(), minlength=len(logits_V))
    return {token: int(count) for token, count in enumerate(counts) if count}


@TARGETS
@pytest.mark.parametrize("filters", MIXES, ids=lambda mix: "-".join(map(str, mix.values())))
def test_draws_follow_the_exact_distribution(kernels: KernelSet, filters: dict[str, float]):
    counts = draw(kernels, torch.tensor(LOGITS), fixed_uniforms(11), **filters)

    expected = kept_tokens(LOGITS, **filters)
    assert set(counts) == set(expected)
    assert goodness(counts, expected) > LEAST_P


@TARGETS
@pytest.mark.parametrize("filters", [{}, {"min_p": 0.1}, {"top_k": 6}, {"top_p": 0.7}])
def test_draws_behind_every_other_step_follow_the_exact_distribution(kernels, filters):
    """Mask, bias and penalties, in the order of a sampler."""
    banned, bias = {3, 8}, {1: 2.5, 5: -math.inf, 10: -0.5}
    history = {0: 0, 2: 2, 10: 1}
    is_allowed = [token not in banned for token in range(len(LOGITS))]
    word = sum(1 << token for token, one in enumerate(is_allowed) if one)
    row = torch.tensor([LOGITS])
    row = kernels.mask_logits(row, torch.tensor([[word]], dtype=torch.int32))
    ids = torch.tensor([list(bias)], dtype=torch.int32)
    row = kernels.add_bias(row, ids, torch.tensor([list(bias.values())]))
    ids = torch.tensor([list(history)], dtype=torch.int32)
    output_counts = torch.tensor([list(history.values())], dtype=torch.int32)
    penalties = [torch.tensor([value]) for value in (1.5, 0.5, 0.25)]
    row = kernels.penalize(row, ids, output_counts, *penalties)

    counts = draw(kernels, row[0], fixed_uniforms(12), **{**OFF, **filters})

    values = [
        (logit if one else -math.inf) + bias.get(token, 0.0)
        for token, (logit, one) in enumerate(zip(LOGITS, is_allowed, strict=True))
    ]
    values = penalized(
        values, prompt=[0], output=[2, 10, 2], repetition=1.5, presence=0.5, frequency=0.25
    )
    expected = kept_tokens(values, **{**OFF, **filters})
    expected = {token: p for token, p in expected.items() if p > 0}
    assert set(counts) == set(expected)
    assert goodness(counts, expected) > LEAST_P


@pytest.mark.parametrize("seed", range(5))
def test_draws_of_many_seeds_at_one_position_follow_the_distribution(seed: int):
    """As the samples of one prompt are: seeds differ, the position does not."""
    uniform = torch.from_numpy(uniforms(np.arange(NUM_DRAWS) * 7919 + seed, np.full(NUM_DRAWS, 5)))

    counts = draw(CpuKernels(), torch.tensor(LOGITS), uniform, **OFF)

    assert goodness(counts, kept_tokens(LOGITS, **OFF)) > LEAST_P


WRONG_FILTERS = {
    "temperature_off_by_a_tenth": {"temperature": 1.1},
    "top_k_one_more": {"top_k": 6},
    "top_k_one_less": {"top_k": 4},
    "min_p_of_another_share": {"min_p": 0.12},
    "top_p_of_another_share": {"top_p": 0.85},
}
RIGHT = {
    "temperature_off_by_a_tenth": {},
    "top_k_one_more": {"top_k": 5},
    "top_k_one_less": {"top_k": 5},
    "min_p_of_another_share": {"min_p": 0.15},
    "top_p_of_another_share": {"top_p": 0.7},
}


@pytest.mark.parametrize("name", WRONG_FILTERS)
def test_the_chi_square_test_finds_a_filter_that_is_a_little_wrong(name: str):
    drawn = draw(
        CpuKernels(), torch.tensor(LOGITS), fixed_uniforms(11), **{**OFF, **WRONG_FILTERS[name]}
    )

    assert goodness(drawn, kept_tokens(LOGITS, **{**OFF, **RIGHT[name]})) < LEAST_P / 10


@pytest.mark.parametrize(
    "spoil",
    [
        lambda uniform: uniform**1.1,
        lambda uniform: (uniform * 16).floor() / 16,
        lambda uniform: uniform.clamp(0.15, 1),
        lambda uniform: uniform * 0.98,
    ],
    ids=["bent", "coarse", "clamped", "short"],
)
def test_the_chi_square_test_finds_uniforms_that_are_a_little_wrong(spoil):
    counts = draw(CpuKernels(), torch.tensor(LOGITS), spoil(fixed_uniforms(11)), **OFF)

    assert goodness(counts, kept_tokens(LOGITS, **OFF)) < LEAST_P / 10


def test_the_chi_square_test_finds_a_penalty_that_was_left_out():
    expected = kept_tokens(penalized(LOGITS, prompt=[], output=[4, 4], frequency=0.25), **OFF)
    counts = draw(CpuKernels(), torch.tensor(LOGITS), fixed_uniforms(11), **OFF)

    assert goodness(counts, expected) < LEAST_P / 10


def test_p_values_are_those_of_the_tables():
    assert p_value(24.32, 7) == pytest.approx(1e-3, rel=5e-3)
    assert p_value(3.841, 1) == pytest.approx(0.05, rel=1e-3)
    assert goodness({0: 60, 1: 40}, {0: 0.5, 1: 0.5}) == pytest.approx(math.erfc(math.sqrt(2)))
