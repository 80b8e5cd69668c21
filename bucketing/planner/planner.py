"""From traffic to a plan: simulate, choose sets within the budget, and once more with them.

Faster steps change who runs beside whom, hence the second round; how much it changed is reported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ..buckets import Bucket
from ..costs.cost import GraphFees, StepCosts
from ..plan import PlanLimits
from ..plan_file import PlanFile, PlannedGraph, PolicyName
from ..policy import FillPolicy, StepPolicy
from ..sets.covering import cover_table
from ..sets.demand import Ints
from ..traces.trace import Trace
from .budget import Bill, Budget, BudgetError, Option, bills, choose, pareto
from .evaluation import PhaseUse, Shapes, real_seconds, use_of_decode, use_of_prefill
from .given_steps import cut_steps
from .options import Chooser
from .order import WarmUpPoint, warm_up_order
from .settings import PlanSettings, context_step
from .simulated_requests import ServiceLimits
from .simulation import Steps, simulate
from .step_times import EachPhase, PlannedShapes, RealShapes, StepTimes


@dataclass(frozen=True, slots=True)
class Problem:
    """What a plan is made for.

    Attributes:
        trace: single requests with output lengths, which fit ``limits``; anything, or None, where
            ``steps`` are given.
        limits: of the engine.
        costs: of steps.
        fees: of graphs.
        budget: for all graphs.
        settings: what may be chosen.
        num_blocks: of the KV cache; None: never too few.
        steps: that run instead of the trace's, as prompts fill the largest graph. Without decode
            steps nothing is known of them: decode graphs are powers of two then.
    """

    trace: Trace | None
    limits: PlanLimits
    costs: StepCosts
    fees: GraphFees
    budget: Budget = field(default_factory=Budget)
    settings: PlanSettings = field(default_factory=PlanSettings)
    num_blocks: int | None = None
    steps: Steps | None = None

    @property
    def requests(self) -> Trace:
        """The trace, for those who cannot do without.

        Raises:
            ValueError: only its steps are known.
        """
        if self.trace is None:
            raise ValueError("the requests are not known, only the steps that they led to")
        return self.trace


@dataclass(frozen=True, slots=True, eq=False)
class Expectation:
    """What a plan does with the traffic.

    Attributes:
        steps: that were simulated with it.
        prefill: use of its prefill graphs.
        decode: use of its decode graphs.
    """

    steps: Steps
    prefill: PhaseUse
    decode: PhaseUse


@dataclass(frozen=True, slots=True, eq=False)
class Planned:
    """A plan and everything that was found out on the way.

    Attributes:
        plan: for the engine.
        expected: what it does with the traffic.
        demand: steps that it was chosen for: those of real times, in which prompts fill the
            largest graph.
        bill: what it costs.
        front: bills that nothing beats, from few graphs to many.
        order: graphs as they are worth compiling, with what the traffic takes after each.
        decode_gap: how far the decode set is at most above the best of as many graphs, for the
            demand that it was chosen for, as a share; None: not known.
        changed_share: by how much the seconds of the traffic changed in the last round.
    """

    plan: PlanFile
    expected: Expectation
    demand: Steps
    bill: Bill
    front: tuple[Bill, ...]
    order: tuple[WarmUpPoint, ...]
    decode_gap: float | None
    changed_share: float


def make_plan(problem: Problem) -> Planned:
    """Return the best plan that was found for a problem.

    Raises:
        BudgetError: no plan keeps within the budget.
        ValueError: the trace cannot be simulated, see ``simulate``.
    """
    before = _choose(problem, RealShapes(problem.costs))
    after = before
    if problem.steps is None:
        after = _choose(problem, _filling_times(problem, before.plan))
    last = _improved(problem, after)
    expected = expectation(problem, last.plan)
    prefill, decode = Shapes.of_prefill(expected.steps), Shapes.of_decode(expected.steps)
    order = warm_up_order(last.plan.bucket_plan(), prefill, decode, problem.fees.compile_s)
    return Planned(
        plan=replace(last.plan, order=tuple(point.label for point in order)),
        expected=expected,
        demand=last.steps,
        bill=last.bill,
        front=last.front,
        order=order,
        decode_gap=last.decode_gap,
        changed_share=abs(last.bill.seconds / before.bill.seconds - 1),
    )


def expectation(problem: Problem, plan: PlanFile) -> Expectation:
    """Return what any plan for the same limits does with the traffic of a problem."""
    buckets = plan.bucket_plan()
    steps = _simulated(problem, plan.step_policy(), _times(problem, plan))
    return Expectation(
        steps=steps,
        prefill=use_of_prefill(
            buckets,
            Shapes.of_prefill(steps),
            problem.costs,
            reads_all_context=problem.settings.prefix == "max",
        ),
        decode=use_of_decode(buckets, Shapes.of_decode(steps), problem.costs),
    )


def demand_of(problem: Problem) -> Steps:
    """Return the steps of the traffic if there were a graph for every shape."""
    return _simulated(problem, _filling(problem.limits), RealShapes(problem.costs))


def plan_of(
    problem: Problem, prefill: Sequence[Bucket], decode: Sequence[Bucket], policy: PolicyName
) -> PlanFile:
    """Return a plan of these graphs, with their seconds and, for ``cover``, their chunks."""
    sizes = np.array(sorted(bucket.size for bucket in prefill), dtype=np.int64)
    chooser = _chooser(problem, 0.0)
    prefill_s = np.maximum.accumulate(chooser.prefill_s(sizes)).tolist()
    ordered = sorted(prefill, key=lambda bucket: bucket.size)
    shapes = [(bucket.size, bucket.context_len) for bucket in decode]
    decode_s = problem.costs.decode_s(*map(np.array, zip(*shapes, strict=True)))
    return PlanFile(
        limits=problem.limits,
        prefill=tuple(map(PlannedGraph, ordered, prefill_s)),
        decode=tuple(map(PlannedGraph, decode, decode_s.tolist())),
        policy=policy,
        chunks=_chunks(problem, sizes) if policy == "cover" else (),
    )


@dataclass(frozen=True, slots=True)
class _Round:
    """A plan as one round chose it."""

    steps: Steps
    plan: PlanFile
    bill: Bill
    front: tuple[Bill, ...]
    decode_gap: float | None = None


def _choose(problem: Problem, times: StepTimes) -> _Round:
    """Choose for the steps that the traffic leads to if steps take these times."""
    steps = _simulated(problem, _filling(problem.limits), times)
    chooser = _chooser(problem, _window_s(problem, steps))
    policies: dict[PolicyName, Sequence[Option]] = {}
    if problem.settings.policy != "cover":
        policies["fill"] = chooser.padded(steps.prefill)
    if problem.settings.policy != "fill":
        policies["cover"] = chooser.covering(steps.prefill)
    known = chooser.decode(steps.decode) if steps.decode_shapes else ()
    alternatives = [known] if known else [(one,) for one in chooser.unknown_decode()]
    for decode in alternatives[:-1]:
        try:
            return _chosen(problem, steps, policies, decode)
        except BudgetError:
            continue
    return _chosen(problem, steps, policies, alternatives[-1])


def _chosen(
    problem: Problem,
    steps: Steps,
    policies: Mapping[PolicyName, Sequence[Option]],
    decode: Sequence[Option],
) -> _Round:
    """Return the best pair of options within the budget, of all policies."""
    budget, window_s = problem.budget, _window_s(problem, steps)
    every = {name: bills(options, decode, problem.fees) for name, options in policies.items()}
    chosen = {name: choose(found, budget, window_s) for name, found in every.items()}
    name = min(chosen, key=lambda one: chosen[one].total_s(budget, window_s))
    bill = chosen[name]
    plan = plan_of(problem, bill.prefill.buckets, bill.decode.buckets, name)
    return _Round(steps, plan, bill, pareto(every[name]))


def _improved(problem: Problem, found: _Round) -> _Round:
    """Return the round with the best decode set of as many graphs that the search finds."""
    steps = found.steps
    if not steps.decode_shapes:
        return found
    chooser = _chooser(problem, _window_s(problem, steps))
    decode, gap = chooser.improved(found.bill.decode, steps.decode)
    bill = bills([found.bill.prefill], [decode], problem.fees)[0]
    plan = plan_of(problem, bill.prefill.buckets, decode.buckets, found.plan.policy)
    return replace(found, plan=plan, bill=bill, decode_gap=gap)


def _window_s(problem: Problem, steps: Steps) -> float:
    """Return the seconds that steps stand for: at least what they take one after the other."""
    return max(steps.seconds, steps.busy_s or real_seconds(steps, problem.costs))


def _filling(limits: PlanLimits) -> FillPolicy:
    return FillPolicy.of(limits, limits.max_prefill_tokens)


def _chooser(problem: Problem, window_s: float) -> Chooser:
    """Return what chooses sets; compiling is worth its share of the horizon."""
    price = window_s / problem.budget.horizon_s / problem.budget.workers

    def fee(bucket: Bucket) -> float:
        return problem.fees.compile_s(bucket) * price

    return Chooser(problem.limits, problem.costs, problem.settings, fee)


def _filling_times(problem: Problem, plan: PlanFile) -> StepTimes:
    """Return times for steps of all rows that wait, however the plan runs these.

    Where it covers them with several chunks, they take hardly more than a graph of their size.
    """
    if plan.policy == "fill":
        return _times(problem, plan)
    return EachPhase(RealShapes(problem.costs), _times(problem, plan))


def _times(problem: Problem, plan: PlanFile) -> StepTimes:
    reads_all = problem.settings.prefix == "max"
    return PlannedShapes(plan.bucket_plan(), problem.costs, reads_all_context=reads_all)


def _simulated(problem: Problem, policy: StepPolicy, times: StepTimes) -> Steps:
    limits = problem.limits
    if problem.steps is not None:
        return cut_steps(problem.steps, policy, limits)
    service = ServiceLimits(
        max_num_seqs=limits.max_num_seqs,
        max_model_len=limits.max_model_len,
        prefill_tile=limits.prefill_tile,
        block_size=limits.block_size,
        num_blocks=problem.num_blocks,
    )
    step = context_step(limits)
    return simulate(problem.requests, service, policy, times, context_step=step)


def _chunks(problem: Problem, sizes: Ints) -> tuple[tuple[int, int], ...]:
    """Return the first chunk of every number of waiting rows, where it changes."""
    table = cover_table(
        sizes.tolist(),
        problem.costs,
        problem.limits.max_prefill_tokens,
        prefix=problem.settings.prefix,
        context_len=problem.limits.max_model_len,
    )
    return table.changes()
