"""From traffic to a plan: simulate, choose sets within the budget, and once more with them.

Faster steps change who runs beside whom, hence the second round; how much it changed is reported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..buckets import Bucket
from ..plan_file import PlanFile, PolicyName
from .budget import Bill, BudgetError, Option, bills, choose, pareto
from .evaluation import Shapes, real_seconds
from .options import Chooser
from .order import WarmUpPoint, warm_up_order
from .problem import Expectation, Problem, expectation, filling_steps, plan_of, plan_times
from .simulation import Steps
from .step_times import EachPhase, RealShapes, StepTimes


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
        is_cut_short: whether a clock ended the search for decode graphs, so that another machine
            may find others.
    """

    plan: PlanFile
    expected: Expectation
    demand: Steps
    bill: Bill
    front: tuple[Bill, ...]
    order: tuple[WarmUpPoint, ...]
    decode_gap: float | None
    changed_share: float
    is_cut_short: bool


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
    order = warm_up_order(
        last.plan.bucket_plan(),
        prefill,
        decode,
        problem.fees.compile_s,
        float(problem.costs.live_s(decode.sizes, decode.live_lens) @ decode.weights),
    )
    return Planned(
        plan=replace(last.plan, order=tuple(point.label for point in order)),
        expected=expected,
        demand=last.steps,
        bill=last.bill,
        front=last.front,
        order=order,
        decode_gap=last.decode_gap,
        changed_share=abs(last.bill.seconds / before.bill.seconds - 1),
        is_cut_short=last.is_cut_short,
    )


@dataclass(frozen=True, slots=True)
class _Round:
    """A plan as one round chose it."""

    steps: Steps
    plan: PlanFile
    bill: Bill
    front: tuple[Bill, ...]
    decode_gap: float | None = None
    is_cut_short: bool = False


def _choose(problem: Problem, times: StepTimes) -> _Round:
    """Choose for the steps that the traffic leads to if steps take these times."""
    steps = filling_steps(problem, times)
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
    better = chooser.improved(found.bill.decode, steps.decode)
    bill = bills([found.bill.prefill], [better.option], problem.fees)[0]
    plan = plan_of(problem, bill.prefill.buckets, bill.decode.buckets, found.plan.policy)
    return replace(
        found, plan=plan, bill=bill, decode_gap=better.gap, is_cut_short=better.is_cut_short
    )


def _window_s(problem: Problem, steps: Steps) -> float:
    """Return the seconds that steps stand for: at least what they take one after the other."""
    return max(steps.seconds, steps.busy_s or real_seconds(steps, problem.costs))


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
        return plan_times(problem, plan)
    return EachPhase(RealShapes(problem.costs), plan_times(problem, plan))
