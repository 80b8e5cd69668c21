"""Sampler graphs: from logits on the device to token ids, one graph per rows and feature set."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..kernels.kernel_set import KernelSet
from .compiled_set.identity import sampler_key, scorer_key
from .graph_source import EngineGraph, GraphSource
from .sampled_token import MIN_LOGPROB, SampledToken, TokenLogprobs
from .sampler_features import (
    GREEDY,
    LOGIT_BIAS,
    LOGPROBS,
    PENALTIES,
    STRUCTURED_OUTPUT,
    TOP_K_TOP_P,
    sampler_variants,
)
from .sampler_stages import STAGES, Inputs, Rows, SamplerShape, Stage
from .sampling_state import SamplerRow


class Sampler(nn.Module):
    """Stages in a row: what changes logits, then what chooses."""

    def __init__(self, kernels: KernelSet, stages: Sequence[Stage]) -> None:
        """Use this target's kernels."""
        super().__init__()
        self.kernels = kernels
        self.stages = tuple(stages)

    def forward(self, logits_RV: Tensor, inputs: Inputs) -> tuple[Tensor, ...]:
        """Return ids ``[R]``."""
        value = logits_RV
        for stage in self.stages:
            value = stage.apply(self.kernels, value, inputs)
        return (value,)


class LogprobsSampler(Sampler):
    """A sampler that also says how probable its tokens were to the model."""

    def __init__(self, kernels: KernelSet, stages: Sequence[Stage], num_logprobs: int) -> None:
        """Give the logprobs of this many most probable tokens."""
        super().__init__(kernels, stages)
        self.num_logprobs = num_logprobs

    def forward(self, logits_RV: Tensor, inputs: Inputs) -> tuple[Tensor, ...]:
        """Return ids ``[R]``, then logprobs, top ids and ranks as ``top_logprobs`` does."""
        (ids_R,) = super().forward(logits_RV, inputs)
        return ids_R, *self.kernels.top_logprobs(logits_RV, ids_R, self.num_logprobs)


