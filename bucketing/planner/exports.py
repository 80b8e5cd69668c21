"""A plan for another engine, and what that engine's rules for graphs cost against the plan.

The rules of ``RESTRICTIONS`` apply in order, so that each has a price of its own. All prices are of
the same steps, those that the plan was chosen for: with each set of graphs simulated anew, slower
graphs would run more requests at once, and be as busy.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ..buckets import Bucket, DecodeBucket, PrefillBucket
from ..plan_file import PlanFile
from ..sets.covering import graph_prefix
from ..sets.demand import Floats, Ints
from .evaluation import Shapes
from .given_steps import cut_steps
from .restrictions import RESTRICTIONS, Case, Setup, Traffic
from .saved_problem import saved_problem
from .targets import TARGETS, GraphSets, Target, limit_texts


@dataclass(frozen=True, slots=True)
class Price:
    """What one rule makes of the plan, those before it included.

    Attributes:
        text: the rule.
        num_graphs: that there are with it.
        compile_s: seconds that one worker compiles them; None: not known.
        seconds: that the traffic's steps take; None: not known.
    """

    text: str
    num_graphs: int
    compile_s: float | None
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Export:
    """A configuration for another engine, and its price.

    Attributes:
        target: the engine.
        text: its configuration.
        sets: graphs of it.
        prices: first the plan itself, then with each rule.
        kept: with the plan's own sizes instead, where these were chosen anew; else None.
        usage: how to start the engine with it.
        notes: what has no price.
    """

    target: Target
    text: str
    sets: GraphSets
    prices: tuple[Price, ...]
    kept: Price | None
    usage: str
    notes: tuple[str, ...]


def saved_traffic(plan: PlanFile) -> Traffic | None:
    """Return what a plan file says it was made for; None where it does not.

    Raises:
        ValueError: it says so, but is damaged; one line.
    """
    if not {"costs", "settings", "budget", "demand"} <= plan.about.keys():
        return None
    problem = saved_problem(plan)
    assert problem.steps is not None
    return Traffic(
        steps=cut_steps(problem.steps, plan.step_policy(), plan.limits),
        demand=problem.steps,
        costs=problem.costs,
        fees=problem.fees,
        prefix=problem.settings.prefix,
    )


def export(
    plan: PlanFile, target: str, traffic: Traffic | None = None, *, keeps_sizes: bool = False
) -> Export:
    """Return the configuration of another engine that is nearest to a plan.

    Where the engine's rules would take more graphs, as many as the plan has are chosen anew.

    Args:
        plan: to export.
        target: one of ``TARGETS``.
        traffic: that it was made for; None: not known. Then nothing can be chosen or priced.
        keeps_sizes: take the plan's own sizes, even where that makes more graphs.

    Raises:
        ExportError: the engine has no graphs for the plan's limits.
    """
    case = Case(plan, TARGETS[target], traffic, keeps_sizes or traffic is None)
    setup, prices = _restricted(case)
    kept_setup, kept_prices = _restricted(replace(case, keeps_sizes=True))
    names = limit_texts(plan.limits)
    notes = [note.text for note in case.target.notes if note.holds(plan.limits)]
    return Export(
        target=case.target,
        text=case.target.write(setup.sets),
        sets=setup.sets,
        prices=prices,
        kept=kept_prices[-1] if kept_setup.sets != setup.sets else None,
        usage=case.target.usage.format_map(names),
        notes=tuple(note.format_map(names) for note in notes),
    )


def _restricted(case: Case) -> tuple[Setup, tuple[Price, ...]]:
    """Apply every rule of the target; what changes nothing has no price."""
    graphs = (*case.plan.prefill, *case.plan.decode)
    sizes = {one.bucket.size for one in graphs if isinstance(one.bucket, PrefillBucket)}
    pairs = [(one.bucket.size, one.bucket.context_len) for one in case.plan.decode]
    setup = Setup(GraphSets(case.plan.limits, tuple(sorted(sizes)), tuple(sorted(pairs))))
    prices = [_price("the plan", setup, case)]
    for rule in RESTRICTIONS:
        after = rule.apply(setup, case) if rule.binds(case) else setup
        if after != setup:
            setup = after
            prices.append(_price(rule.text, setup, case))
    return setup, tuple(prices)


def _price(text: str, setup: Setup, case: Case) -> Price:
    buckets = _buckets(setup.sets)
    traffic = case.traffic
    if traffic is None:
        return Price(text, len(buckets), None, None)
    seconds = _prefill_s(setup, traffic) + _decode_s(setup, traffic)
    return Price(text, len(buckets), sum(map(traffic.fees.compile_s, buckets)), seconds)


def _buckets(sets: GraphSets) -> list[Bucket]:
    context, query_len = sets.limits.max_model_len, sets.limits.query_len
    prefill = (PrefillBucket(size, context) for size, _ in sets.prompts)
    return [*prefill, *(DecodeBucket(*pair, query_len) for pair in sets.decode)]


def _prefill_s(setup: Setup, traffic: Traffic) -> float:
    """Return the seconds of all prefill steps."""
    shapes = Shapes.of_prefill(traffic.demand if setup.pads_prompts else traffic.steps)
    rows: Ints = shapes.sizes
    read: Floats = shapes.prefixes.astype(np.float64)
    if setup.has_prompt_graphs:
        sizes = np.array(setup.sets.prefill, dtype=np.int64)
        side = "left" if setup.fits_exactly else "right"
        at = np.searchsorted(sizes, shapes.sizes, side)  # type: ignore[call-overload]
        rows = sizes[np.minimum(at, len(sizes) - 1)]
        context = setup.sets.limits.max_model_len
        read = graph_prefix(shapes.prefixes, rows, context, traffic.prefix)
    return float(traffic.costs.prefill_s(rows, read) @ shapes.weights)


def _decode_s(setup: Setup, traffic: Traffic) -> float:
    """Return the seconds of all decode steps."""
    shapes = Shapes.of_decode(traffic.steps)
    num_seqs, contexts = np.array(setup.sets.decode, dtype=np.int64).T  # fewest requests first
    fits = (shapes.sizes[:, None] <= num_seqs) & (shapes.contexts[:, None] <= contexts)
    times: Floats = traffic.costs.decode_s(num_seqs, contexts)
    chosen = np.where(fits, 0.0 if setup.takes_smallest else times, np.inf).argmin(axis=1)
    read = shapes.contexts if setup.reads_live else contexts[chosen]
    seconds = traffic.costs.decode_s(num_seqs[chosen], read)
    live = traffic.costs.live_s(shapes.sizes, shapes.live_lens)
    return float((seconds + live) @ shapes.weights)
