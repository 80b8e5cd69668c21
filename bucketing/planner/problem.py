"""A problem that plans solve, and what any plan does with its traffic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ..buckets import Bucket
from ..costs.cost import GraphFees, StepCosts
from ..plan import PlanLimits
from ..plan_file import PlanFile, PlannedGraph, PolicyName
from ..policy import FillPolicy, StepPolicy
from ..sets.covering import cover_table
from ..sets.demand import Ints
from ..traces.trace import Trace
from .budget import Budget
from .candidates import context_step
from .evaluation import PhaseUse, Shapes, use_of_decode, use_of_prefill
from .given_steps import cut_steps
from .options import Chooser
from .settings import PlanSettings
from .simulated_requests import ServiceLimits
from .simulation import Steps, simulate
from .step_times import PlannedShapes, RealShapes, StepTimes


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


def expectation(problem: Problem, plan: PlanFile) -> Expectation:
    """Return what any plan for the same limits does with the traffic of a problem."""
    buckets = plan.bucket_plan()
    steps = _simulated(problem, plan.step_policy(), plan_times(problem, plan))
    return Expectation(
        steps=steps,
        prefill=use_of_prefill(
            buckets,
            Shapes.of_prefill(steps),
            problem.costs,
            problem.settings.prefix,
        ),
        decode=use_of_decode(buckets, Shapes.of_decode(steps), problem.costs),
    )


def demand_of(problem: Problem) -> Steps:
    """Return the steps of the traffic if there were a graph for every shape."""
    return filling_steps(problem, RealShapes(problem.costs))


def filling_steps(problem: Problem, times: StepTimes) -> Steps:
    """Return the steps of the traffic where prompts fill the largest graph and steps take times."""
    limits = problem.limits
    return _simulated(problem, FillPolicy.of(limits, limits.max_prefill_tokens), times)


def plan_times(problem: Problem, plan: PlanFile) -> StepTimes:
    """Return what steps take in the graphs of a plan."""
    return PlannedShapes(plan.bucket_plan(), problem.costs, problem.settings.prefix)


def plan_of(
    problem: Problem, prefill: Sequence[Bucket], decode: Sequence[Bucket], policy: PolicyName
) -> PlanFile:
    """Return a plan of these graphs, with their seconds and, for ``cover``, their chunks."""
    sizes = np.array(sorted(bucket.size for bucket in prefill), dtype=np.int64)
    chooser = Chooser(problem.limits, problem.costs, problem.settings, lambda bucket: 0.0)
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
