"""What a plan file says of itself: where it comes from, what it expects, and how sure that is.

Plain data throughout. With the steps and costs that are in it, others can be asked of the plan
later, without the traffic.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from math import inf
from typing import TypeVar

from ..costs.numbers import finite_number, rounded_number
from ..costs.saved import SavedCosts
from ..costs.table_data import read_count
from ..plan_file import PlanFileError
from ..traces.trace import Trace
from .baselines import Baseline
from .budget import Bill, Budget
from .evaluation import PhaseUse
from .planner import Planned
from .problem import Expectation, Problem
from .simulation import Steps

Shape = TypeVar("Shape", bound=tuple[int, ...])


def about_plan(
    problem: Problem,
    planned: Planned,
    costs: SavedCosts,
    *,
    trace_name: str,
    baselines: Sequence[Baseline] = (),
) -> dict[str, object]:
    """Return everything about a plan that its file keeps.

    Args:
        problem: that it solves.
        planned: the solution.
        costs: those of the problem.
        trace_name: what people call the traffic; no folder.
        baselines: what others' rules do with the same traffic.
    """
    steps = planned.expected.steps
    return {
        "trace": {
            "name": trace_name,
            **_trace_mapping(problem.trace),
            "window_s": rounded_number(steps.seconds),
        },
        "costs": dict(costs.data),
        "settings": {**asdict(problem.settings), "must_have": list(problem.settings.must_have)},
        "budget": budget_mapping(problem.budget),
        "expected": expected_mapping(planned.expected),
        "bill": bill_mapping(planned.bill, problem.budget),
        "proof": {
            "prefill": planned.prefill_proof,
            "prefill_rule": planned.bill.prefill.rule,
            "decode_rule": planned.bill.decode.rule,
            "weighed": asdict(planned.weighed),
            "decode_gap": None
            if planned.decode_gap is None
            else rounded_number(planned.decode_gap),
            "changed_share": rounded_number(planned.changed_share),
            "is_cut_short": planned.is_cut_short,
        },
        "front": [bill_mapping(bill, problem.budget) for bill in planned.front],
        "warm_up": [
            [point.label, rounded_number(point.compile_s), rounded_number(point.seconds)]
            for point in planned.order[1:]
        ],
        "baselines": {
            one.name: {
                "num_graphs": one.num_graphs,
                "compile_s": rounded_number(one.compile_s),
                "num_bytes": rounded_number(one.num_bytes),
                **expected_mapping(one.expected),
            }
            for one in baselines
        },
        "demand": steps_mapping(planned.demand),
    }


def _trace_mapping(trace: Trace | None) -> dict[str, object]:
    if trace is None:
        return {}
    return {
        "sha256": trace.sha256,
        "num_requests": trace.num_requests,
        "warnings": list(trace.warnings),
    }


def expected_mapping(expected: Expectation) -> dict[str, object]:
    """Return what a plan does with traffic: shares of waste, and seconds."""
    return {
        "seconds": rounded_number(expected.prefill.seconds + expected.decode.seconds),
        "prefill": _use_mapping(expected.prefill),
        "decode": _use_mapping(expected.decode),
    }


def bill_mapping(bill: Bill, budget: Budget) -> dict[str, object]:
    """Return what having a plan costs; ``wall_s`` is with all workers."""
    return {
        "num_prefill": len(bill.prefill.buckets),
        "num_decode": len(bill.decode.buckets),
        "seconds": rounded_number(bill.seconds),
        "compile_s": rounded_number(bill.compile_s),
        "wall_s": rounded_number(bill.compile_s / budget.workers),
        "num_bytes": rounded_number(bill.num_bytes),
    }


def budget_mapping(budget: Budget) -> dict[str, object]:
    """Return a budget; what is not limited is None."""
    return {
        name: None if value == float("inf") else value for name, value in asdict(budget).items()
    }


def steps_mapping(steps: Steps) -> dict[str, object]:
    """Return steps as text, a shape and its number on each line; ``read_demand`` reads them back.

    Behind decode steps stand the tokens that their requests have on average, where these are known.
    A YAML reader takes seconds for as many lists of numbers.
    """
    return {
        "seconds": rounded_number(steps.seconds),
        "busy_s": rounded_number(steps.busy_s),
        "num_preemptions": steps.num_preemptions,
        "prefill": _text(steps.prefill_shapes),
        "decode": _text(steps.decode_shapes, steps.live_lens),
    }


def read_demand(about: Mapping[str, object]) -> Steps:
    """Return the steps that a plan was chosen for, as its file keeps them.

    All that is asked of a plan later is asked of these, whatever runs them: how many requests run
    at once does not change with the graphs then. What it does with its own steps is ``expected``.

    Args:
        about: of the plan file.

    Raises:
        PlanFileError: it keeps none, or they are damaged.
    """
    given = about.get("demand")
    if not isinstance(given, Mapping):
        raise PlanFileError("about.demand: is missing; the plan was not made by noria plan")
    try:
        decode = {(a, b): (num, live) for (a, b), num, live in _shapes(given["decode"], 2)}
        return Steps(
            {(a, b, c, d): num for (a, b, c, d), num, _ in _shapes(given["prefill"], 4)},
            {shape: num for shape, (num, _) in decode.items()},
            _seconds(given, "seconds"),
            _seconds(given, "busy_s"),
            read_count("demand", given, "num_preemptions", 0),
            {shape: live for shape, (_, live) in decode.items() if live is not None},
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        text = " ".join(str(error).split())
        raise PlanFileError(f"about.demand: is damaged: {text:.80}") from None


def _seconds(given: Mapping[str, object], key: str) -> float:
    seconds = finite_number(given[key])
    if seconds is None or seconds < 0:
        raise ValueError(f"{key} is {given[key]!r:.40}; must be 0 or more")
    return seconds


def _text(shapes: Mapping[Shape, float], live_lens: Mapping[Shape, float] | None = None) -> str:
    lines = []
    for shape, num in sorted(shapes.items()):
        line = [*map(str, shape), _number_text(num)]
        if live_lens is not None and shape in live_lens:
            line.append(_number_text(live_lens[shape]))
        lines.append(" ".join(line))
    return "\n".join(lines)


def _number_text(num: float) -> str:
    return f"{num:.0f}" if float(num).is_integer() else repr(rounded_number(num))


def _shapes(text: str, num_sizes: int) -> Iterator[tuple[tuple[int, ...], float, float | None]]:
    """Yield the sizes of each shape, its number, and what stands behind it."""
    for line in text.split("\n") if text else ():
        words = line.split(" ")
        sizes, (num, *more) = tuple(map(int, words[:num_sizes])), words[num_sizes:]
        numbers = [float(num), *map(float, more)]
        is_fit = min(sizes[:2]) >= 1 and min(sizes) >= 0 and len(more) <= (num_sizes == 2)
        if not is_fit or not all(0 <= number < inf for number in numbers):
            raise ValueError(f"{line!r} is no shape of a step and its number")
        yield sizes, numbers[0], numbers[1] if more else None


def _use_mapping(use: PhaseUse) -> dict[str, object]:
    return {
        "waste": rounded_number(use.waste),
        "time_waste": rounded_number(use.time_waste),
        "seconds": rounded_number(use.seconds),
        "num_tokens": rounded_number(use.num_tokens),
        "num_padded_tokens": rounded_number(use.num_padded_tokens),
    }
