"""Every option that transformers has too, against its logits processors on random logits."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from noria.kernels.cpu import CpuKernels
from noria.kernels.kernel_set import KernelSet
from noria.kernels.reference import ReferenceKernels
from noria.kernels.reference.sampler import kept_mass
from noria.runtime.sampling_params import SamplingParams
from noria.runtime.sampling_state import SamplingState

processors = pytest.importorskip("transformers.generation.logits_process")
VOCAB = 997
SEEDS = pytest.mark.parametrize("seed", range(8))
TARGETS = pytest.mark.parametrize(
    "kernels", [ReferenceKernels(), CpuKernels()], ids=["reference", "cpu"]
)


def random_logits(seed: int, rows: int = 4) -> Tensor:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * 4


def random_ids(seed: int, rows: int = 4, length: int = 40) -> Tensor:
    generator = torch.Generator().manual_seed(100 + seed)
    return torch.randint(VOCAB, (rows, length), generator=generator)


def reachable(logits: Tensor, kernels: KernelSet, **filters: float) -> Tensor:
    """Return the tokens that keep any probability, and check that draws reach no others."""
    full = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0} | filters
    rows = logits.shape[0]
    values = [torch.full((rows,), float(value)) for value in full.values()]
    values[1] = values[1].int()
    kept = kept_mass(logits, *values) > 0
    for step in range(50):
        uniform = torch.full((rows,), step / 50)
        ids = kernels.sample(logits, *values, uniform).long()
        assert kept.gather(1, ids[:, None]).all()
    return kept


@TARGETS
@SEEDS
@pytest.mark.parametrize("penalty", [0.8, 1.0, 1.2, 2.0])
def test_repetition_penalty(kernels: KernelSet, seed: int, penalty: float):
    logits, ids = random_logits(seed), random_ids(seed)
    expected = processors.RepetitionPenaltyLogitsProcessor(penalty)(ids, logits.clone())
    found = []
    for row in range(len(ids)):
        prompt, output = ids[row, :25].tolist(), ids[row, 25:].tolist()
        one = state(SamplingParams(repetition_penalty=penalty), prompt, output)
        history = one.row(40).history
        lists = torch.zeros(2, 1, 1, dtype=torch.int32)
        lists[0] = -1
        if history is not None:
            lists = torch.stack([torch.from_numpy(part.copy())[None] for part in history])
        zero = torch.zeros(1)
        values = torch.tensor([penalty]), zero, zero
        found.append(kernels.penalize(logits[row : row + 1], lists[0], lists[1], *values))

    torch.testing.assert_close(torch.cat(found), expected, rtol=1e-6, atol=1e-6)


@TARGETS
@SEEDS
@pytest.mark.parametrize("min_p", [0.001, 0.05, 0.5, 1.0])
def test_min_p(kernels: KernelSet, seed: int, min_p: float):
    logits = random_logits(seed)

    expected = processors.MinPLogitsWarper(min_p)(None, logits.clone()) > -math.inf

    assert torch.equal(reachable(logits, kernels, min_p=min_p), expected)


@TARGETS
@SEEDS
@pytest.mark.parametrize("top_k", [1, 5, 50, 996])
def test_top_k(kernels: KernelSet, seed: int, top_k: int):
    logits = random_logits(seed)

    expected = processors.TopKLogitsWarper(top_k)(None, logits.clone()) > -math.inf

    assert torch.equal(reachable(logits, kernels, top_k=top_k), expected)


@TARGETS
@SEEDS
@pytest.mark.parametrize("top_p", [0.01, 0.3, 0.9, 0.999])
def test_top_p(kernels: KernelSet, seed: int, top_p: float):
    logits = random_logits(seed)

    expected = processors.TopPLogitsWarper(top_p)(None, logits.double()) > -math.inf

    assert torch.equal(reachable(logits, kernels, top_p=top_p), expected)


@TARGETS
@SEEDS
def test_temperature_top_k_and_top_p_together(kernels: KernelSet, seed: int):
    logits = random_logits(seed)
    warped = processors.TemperatureLogitsWarper(1.7)(None, logits.double())
    for warper in (processors.TopKLogitsWarper(80), processors.TopPLogitsWarper(0.9)):
        warped = warper(None, warped)

    found = reachable(logits, kernels, temperature=1.7, top_k=80, top_p=0.9)

    assert torch.equal(found, warped > -math.inf)


@TARGETS
@SEEDS
def test_bad_words(kernels: KernelSet, seed: int):
    """The words that the output ends with the beginning of, and others."""
    logits, ids = random_logits(seed), random_ids(seed)
    for row in range(len(ids)):
        output = ids[row].tolist()
        words = [[7], [*output[-1:], 8], [*output[-2:], 9], [*output[-2:-1], 10], [11, 12]]
        expected = processors.NoBadWordsLogitsProcessor(words)(
            ids[row : row + 1], logits[row : row + 1].clone()
        )

        found = biased(kernels, logits[row], state(SamplingParams(bad_word_ids=words), [], output))

        assert torch.equal(found, expected[0])
        assert (found == -math.inf).sum() == 3


@TARGETS
@SEEDS
def test_min_tokens(kernels: KernelSet, seed: int):
    logits, ids = random_logits(seed, rows=1), random_ids(seed, rows=1)
    prompt, ends = ids[0, :30].tolist(), [5, 900]
    warper = processors.MinNewTokensLengthLogitsProcessor(30, 6, ends)
    for length in range(30, 40):
        expected = warper(ids[:, :length], logits.clone())
        one = state(SamplingParams(min_tokens=6), prompt, ids[0, 30:length].tolist(), ends)

        assert torch.equal(biased(kernels, logits[0], one), expected[0])
    assert torch.equal(expected, logits)


@TARGETS
@SEEDS
def test_logit_bias(kernels: KernelSet, seed: int):
    logits = random_logits(seed, rows=1)
    bias = {7: 2.5, 900: -30.0, 0: 100.0}
    warper = processors.SequenceBiasLogitsProcessor({(token,): by for token, by in bias.items()})

    found = biased(kernels, logits[0], state(SamplingParams(logit_bias=bias), [], []))

    torch.testing.assert_close(found, warper(random_ids(seed, rows=1), logits.clone())[0])


def state(
    params: SamplingParams, prompt: list[int], output: list[int], ends: list[int] | None = None
) -> SamplingState:
    one = SamplingState(
        params, seed=0, prompt_token_ids=prompt, end_token_ids=ends or [], vocab_size=VOCAB
    )
    for token_id in output:
        one.append(token_id)
    return one


def biased(kernels: KernelSet, logits_V: Tensor, one: SamplingState) -> Tensor:
    bias = one.row(0).bias
    if bias is None:
        return logits_V
    ids, values = (torch.from_numpy(part.copy())[None] for part in bias)
    return kernels.add_bias(logits_V[None], ids, values)[0]
