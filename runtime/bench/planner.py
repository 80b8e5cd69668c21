"""``noria bench planner``: what the planner's sets waste on recorded traffic, and how fast it is.

Costs are those of one device and one model that stand for many: a roofline of Llama-3-8B in bf16
on a trn2 core pair. Each prompt runs alone, and sizes are multiples of 128 up to the power of two
that holds the longest prompt; decode steps come from a simulation in which prompts run one by one.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ...bucketing import FillPolicy, PlanLimits, powers_of_two
from ...bucketing.costs.cost import StepCosts
from ...bucketing.costs.devices import device_sheet
from ...bucketing.costs.model_shape import ModelShape
from ...bucketing.costs.roofline import Roofline
from ...bucketing.planner.candidates import seqs_candidates
from ...bucketing.planner.simulated_requests import ServiceLimits
from ...bucketing.planner.simulation import simulate
from ...bucketing.planner.step_times import RealShapes
from ...bucketing.sets.cover_search import best_covering_sizes
from ...bucketing.sets.covering import cover_table
from ...bucketing.sets.decode import DecodeSet, best_ragged, dispatch, floor_cost
from ...bucketing.sets.demand import DecodeDemand, Ints, PrefillDemand
from ...bucketing.sets.prefill import (
    SizeSet,
    at_most,
    best_sizes,
    candidate_sizes,
    padded_cost,
)
from ...bucketing.sets.substitution import LATE, LOOKS_PER_S, substitute
from ...bucketing.traces.selection import halves, take
from ...bucketing.traces.trace import Trace
from ..errors import NoriaError
from ..trace_files import read_trace_file
from .planner_waste import (
    HALVES_COUNT,
    HALVES_COVER_COUNT,
    HALVES_DECODE_COUNT,
    MAX_COUNT,
    CoverWaste,
    DecodeWaste,
    HalvesWaste,
    PrefillWaste,
    TracePlans,
)
from .row_costs import RowCosts

LLAMA_3_8B = ModelShape(
    num_layers=32,
    hidden_size=4096,
    intermediate_size=14336,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    vocab_size=128256,
    reads_embedding=True,  # as in the figures that ours are compared with
)
GRANULARITY = 128
COUNTS = (4, 6, 8, 12, 16)
COVER_COUNTS = (3, 4, 8)
DECODE_COUNTS = (8, 12, 24)


@dataclass(frozen=True, slots=True)
class Service:
    """How a trace is served where its decode steps are simulated.

    Attributes:
        max_num_seqs: requests that run at once.
        context_step: contexts of decode graphs are multiples of it.
        share: of the requests, each drawn by itself, by numpy's generator of seed 0.
    """

    max_num_seqs: int = 32
    context_step: int = 256
    share: float = 1.0


SERVICES = {
    "azure_llm_2023_conv": Service(64, 256),
    "azure_llm_2023_code": Service(32, 128),
    "mooncake_fast25_conversation": Service(32, 2048, share=0.1),
}
"""By the name of the file, without its endings."""


def bench_planner(folder: Path, *, search_s: float) -> list[TracePlans]:
    """Return the findings for every trace in a folder, by name.

    Args:
        folder: holds the traces, and nothing else that ends like one.
        search_s: seconds that the search for each decode set may take.

    Raises:
        NoriaError: there is no trace, or one cannot be read.
    """
    endings = (".csv", ".csv.gz", ".jsonl", ".jsonl.gz")
    paths = sorted(path for path in folder.glob("*") if path.name.endswith(endings))
    if not paths:
        raise NoriaError(f"{folder} holds no trace: no file ends with {', '.join(endings)}")
    return [_plans(path, search_s) for path in paths]


def _plans(path: Path, search_s: float) -> TracePlans:
    start = time.perf_counter()
    trace = read_trace_file(path)
    read = time.perf_counter()
    demand = PrefillDemand.of(trace.prompt_lens, trace.weights)
    for costs in (RowCosts(), _roofline()):
        _best(demand, _limit(trace), costs)
    planned = time.perf_counter()
    name = path.name.split(".")[0]
    return TracePlans(
        name=name,
        num_requests=trace.num_requests,
        prefill=_prefill_waste(trace, demand),
        cover=_cover_waste(trace, demand),
        decode=_decode_waste(trace, SERVICES.get(name, Service()), search_s),
        read_s=read - start,
        plan_s=planned - read,
    )


def _roofline() -> StepCosts:
    return Roofline.of(LLAMA_3_8B, device_sheet("trn2"), "bfloat16")


def _limit(trace: Trace) -> int:
    """Return the power of two that holds the longest prompt."""
    return max(GRANULARITY, 1 << (int(trace.prompt_lens.max()) - 1).bit_length())


def _best(demand: PrefillDemand, limit: int, costs: StepCosts) -> Sequence[tuple[int, ...]]:
    """Return the best sizes of each number up to ``MAX_COUNT``, from 1 on."""
    sizes = candidate_sizes(limit, GRANULARITY)
    found = best_sizes(demand, sizes, costs.prefill_s(sizes), max_num=MAX_COUNT)
    return [at_most(found, num).sizes for num in range(1, MAX_COUNT + 1)]


def _waste(demand: PrefillDemand, sizes: Sequence[int], costs: StepCosts) -> float:
    real = float(demand.weights @ costs.prefill_s(demand.sizes))
    return padded_cost(demand, sizes, costs.prefill_s(np.array(sizes))) / real - 1


def _prefill_waste(trace: Trace, demand: PrefillDemand) -> PrefillWaste:
    tokens, limit = RowCosts(), _limit(trace)
    doubling = powers_of_two(GRANULARITY, limit)
    best = _best(demand, limit, tokens)
    earlier, later = (PrefillDemand.of(half.prompt_lens, half.weights) for half in halves(trace))
    wastes = (
        _waste(later, _best(one, limit, tokens)[HALVES_COUNT - 1], tokens)
        for one in (earlier, later)
    )
    counts = sorted({*COUNTS, len(doubling)} & set(range(1, MAX_COUNT + 1)))
    return PrefillWaste(
        num_doubling=len(doubling),
        doubling=_waste(demand, doubling, tokens),
        optimal={num: _waste(demand, best[num - 1], tokens) for num in counts},
        halves=HalvesWaste(*wastes),
    )


def _cover_waste(trace: Trace, demand: PrefillDemand) -> CoverWaste:
    costs, limit = _roofline(), _limit(trace)
    real = float(demand.weights @ costs.prefill_s(demand.sizes))
    doubling = powers_of_two(GRANULARITY, limit)
    searched = _covering(demand, limit, max(COVER_COUNTS))
    earlier, later = (PrefillDemand.of(half.prompt_lens, half.weights) for half in halves(trace))
    wastes = (
        _covered_waste(
            later, at_most(_covering(one, limit, HALVES_COVER_COUNT), limit).sizes, limit
        )
        for one in (earlier, later)
    )
    return CoverWaste(
        padded=_waste(demand, doubling, costs),
        covered=_covered_waste(demand, doubling, limit),
        searched={num: at_most(searched, num).cost / real - 1 for num in COVER_COUNTS},
        halves=HalvesWaste(*wastes),
    )


def _covering(demand: PrefillDemand, limit: int, max_num: int) -> tuple[SizeSet, ...]:
    return best_covering_sizes(
        demand,
        candidate_sizes(limit, GRANULARITY),
        _roofline(),
        max_num=max_num,
        prefix="exact",
        context_len=limit,
    )


def _covered_waste(demand: PrefillDemand, sizes: Sequence[int], limit: int) -> float:
    costs = _roofline()
    table = cover_table(sizes, costs, limit, prefix="exact", context_len=limit)
    real = float(demand.weights @ costs.prefill_s(demand.sizes))
    return float(demand.weights @ table.seconds[demand.sizes]) / real - 1


class _OneByOne(RealShapes):
    """Prompts are padded to powers of two; decode steps read what their requests have."""

    def prefill_s(self, num_rows: int, prefix_len: int, context_len: int) -> float:
        """Return the seconds of the power of two that holds the rows."""
        padded = max(GRANULARITY, 1 << (num_rows - 1).bit_length())
        return super().prefill_s(padded, prefix_len, context_len)


def _decode_waste(trace: Trace, service: Service, search_s: float) -> DecodeWaste | None:
    if trace.output_lens is None or trace.arrivals_s is None:
        return None
    limit = _limit(trace)
    sample = _sampled(trace, service)
    grid = _Grid(service, limit, search_s)
    demand = grid.demand(sample)
    doubling = [
        (num_seqs, context)
        for num_seqs in powers_of_two(1, service.max_num_seqs)
        for context in powers_of_two(service.context_step, limit)
    ]
    chosen = {num: grid.best(demand, num) for num in DECODE_COUNTS}
    earlier, later = map(grid.demand, halves(sample))
    wastes = (
        grid.waste(later, grid.best(one, HALVES_DECODE_COUNT).buckets) for one in (earlier, later)
    )
    last = chosen[max(DECODE_COUNTS)]
    return DecodeWaste(
        num_doubling=len(doubling),
        doubling=grid.waste(demand, doubling),
        chosen={num: grid.waste(demand, one.buckets) for num, one in chosen.items()},
        gap=last.gap,
        halves=HalvesWaste(*wastes),
    )


def _sampled(trace: Trace, service: Service) -> Trace:
    if service.share == 1:
        return trace
    is_drawn = np.random.default_rng(0).random(len(trace.prompt_lens)) < service.share
    return take(trace, is_drawn, f"{service.share:g} of it")


@dataclass(frozen=True, slots=True)
class _Grid:
    """The graphs that decode sets are chosen from, and the steps that they are chosen for."""

    service: Service
    limit: int
    search_s: float

    def demand(self, trace: Trace) -> DecodeDemand:
        """Return the decode steps of a trace."""
        steps = simulate(
            replace(trace, prompt_lens=np.minimum(trace.prompt_lens, self.limit - 1)),
            ServiceLimits(self.service.max_num_seqs, self.limit),
            FillPolicy(max_num_tokens=self.limit, max_num_seqs=1),
            _OneByOne(_roofline()),
            context_step=self.service.context_step,
        )
        return steps.decode

    def best(self, demand: DecodeDemand, num: int) -> DecodeSet:
        """Return the best set of so many graphs that is found in time."""
        costs, seqs, contexts = _roofline(), self._seqs, self._contexts
        start = best_ragged(demand, costs, num_seqs=seqs, contexts=contexts, max_num=num)[-1]
        return substitute(
            start,
            demand,
            costs,
            num_seqs=seqs,
            contexts=contexts,
            max_looks=self.search_s * LOOKS_PER_S,
            deadline_s=self.search_s * LATE,
        )

    def waste(self, demand: DecodeDemand, buckets: Sequence[tuple[int, int]]) -> float:
        """Return the seconds beside those of a graph for every cell, as a share of these."""
        costs = _roofline()
        chosen = dispatch(buckets, costs, demand.num_seqs, demand.context_lens)
        seconds = costs.decode_s(*np.array(buckets).T)[chosen]
        floor = floor_cost(demand, costs, num_seqs=self._seqs, contexts=self._contexts)
        return float(demand.weights @ seconds) / floor - 1

    @property
    def _seqs(self) -> Ints:
        return seqs_candidates(PlanLimits(self.limit, self.service.max_num_seqs, self.limit, 1, 1))

    @property
    def _contexts(self) -> Ints:
        step = self.service.context_step
        return np.arange(step, self.limit + 1, step)
