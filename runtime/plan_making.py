"""Makes plans for tasks, with everything that their files say of themselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ..bucketing.costs.numbers import rounded_number
from ..bucketing.costs.reads import Prefix
from ..bucketing.plan_file import PlanFile
from ..bucketing.planner.about import about_plan
from ..bucketing.planner.baselines import Baseline, baselines
from ..bucketing.planner.budget import BudgetError
from ..bucketing.planner.outcome import Outcome, outcome, prefill_time_wastes
from ..bucketing.planner.planner import Planned, make_plan
from ..bucketing.traces.counted_engine import ABOUT_KEY
from .plan_files import PlanError
from .plan_problem import PlanTask

SIMILAR_SIZE = 1.5
"""A default may have so many times the graphs of a plan and still be compared with it."""
SMALL_GAIN = 0.02


@dataclass(frozen=True, slots=True, eq=False)
class MadePlan:
    """A plan and how it was made.

    Attributes:
        task: that it solves.
        planned: the plan, what it does and what it costs.
        outcome: what the plan does with the steps that it was chosen for.
        baselines: what the rules of others do with the same steps. Simulated once more with each,
            slower graphs would run more requests at once, and be as busy in the same hour.
        prefix_wastes: time waste of prefill steps by what kernels pay for the prefix.
        file: the plan with all that it says of itself.
    """

    task: PlanTask
    planned: Planned
    outcome: Outcome
    baselines: tuple[Baseline, ...]
    prefix_wastes: Mapping[Prefix, float]
    file: PlanFile

    @property
    def rival(self) -> Baseline | None:
        """The best rule of those with hardly more graphs, or that with the fewest graphs."""
        most = SIMILAR_SIZE * self.planned.bill.num_graphs
        similar = [one for one in self.baselines if one.num_graphs <= most]
        if similar:
            return min(similar, key=lambda one: (_seconds(one), one.num_graphs))
        return min(self.baselines, key=lambda one: one.num_graphs, default=None)

    @property
    def gain(self) -> float | None:
        """Share of the rival's seconds that the plan saves; None without a rival."""
        rival = self.rival
        return None if rival is None else 1 - self.outcome.seconds / _seconds(rival)


def make_planned_file(task: PlanTask, *, trace_name: str) -> MadePlan:
    """Return the best plan that was found.

    Raises:
        PlanError: no plan keeps within the budget, or the costs do not reach as far as it asks.
    """
    problem = task.problem
    try:
        planned = make_plan(problem)
    except BudgetError as error:
        raise PlanError(str(error)) from None
    except ImportError as error:
        raise PlanError(f"--prove: {error}") from None
    same_steps = replace(problem, steps=planned.demand)
    others = baselines(same_steps)
    wastes = prefill_time_wastes(planned.plan, planned.expected.steps, problem.costs)
    about = about_plan(problem, planned, task.costs, trace_name=trace_name, baselines=others)
    about["prefix_wastes"] = {name: rounded_number(waste) for name, waste in wastes.items()}
    about["notes"] = list(task.notes)
    about[ABOUT_KEY] = task.engine.about_mapping()
    return MadePlan(
        task=task,
        planned=planned,
        outcome=outcome(same_steps, planned.plan),
        baselines=others,
        prefix_wastes=wastes,
        file=replace(planned.plan, about=about),
    )


def _seconds(baseline: Baseline) -> float:
    return baseline.expected.prefill.seconds + baseline.expected.decode.seconds
