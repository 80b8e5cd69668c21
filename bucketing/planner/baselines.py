"""What other systems' spacing rules do with the same traffic."""

from __future__ import annotations

from dataclasses import dataclass

from ..buckets import Bucket, DecodeBucket, PrefillBucket
from ..ladder import SEQS, SPACING, TOKENS
from ..plan_file import PlanFile
from .problem import Expectation, Problem, expectation, plan_of

BASELINES = {
    "vLLM Neuron (powers of two)": "powers_of_two",
    "Gaudi (exponential)": "exponential",
    "linear": "linear",
}
"""Spacing rules by the system whose default they are."""


def system_of(rule: str) -> str:
    """Return the system whose default a spacing rule is."""
    return next(name for name, one in BASELINES.items() if one == rule)


@dataclass(frozen=True, slots=True, eq=False)
class Baseline:
    """A spacing rule and what it does.

    Attributes:
        name: of the system.
        plan: its graphs.
        num_graphs: of both phases.
        compile_s: seconds of compiling, all workers together.
        num_bytes: of all graphs.
        expected: what it does with the traffic.
    """

    name: str
    plan: PlanFile
    num_graphs: int
    compile_s: float
    num_bytes: float
    expected: Expectation


def baselines(problem: Problem) -> tuple[Baseline, ...]:
    """Return all rules; prompts fill the largest graph, decode graphs have the largest context.

    A rule that would need more graphs than any plan may have is left out.
    """
    found = []
    for name, rule in BASELINES.items():
        try:
            found.append(_baseline(problem, name, rule))
        except ValueError:
            continue
    return tuple(found)


def _baseline(problem: Problem, name: str, rule: str) -> Baseline:
    limits, fees = problem.limits, problem.fees
    context = limits.max_model_len
    tokens = SPACING[rule](TOKENS, limits.max_prefill_tokens)
    prefill = [PrefillBucket(size, context) for size in tokens]
    decode = [
        DecodeBucket(size, context, limits.query_len)
        for size in SPACING[rule](SEQS, limits.max_num_seqs)
    ]
    plan = plan_of(problem, prefill, decode, "fill")
    buckets: tuple[Bucket, ...] = (*prefill, *decode)
    return Baseline(
        name=name,
        plan=plan,
        num_graphs=len(buckets),
        compile_s=sum(map(fees.compile_s, buckets)),
        num_bytes=sum(map(fees.num_bytes, buckets)),
        expected=expectation(problem, plan),
    )
