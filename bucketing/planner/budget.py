"""How many graphs of each phase: what a budget allows, and what saves most within it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from ..buckets import Bucket
from ..costs.cost import GraphFees
from ..plan_file import PolicyName


class BudgetError(ValueError):
    """No set of graphs keeps within the budget; one line that names it and what would fit."""


@dataclass(frozen=True, slots=True)
class Budget:
    """What graphs may cost.

    Attributes:
        compile_s: seconds until all graphs are compiled, with ``workers`` at once.
        workers: graphs that compile at once.
        num_bytes: that all graphs may take while they are loaded.
        max_num_graphs: of both phases together.
        horizon_s: seconds of such traffic that a compiled plan serves; compiling is weighed
            against what it saves in that time.
    """

    compile_s: float = inf
    workers: int = 1
    num_bytes: float = inf
    max_num_graphs: float = inf
    horizon_s: float = 86400.0

    def __post_init__(self) -> None:
        """Refuse amounts that are none."""
        for name in ("compile_s", "workers", "num_bytes", "max_num_graphs", "horizon_s"):
            value = getattr(self, name)
            if not value > 0:  # NaN is not, either
                raise BudgetError(f"{name} of a budget must be more than 0, got {value!r}")


@dataclass(frozen=True, slots=True)
class Option:
    """A set of graphs for one phase.

    Attributes:
        buckets: its graphs.
        seconds: that the steps of the traffic take with it.
        policy: of prefill graphs: how prompts fill steps.
        rule: name of the spacing rule that it is of; None: it was chosen for the traffic.
    """

    buckets: tuple[Bucket, ...]
    seconds: float
    policy: PolicyName = "fill"
    rule: str | None = None


@dataclass(frozen=True, slots=True)
class Bill:
    """What a plan costs to have, and to run.

    Attributes:
        prefill: graphs of prompts.
        decode: graphs of running requests.
        seconds: that all steps of the traffic take.
        compile_s: seconds of compiling, all workers together.
        num_bytes: of all graphs.
    """

    prefill: Option
    decode: Option
    seconds: float
    compile_s: float
    num_bytes: float

    @property
    def num_graphs(self) -> int:
        """Of both phases."""
        return len(self.prefill.buckets) + len(self.decode.buckets)

    @property
    def is_covering(self) -> bool:
        """Whether prompts run in several chunks: more steps, and more for drift to know."""
        return self.prefill.policy == "cover"

    @property
    def rule(self) -> str | None:
        """The spacing rule that both phases follow; None: they follow none, or two."""
        return self.prefill.rule if self.prefill.rule == self.decode.rule else None

    def total_s(self, budget: Budget, window_s: float) -> float:
        """Return the seconds of serving and compiling over the horizon.

        Args:
            budget: with the horizon.
            window_s: seconds that the traffic stands for.
        """
        return self.seconds * budget.horizon_s / window_s + self.compile_s / budget.workers


def bills(prefill: Sequence[Option], decode: Sequence[Option], fees: GraphFees) -> tuple[Bill, ...]:
    """Return what every pair of options costs."""
    return tuple(_bill(one, other, fees) for one in prefill for other in decode)


def choose(
    options: Sequence[Bill], budget: Budget, window_s: float, *, min_saving: float = 0.0
) -> Bill:
    """Return the pair of least total seconds over the horizon that keeps within the budget.

    Every pair is looked at. Of equal ones that with fewer graphs is taken, then the first.

    Args:
        options: all pairs.
        budget: what graphs may cost.
        window_s: seconds that the traffic stands for.
        min_saving: what each graph, and covering, must save besides compiling, as a share of the
            least seconds that the traffic takes with any pair. No pair is taken for it that a
            spacing rule beats: then more graphs are had.

    Raises:
        BudgetError: none keeps within it.
    """
    totals = [(bill, bill.total_s(budget, window_s)) for bill in options if fits(bill, budget)]
    if not totals:
        raise BudgetError(_smallest_text(options, budget))
    most = min((total for bill, total in totals if bill.rule), default=inf)
    least_s = min(bill.seconds for bill, _ in totals)
    price = min_saving * least_s * budget.horizon_s / window_s
    rated = (
        (total + price * (bill.num_graphs + bill.is_covering), bill.num_graphs, place)
        for place, (bill, total) in enumerate(totals)
        if total <= most
    )
    return totals[min(rated)[-1]][0]


def pareto(options: Sequence[Bill]) -> tuple[Bill, ...]:
    """Return the pairs that no other beats in compile seconds and in seconds of the traffic.

    In ascending order of compile seconds, so that each takes less than the one before it.
    """
    front: list[Bill] = []
    for bill in sorted(options, key=lambda one: (one.compile_s, one.seconds, one.num_graphs)):
        if not front or bill.seconds < front[-1].seconds:
            front.append(bill)
    return tuple(front)


def _bill(prefill: Option, decode: Option, fees: GraphFees) -> Bill:
    buckets = (*prefill.buckets, *decode.buckets)
    return Bill(
        prefill=prefill,
        decode=decode,
        seconds=prefill.seconds + decode.seconds,
        compile_s=sum(map(fees.compile_s, buckets)),
        num_bytes=sum(map(fees.num_bytes, buckets)),
    )


def fits(bill: Bill, budget: Budget) -> bool:
    """Tell whether a pair keeps within a budget."""
    return (
        bill.compile_s / budget.workers <= budget.compile_s
        and bill.num_bytes <= budget.num_bytes
        and bill.num_graphs <= budget.max_num_graphs
    )


def _smallest_text(options: Sequence[Bill], budget: Budget) -> str:
    """Say which limits there are, and what they must be at least; each may be met by itself."""
    compile_s = min(bill.compile_s for bill in options) / budget.workers
    num_bytes = min(bill.num_bytes for bill in options)
    num_graphs = min(bill.num_graphs for bill in options)
    workers = f"{budget.workers} worker{'s' * (budget.workers > 1)}"
    amounts = (
        (
            budget.compile_s,
            f"{budget.compile_s:g} s of compiling with {workers}",
            f"{compile_s:.1f} s",
        ),
        (budget.num_bytes, f"{budget.num_bytes:,.0f} bytes", f"{num_bytes:,.0f} bytes"),
        (budget.max_num_graphs, f"{budget.max_num_graphs:g} graphs", f"{num_graphs} graphs"),
    )
    limited = [(limit, least) for amount, limit, least in amounts if amount < inf]
    limits, least = (", ".join(column) for column in zip(*limited, strict=True))
    return f"no plan keeps within {limits}: the smallest takes {least}"
