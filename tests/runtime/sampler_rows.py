"""Rows of a sampler, and samplers over logits that are given."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from noria.kernels.cpu import CpuKernels
from noria.kernels.kernel_set import KernelSet
from noria.kernels.neuron.target import NeuronKernels
from noria.kernels.reference import ReferenceKernels
from noria.runtime.graph_source import CompileHere
from noria.runtime.sampler import SamplerSet
from noria.runtime.sampler_stages import SamplerShape
from noria.runtime.sampling_params import SamplingParams
from noria.runtime.sampling_state import SamplerRow, SamplingState

VOCAB = 61
ALL = ("greedy", "top_k_top_p", "penalties", "logit_bias", "structured_output", "logprobs")
REFERENCE, CPU = ReferenceKernels(), CpuKernels()
NEURON = NeuronKernels(device="cpu")
TARGETS = pytest.mark.parametrize(
    "kernels", [REFERENCE, CPU, NEURON], ids=["reference", "cpu", "neuron"]
)
GREEDY = SamplingParams(temperature=0)


def random_logits(rows: int, seed: int = 0, vocab: int = VOCAB) -> Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * 3


@cache
def compiled(kernels: KernelSet, rows: int, vocab: int, num: int) -> tuple[Tensor, SamplerSet]:
    logits = torch.zeros(rows, vocab)
    shape = SamplerShape(rows, vocab, max_model_len=64, max_logprobs=num)
    return logits, SamplerSet(kernels, CompileHere(kernels), logits, shape, ALL)


def samplers(logits_RV: Tensor, kernels: KernelSet = CPU, num: int = 20) -> SamplerSet:
    """Return the samplers of this size, which other tests have used, over these logits."""
    buffer, one = compiled(kernels, *logits_RV.shape, num)
    buffer.copy_(logits_RV)
    return one


def row(params: SamplingParams, *, position: int = 9, seed: int = 7, **state: Any) -> SamplerRow:
    """Return what a request asks for after a prompt and an output."""
    output = state.pop("output", ())
    one = SamplingState(
        params,
        seed=seed,
        prompt_token_ids=state.pop("prompt", (3, 4)),
        end_token_ids=state.pop("end", ()),
        vocab_size=VOCAB,
        constraint=state.pop("constraint", None),
    )
    for token_id in output:
        one.append(token_id)
    return one.row(position)


class Allowed:
    """A constraint that always allows the same tokens."""

    is_complete = False

    def __init__(self, *token_ids: int) -> None:
        bits = np.zeros(64, dtype=np.uint8)
        bits[list(token_ids)] = 1
        self._mask = np.packbits(bits, bitorder="little").view(np.int32)

    def bitmask(self) -> np.ndarray[Any, np.dtype[np.int32]]:
        return self._mask

    def accept(self, token_id: int) -> None:
        pass


EXTRAS: list[dict[str, Any]] = [
    {"params": {}},
    {"params": {"temperature": 0}},
    {"params": {"repetition_penalty": 1.5}, "output": (5, 9, 9)},
    {"params": {"presence_penalty": 1.0, "frequency_penalty": 0.5}, "output": (5, 9, 9)},
    {"params": {"logit_bias": {5: 100}}},
    {"params": {"bad_word_ids": [[9, 8], [7]], "temperature": 0}, "output": (5, 9)},
    {"params": {"min_tokens": 3}, "end": (1, 2)},
    {"params": {"top_k": 4, "min_p": 0.05}, "constraint": Allowed(3, 17, 40)},
    {"params": {"logprobs": 3, "top_p": 0.7}},
]


def extra(index: int, seed: int = 7) -> SamplerRow:
    given = dict(EXTRAS[index])
    return row(SamplingParams(**given.pop("params")), seed=seed, **given)
