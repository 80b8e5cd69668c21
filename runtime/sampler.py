"""Sampler graphs: from logits on the device to token ids, one graph per rows and feature set."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from ..kernels.kernel_set import KernelSet
from .random_draws import uniforms
from .sampling_params import SamplingParams
from .scheduler_output import ScheduledRequest

MAX_TOP_K = 2**31 - 1
"""Larger than any vocabulary: the same as keeping all."""


class GreedySampler(nn.Module):
    """The largest logit of each row."""

    feature = "greedy"

    def __init__(self, kernels: KernelSet) -> None:
        """Use this target's kernels."""
        super().__init__()
        self.kernels = kernels

    def forward(self, logits_RV: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return ids ``[R]``; needs no inputs."""
        return self.kernels.greedy(logits_RV)


class TopKTopPSampler(nn.Module):
    """Temperature, top-k and top-p; rows at temperature 0 are greedy."""

    feature = "top_k_top_p"

    def __init__(self, kernels: KernelSet) -> None:
        """Use this target's kernels."""
        super().__init__()
        self.kernels = kernels

    def forward(self, logits_RV: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return ids ``[R]``."""
        return self.kernels.sample(
            logits_RV,
            inputs["temperature"],
            inputs["top_k"],
            inputs["top_p"],
            inputs["min_p"],
            inputs["uniform"],
        )


SAMPLERS: tuple[type[GreedySampler] | type[TopKTopPSampler], ...] = (
    GreedySampler,
    TopKTopPSampler,
)


def needed_feature(params: Iterable[SamplingParams]) -> str:
    """Name the least sampler that serves requests with these settings together."""
    if all(one.is_greedy for one in params):
        return GreedySampler.feature
    return TopKTopPSampler.feature


@dataclass(frozen=True, slots=True)
class SamplerGraph:
    """A compiled sampler over a logits buffer, with its static inputs and output."""

    inputs: Mapping[str, Tensor]
    token_ids: Tensor
    run: Callable[[], None]

    def sample(self, requests: Sequence[ScheduledRequest], rows: Sequence[int]) -> list[int]:
        """Draw one token for each request from its row of the logits."""
        self._fill(requests, rows)
        self.run()
        token_ids = self.token_ids.numpy()
        return [int(token_ids[row]) for row in rows]

    def _fill(self, requests: Sequence[ScheduledRequest], rows: Sequence[int]) -> None:
        if not self.inputs:
            return
        arrays = {name: tensor.numpy() for name, tensor in self.inputs.items()}
        for name, pad in PADDING.items():
            arrays[name].fill(pad)
        draws = uniforms(
            [request.seed for request in requests],
            [request.num_context_tokens for request in requests],
        )
        index = np.asarray(rows)
        params = [request.params for request in requests]
        arrays["temperature"][index] = [0 if p.is_greedy else p.temperature for p in params]
        arrays["top_k"][index] = [min(max(p.top_k or 0, 0), MAX_TOP_K) for p in params]
        arrays["top_p"][index] = [p.top_p for p in params]
        arrays["uniform"][index] = draws


PADDING: Mapping[str, float] = {
    "temperature": 0.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "uniform": 0.0,
}
"""Padded rows are greedy: cheap, and their ids are never read."""


def compile_sampler(
    sampler: type[GreedySampler] | type[TopKTopPSampler], kernels: KernelSet, logits_RV: Tensor
) -> SamplerGraph:
    """Compile one sampler over a static logits buffer."""
    rows = logits_RV.shape[0]
    inputs = sampler_inputs(rows) if sampler is TopKTopPSampler else {}
    token_ids = torch.zeros(rows, dtype=torch.int32)
    run = kernels.compile(sampler(kernels), [logits_RV, inputs], [token_ids])
    return SamplerGraph(inputs, token_ids, run)


def sampler_inputs(rows: int) -> dict[str, Tensor]:
    """Return the static inputs of the top-k/top-p sampler, as padding."""
    dtypes = {"top_k": torch.int32}
    return {
        name: torch.full((rows,), pad, dtype=dtypes.get(name, torch.float32))
        for name, pad in PADDING.items()
    }