class Scorer(nn.Module):
    """Logprobs of given tokens: of a prompt's, each at the position before it."""

    def __init__(self, kernels: KernelSet, num_logprobs: int) -> None:
        """Use this target's kernels."""
        super().__init__()
        self.kernels = kernels
        self.num_logprobs = num_logprobs

    def forward(self, logits_TV: Tensor, next_ids_T: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return logprobs, top ids and ranks as ``top_logprobs`` does."""
        return self.kernels.top_logprobs(logits_TV, next_ids_T, self.num_logprobs)


@dataclass(frozen=True, slots=True)
class LogprobsBuffers:
    """Where a graph leaves logprobs: ``[R, 1 + num]``, top ids ``[R, num]`` and ranks ``[R]``."""

    logprobs: Tensor
    top_ids: Tensor
    ranks: Tensor

    @classmethod
    def allocate(cls, rows: int, num_logprobs: int) -> LogprobsBuffers:
        """Return buffers of zeros."""
        return cls(
            torch.zeros(rows, 1 + num_logprobs),
            torch.zeros((rows, num_logprobs), dtype=torch.int32),
            torch.zeros(rows, dtype=torch.int32),
        )

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """The buffers in the order of ``top_logprobs``."""
        return self.logprobs, self.top_ids, self.ranks

    def read(self, num_top: Mapping[int, int]) -> dict[int, TokenLogprobs]:
        """Return what rows hold, each with so many most probable tokens."""
        rows, width = list(num_top), max(num_top.values(), default=0)
        logprobs = self.logprobs[rows, : 1 + width].clamp(min=MIN_LOGPROB).tolist()
        ids = self.top_ids[rows, :width].tolist()
        ranks = self.ranks[rows].tolist()
        read = {}
        for at, (row, num) in enumerate(num_top.items()):
            logprob, *values = logprobs[at]
            top = zip(ids[at][:num], values, strict=False)
            listed = tuple(pair for pair in top if pair[0] >= 0)
            read[row] = TokenLogprobs(logprob, ranks[at], listed)
        return read


@dataclass(frozen=True, slots=True)
class SamplerGraph:
    """A compiled sampler over a logits buffer, with its static inputs and outputs."""

    features: frozenset[str]
    stages: Sequence[Stage]
    inputs: Inputs
    token_ids: Tensor
    logprobs: LogprobsBuffers | None
    run: Callable[[], None]

    def sample(self, rows: Rows) -> list[SampledToken]:
        """Draw one token from each of these rows of the logits, in their order."""
        for stage in self.stages:
            stage.write(rows)
        self.run()
        token_ids = self.token_ids.tolist()
        logprobs = self._read_logprobs(rows, token_ids)
        return [SampledToken(token_ids[row], logprobs.get(row)) for row in rows]

    def _read_logprobs(self, rows: Rows, token_ids: Sequence[int]) -> Mapping[int, TokenLogprobs]:
        """Return the logprobs of the rows that ask for them and have a token."""
        if self.logprobs is None:
            return {}
        asked = {row: one.params.logprobs for row, one in rows.items() if token_ids[row] >= 0}
        return self.logprobs.read({row: num for row, num in asked.items() if num is not None})


@dataclass(frozen=True, slots=True)
class ScorerGraph:
    """A compiled scorer over a logits buffer."""

    next_ids: Tensor
    logprobs: LogprobsBuffers
    run: Callable[[], None]

    def score(self, next_ids: Mapping[int, int], num_top: Mapping[int, int]) -> list[TokenLogprobs]:
        """Return the logprobs of these tokens, by row, each with so many most probable ones."""
        self.next_ids.fill_(-1)
        self.next_ids[list(next_ids)] = torch.tensor(list(next_ids.values()), dtype=torch.int32)
        self.run()
        read = self.logprobs.read(num_top)
        return [read[row] for row in next_ids]


class SamplerSet:
    """The samplers over one logits buffer, the least one first."""

    def __init__(
        self,
        kernels: KernelSet,
        source: GraphSource,
        logits_RV: Tensor,
        shape: SamplerShape,
        features: Collection[str],
    ) -> None:
        """Compile every sampler that these features ask for."""
        variants = sampler_variants(features)
        self.graphs = tuple(
            compile_sampler(kernels, source, logits_RV, shape, one) for one in variants
        )

    def covering(self, features: Collection[str]) -> SamplerGraph:
        """Return the least sampler that has these features; submission refuses all others."""
        found = [graph for graph in self.graphs if graph.features.issuperset(features)]
        assert found, f"no sampler does all of {sorted(features)}"
        return found[0]

    def sample(self, rows: Rows) -> list[SampledToken]:
        """Draw one token from each of these rows of the logits, in their order."""
        if not rows:
            return []
        needed = {feature for row in rows.values() for feature in needed_features(row)}
        return self.covering(needed).sample(rows)


def sampler_name(shape: SamplerShape, features: Collection[str]) -> str:
    """Return what the sampler with these features is called."""
    return "_".join((f"sampler_r{shape.rows}", *sorted(features)))


def scorer_name(shape: SamplerShape) -> str:
    """Return what the graph that reads logprobs of given tokens is called."""
    return f"scorer_r{shape.rows}"


def needed_features(row: SamplerRow) -> Iterator[str]:
    """Yield what a row needs in this step, which may be less than its request ever needs."""
    yield GREEDY if row.params.is_greedy else TOP_K_TOP_P
    if row.history is not None:
        yield PENALTIES
    if row.bias is not None:
        yield LOGIT_BIAS
    if row.bitmask is not None:
        yield STRUCTURED_OUTPUT
    if row.params.logprobs is not None:
        yield LOGPROBS


def compile_sampler(
    kernels: KernelSet,
    source: GraphSource,
    logits_RV: Tensor,
    shape: SamplerShape,
    features: frozenset[str],
) -> SamplerGraph:
    """Compile one sampler over a static logits buffer."""
    chooser = TOP_K_TOP_P if TOP_K_TOP_P in features else GREEDY
    left_out = {GREEDY, TOP_K_TOP_P} - {chooser}
    stages = [make(shape) for name, make in STAGES.items() if name in features - left_out]
    inputs = {name: tensor for stage in stages for name, tensor in stage.inputs.items()}
    token_ids = torch.zeros(shape.rows, dtype=torch.int32)
    name, key = sampler_name(shape, features), sampler_key(shape, features)
    if LOGPROBS in features:
        logprobs = LogprobsBuffers.allocate(shape.rows, shape.max_logprobs)
        sampler: Sampler = LogprobsSampler(kernels, stages, shape.max_logprobs)
        outputs = [token_ids, *logprobs.tensors]
        run = source.get(EngineGraph(name, key, sampler, [logits_RV, inputs], outputs))
        return SamplerGraph(features, stages, inputs, token_ids, logprobs, run)
    sampler = Sampler(kernels, stages)
    run = source.get(EngineGraph(name, key, sampler, [logits_RV, inputs], [token_ids]))
    return SamplerGraph(features, stages, inputs, token_ids, None, run)


def compile_scorer(
    kernels: KernelSet, source: GraphSource, logits_TV: Tensor, shape: SamplerShape
) -> ScorerGraph:
    """Compile a scorer over a static logits buffer."""
    next_ids = torch.full((logits_TV.shape[0],), -1, dtype=torch.int32)
    logprobs = LogprobsBuffers.allocate(shape.rows, shape.max_logprobs)
    scorer = Scorer(kernels, shape.max_logprobs)
    name, key = scorer_name(shape), scorer_key(shape)
    run = source.get(EngineGraph(name, key, scorer, [logits_TV, next_ids], logprobs.tensors))
    return ScorerGraph(next_ids, logprobs, run)
