"""What rules of another engine make of a plan's graphs, each rule by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from ..costs.cost import GraphFees, StepCosts
from ..costs.reads import Prefix
from ..padding import round_up
from ..plan_file import PlanFile
from ..sets.demand import DecodeDemand
from .budget import Option
from .options import Chooser
from .settings import DecodeShape, PlanSettings
from .simulation import Steps
from .targets import GraphSets, Target, runs_chunks


class ExportError(ValueError):
    """An engine cannot run what the plan is for; one line."""


@dataclass(frozen=True, slots=True, eq=False)
class Traffic:
    """What a plan was made for.

    Attributes:
        steps: as the plan's policy cuts them.
        demand: as they run where prompts fill the largest graph.
        costs: of steps.
        fees: of graphs.
        prefix: what prefill steps pay for of cached tokens.
    """

    steps: Steps
    demand: Steps
    costs: StepCosts
    fees: GraphFees
    prefix: Prefix = "exact"


@dataclass(frozen=True, slots=True)
class Setup:
    """Graphs and how steps take them."""

    sets: GraphSets
    pads_prompts: bool = False
    has_prompt_graphs: bool = True
    reads_live: bool = False
    takes_smallest: bool = False
    fits_exactly: bool = True


@dataclass(frozen=True, slots=True)
class Case:
    """A plan for an engine; without traffic nothing can be chosen anew."""

    plan: PlanFile
    target: Target
    traffic: Traffic | None
    keeps_sizes: bool

    @property
    def token_unit(self) -> int:
        """What prefill sizes are multiples of."""
        return self.target.token_unit or self.plan.limits.block_size


@dataclass(frozen=True, slots=True)
class Restriction:
    """A rule for graphs: what it says, whom it binds, and what it changes."""

    text: str
    binds: Callable[[Case], bool]
    apply: Callable[[Setup, Case], Setup]


def _with_sets(setup: Setup, **changes: object) -> Setup:
    return replace(setup, sets=replace(setup.sets, **changes))  # type: ignore[arg-type]


def _pad_prompts(setup: Setup, case: Case) -> Setup:
    """Let prompts fill the largest graph: sizes for covering are not those for padding."""
    if case.traffic is not None and not case.keeps_sizes:
        return replace(_balanced(setup, case, case.traffic), pads_prompts=True)
    sizes = {*setup.sets.prefill, case.plan.limits.max_prefill_tokens}
    return replace(_with_sets(setup, prefill=tuple(sorted(sizes))), pads_prompts=True)


def _balanced(setup: Setup, case: Case, traffic: Traffic) -> Setup:
    """Share as many graphs out between both phases: padding needs more sizes than covering."""
    num_graphs = len(setup.sets.prefill) + len(setup.sets.decode)
    chooser = _chooser(case, traffic, num_graphs, "ragged")
    prefill, decode = min(
        product(
            _chosen(chooser.padded(traffic.demand.prefill)),
            _chosen(chooser.decode(traffic.steps.decode)),
        ),
        key=lambda pair: (
            sum(len(one.buckets) for one in pair) > num_graphs,
            sum(one.seconds for one in pair),
        ),
    )
    return _with_sets(
        setup,
        prefill=tuple(bucket.size for bucket in prefill.buckets),
        decode=tuple(sorted((bucket.size, bucket.context_len) for bucket in decode.buckets)),
    )


def _drop_prompt_graphs(setup: Setup, case: Case) -> Setup:
    return replace(_with_sets(setup, prefill=()), pads_prompts=True, has_prompt_graphs=False)


def _align_tokens(setup: Setup, case: Case) -> Setup:
    limit = case.plan.limits.max_prefill_tokens
    sizes = {min(limit, round_up(size, case.token_unit)) for size in setup.sets.prefill}
    return _with_sets(setup, prefill=tuple(sorted(sizes)))


def _take_chunk_sizes(setup: Setup, case: Case) -> Setup:
    allowed, limit = case.target.chunk_sizes, case.plan.limits.max_prefill_tokens
    if limit not in allowed:
        fitting = ", ".join(map(str, allowed))
        raise ExportError(
            f"{case.target.title}: the plan's prompts run in chunks of {limit} tokens; must be "
            f"{fitting}, or max_model_len {case.plan.limits.max_model_len} for no chunks"
        )
    sizes = {min(one for one in allowed if one >= size) for size in setup.sets.prefill}
    return _with_sets(setup, prefill=tuple(sorted(sizes)))


def _add_prefix_graphs(setup: Setup, case: Case) -> Setup:
    return _with_sets(setup, has_prefix_graphs=True)


def _take_pairs(setup: Setup, case: Case) -> Setup:
    sets = setup.sets
    pairs = [(num_seqs, context) for num_seqs in sets.num_seqs for context in sets.contexts]
    if len(pairs) > len(sets.decode) and case.traffic is not None and not case.keeps_sizes:
        chooser = _chooser(case, case.traffic, len(sets.decode), "product")
        best = _best(chooser.decode(case.traffic.steps.decode))
        pairs = [(bucket.size, bucket.context_len) for bucket in best.buckets]
    return _with_sets(setup, decode=tuple(sorted(pairs)))


def _take_list(setup: Setup, case: Case) -> Setup:
    """Take numbers of requests alone; where contexts were graphs, there may be more of these."""
    num_seqs, context = setup.sets.num_seqs, case.plan.limits.max_model_len
    if len(num_seqs) < len(setup.sets.decode) and case.traffic and not case.keeps_sizes:
        chooser = _chooser(case, case.traffic, len(setup.sets.decode), "list")
        best = _best(chooser.decode(_one_context(case.traffic.steps.decode, context)))
        num_seqs = sorted(bucket.size for bucket in best.buckets)
    return _with_sets(setup, decode=tuple((size, context) for size in num_seqs))


def _align_contexts(setup: Setup, case: Case) -> Setup:
    limit, unit = case.plan.limits.max_model_len, case.target.context_unit
    pairs = {(seqs, min(limit, round_up(context, unit))) for seqs, context in setup.sets.decode}
    return _with_sets(setup, decode=tuple(sorted(pairs)))


def _chooser(case: Case, traffic: Traffic, max_num: int, shape: DecodeShape) -> Chooser:
    """Return what chooses up to so many graphs, all as dear as each other."""
    settings = PlanSettings(
        prefix=traffic.prefix,
        decode_shape=shape,
        granularity=case.token_unit,
        max_num_graphs=max_num,
    )
    return Chooser(case.plan.limits, traffic.costs, settings, lambda bucket: 0.0)


def _best(options: Sequence[Option]) -> Option:
    return min(_chosen(options), key=lambda option: (option.seconds, len(option.buckets)))


def _chosen(options: Sequence[Option]) -> list[Option]:
    """Leave out the spacing rules, which may have more graphs than were asked for."""
    return [option for option in options if option.rule is None]


def _one_context(demand: DecodeDemand, context: int) -> DecodeDemand:
    contexts = np.full_like(demand.num_seqs, context)
    return DecodeDemand.of(demand.num_seqs, contexts, demand.weights, demand.live_lens)


RESTRICTIONS: tuple[Restriction, ...] = (
    Restriction(
        "prompts are padded, no chunks cover them",
        lambda case: case.plan.policy == "cover" and case.target.has_prompt_graphs,
        _pad_prompts,
    ),
    Restriction(
        "prompts run as they are, without graphs",
        lambda case: not case.target.has_prompt_graphs,
        _drop_prompt_graphs,
    ),
    Restriction(
        "prefill sizes are multiples of a unit",
        lambda case: case.token_unit > 1,
        _align_tokens,
    ),
    Restriction(
        "prefill sizes are those of segments",
        lambda case: bool(case.target.chunk_sizes) and runs_chunks(case.plan.limits),
        _take_chunk_sizes,
    ),
    Restriction(
        "chunks behind cached tokens have graphs of their own",
        lambda case: case.target.has_prefix_graphs and runs_chunks(case.plan.limits),
        _add_prefix_graphs,
    ),
    Restriction(
        "decode graphs are all pairs of two lists",
        lambda case: case.target.decode == "product",
        _take_pairs,
    ),
    Restriction(
        "decode graphs are for any context",
        lambda case: case.target.decode == "list",
        _take_list,
    ),
    Restriction(
        "decode graphs read what is cached",
        lambda case: case.target.reads_live,
        lambda setup, case: replace(setup, reads_live=True),
    ),
    Restriction(
        "contexts of decode graphs are multiples of a unit",
        lambda case: case.target.context_unit > 1,
        _align_contexts,
    ),
    Restriction(
        "a step takes the smallest graph, not the cheapest",
        lambda case: case.target.takes_smallest,
        lambda setup, case: replace(setup, takes_smallest=True),
    ),
    Restriction(
        "a prompt of exactly a size runs in the next",
        lambda case: not case.target.fits_exactly,
        lambda setup, case: replace(setup, fits_exactly=False),
    ),
)
"""In the order in which they apply."""
