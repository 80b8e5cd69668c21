"""Whether traffic has moved away from a plan, and whether a new one is worth its compiling."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

from ..buckets import Bucket
from ..plan_file import PlanFile
from .outcome import Outcome, buckets_of, outcome
from .planner import make_plan
from .problem import Problem
from .simulation import Steps


@dataclass(frozen=True, slots=True)
class Drift:
    """A plan beside one that was made for what ran.

    Attributes:
        running: what the plan does with it.
        fresh: what a new plan does with it, within the same budget.
        added: graphs that only the new plan has.
        dropped: graphs that only the old plan has.
        window_s: seconds that the steps stand for.
        horizon_s: seconds for which a new plan would serve.
        compile_s: seconds until what is added is compiled, with all workers.
    """

    running: Outcome
    fresh: Outcome
    added: tuple[Bucket, ...]
    dropped: tuple[Bucket, ...]
    window_s: float
    horizon_s: float
    compile_s: float

    @property
    def regret_s(self) -> float:
        """Seconds of the window that the old plan takes more than the new one."""
        return max(0.0, self.running.seconds - self.fresh.seconds)

    @property
    def regret_share(self) -> float:
        """The same as a share of what the new plan takes."""
        return self.regret_s / self.fresh.seconds if self.fresh.seconds else 0.0

    @property
    def regret_per_hour_s(self) -> float:
        """Seconds of each hour."""
        return self.regret_s / self.window_s * 3600

    @property
    def pays_back_s(self) -> float:
        """Seconds of such traffic after which compiling has paid; infinite: never."""
        if not self.regret_s:
            return inf
        return self.compile_s * self.window_s / self.regret_s

    @property
    def is_worth_it(self) -> bool:
        """Whether a new plan saves more than it takes to compile, within the horizon."""
        return self.regret_s * self.horizon_s / self.window_s > self.compile_s


def drift(
    problem: Problem, plan: PlanFile, steps: Steps, *, window_s: float | None = None
) -> Drift:
    """Weigh a new plan for what ran against the one that ran it.

    Args:
        problem: of the plan; its budget holds for the new one.
        plan: that ran.
        steps: what ran, see ``given_steps.counted_steps``.
        window_s: seconds that this took; None: as long as the steps take one after the other.

    Raises:
        BudgetError: no plan keeps within the budget.
    """
    given = replace(problem, trace=None, steps=steps)
    running = outcome(given, plan)
    window_s = running.seconds if window_s is None else window_s
    given = replace(given, steps=replace(steps, seconds=window_s))
    other = make_plan(given).plan
    old, new = buckets_of(plan), buckets_of(other)
    added = tuple(bucket for bucket in new if bucket not in old)
    return Drift(
        running=running,
        fresh=outcome(given, other),
        added=added,
        dropped=tuple(bucket for bucket in old if bucket not in new),
        window_s=window_s,
        horizon_s=problem.budget.horizon_s,
        compile_s=sum(map(problem.fees.compile_s, added)) / problem.budget.workers,
    )
