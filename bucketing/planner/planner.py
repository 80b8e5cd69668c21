"""From traffic to a plan: simulate, choose sets within the budget, and once more with them.

Faster steps change who runs beside whom, hence the second round; how much it changed is reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..buckets import Bucket
from ..plan_file import PlanFile
from ..sets.prefill import fewest_sizes, least_ratio
from .budget import Bill, BudgetError, Option, bills, choose, fits, pareto
from .candidates import Weighed, size_candidates
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
        weighed: how many graphs it was chosen from; the gap is above the best set of these.
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
    weighed: Weighed

    @property
    def prefill_proof(self) -> str:
        """How sure the prefill set is the best of its number: ``exact`` or ``searched``."""
        prefill = self.bill.prefill
        return "exact" if prefill.policy == "fill" and prefill.rule is None else "searched"


def make_plan(problem: Problem) -> Planned:
    """Return the best plan that was found for a problem.

    Raises:
        BudgetError: no plan keeps within the budget, or prefill sizes the ratio.
        ValueError: the trace cannot be simulated, see ``simulate``.
    """
    _check_ratio(problem)
    before = _choose(problem, RealShapes(problem.costs))
    after = before
    if problem.steps is None:
        after = _choose(problem, _filling_times(problem, before.plan))
    last = _unbeaten(problem, _improved(problem, after))
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
        weighed=_chooser(problem, 1.0).weighed(last.plan.policy, last.steps.decode),
    )


def _check_ratio(problem: Problem) -> None:
    """Refuse a ratio that no set keeps for all lengths: sets would keep it for the largest."""
    settings, sizes = problem.settings, size_candidates(problem.limits, problem.settings)
    ratio, most = settings.max_ratio, settings.max_num_graphs
    if ratio is None or settings.policy == "cover" or most < 2:
        return
    fewest = fewest_sizes(sizes, ratio)
    if fewest > most:
        raise BudgetError(
            f"a guard-rail of {ratio:g} takes {fewest:,} prefill graphs from {sizes[0]:,} to "
            f"{sizes[-1]:,} tokens; {most} are the most of a plan, which keep "
            f"{least_ratio(sizes, most):g}"
        )


@dataclass(frozen=True, slots=True)
class _Round:
    """A plan as one round chose it, and the options that follow spacing rules."""

    steps: Steps
    plan: PlanFile
    bill: Bill
    front: tuple[Bill, ...]
    prefill_rules: Sequence[Option]
    decode_rules: Sequence[Option]
    decode_gap: float | None = None
    is_cut_short: bool = False


def _choose(problem: Problem, times: StepTimes) -> _Round:
    """Choose for the steps that the traffic leads to if steps take these times."""
    steps = filling_steps(problem, times)
    chooser = _chooser(problem, _window_s(problem, steps))
    prefill: list[Option] = []
    if problem.settings.policy != "cover":
        prefill += chooser.padded(steps.prefill)
    if problem.settings.policy != "fill":
        prefill += chooser.covering(steps.prefill)
    if steps.decode_shapes:
        return _chosen(problem, steps, prefill, chooser.decode(steps.decode))
    for option in chooser.unknown_decode():
        try:
            found = _chosen(problem, steps, prefill, [option])
        except BudgetError as error:
            refused = error
        else:
            return replace(found, decode_rules=chooser.unknown_rules())
    raise refused


def _chosen(
    problem: Problem, steps: Steps, prefill: Sequence[Option], decode: Sequence[Option]
) -> _Round:
    """Return the best pair of options within the budget."""
    every, window_s = bills(prefill, decode, problem.fees), _window_s(problem, steps)
    bill = choose(every, problem.budget, window_s, min_saving=problem.settings.min_saving)
    alike = [one for one in every if one.prefill.policy == bill.prefill.policy]
    return _Round(
        steps,
        _plan_of(problem, bill),
        bill,
        pareto(alike),
        prefill_rules=[one for one in prefill if one.rule],
        decode_rules=[one for one in decode if one.rule],
    )


def _improved(problem: Problem, found: _Round) -> _Round:
    """Return the round with the best decode set of as many graphs that the search finds."""
    steps = found.steps
    if not steps.decode_shapes:
        return found
    chooser = _chooser(problem, _window_s(problem, steps))
    better = chooser.improved(found.bill.decode, steps.decode)
    bill = bills([found.bill.prefill], [better.option], problem.fees)[0]
    return replace(
        found,
        plan=_plan_of(problem, bill),
        bill=bill,
        decode_gap=better.gap,
        is_cut_short=better.is_cut_short,
    )


def _unbeaten(problem: Problem, found: _Round) -> _Round:
    """Return the round, with graphs of spacing rules where one of these does better.

    Options were weighed by a demand in which any shape may come and every step starts a prompt.
    Here counts what the very steps are expected to take, as in every comparison with a rule.
    """
    prefill = [found.bill.prefill, *found.prefill_rules]
    decode = [found.bill.decode, *found.decode_rules]
    expected = _as_expected(replace(problem, steps=found.steps), prefill, decode)
    budget, window_s = problem.budget, _window_s(problem, found.steps)
    own, *others = bills(*expected, problem.fees)
    rules = [bill for bill in others if bill.rule and fits(bill, budget)]
    if all(own.total_s(budget, window_s) <= bill.total_s(budget, window_s) for bill in rules):
        return found
    best = choose([own, *others], budget, window_s)
    places = (expected[0].index(best.prefill), expected[1].index(best.decode))
    bill = bills([prefill[places[0]]], [decode[places[1]]], problem.fees)[0]
    gap = found.decode_gap if places[1] == 0 else None
    return replace(found, plan=_plan_of(problem, bill), bill=bill, decode_gap=gap)


def _as_expected(
    problem: Problem, prefill: Sequence[Option], decode: Sequence[Option]
) -> tuple[list[Option], list[Option]]:
    """Return the options with the seconds that the steps of the problem are expected to take."""
    num = max(len(prefill), len(decode))
    plans = [
        plan_of(problem, one.buckets, other.buckets, one.policy)
        for one, other in zip(_filled(prefill, num), _filled(decode, num), strict=True)
    ]
    expected = [expectation(problem, plan) for plan in plans]
    return (
        [replace(o, seconds=e.prefill.seconds) for o, e in zip(prefill, expected, strict=False)],
        [replace(o, seconds=e.decode.seconds) for o, e in zip(decode, expected, strict=False)],
    )


def _filled(options: Sequence[Option], num: int) -> list[Option]:
    """Return ``num`` options, the first again where there are fewer."""
    return [*options, *[options[0]] * (num - len(options))]


def _plan_of(problem: Problem, bill: Bill) -> PlanFile:
    return plan_of(problem, bill.prefill.buckets, bill.decode.buckets, bill.prefill.policy)


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
