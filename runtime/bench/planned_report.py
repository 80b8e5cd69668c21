"""What ``noria bench plan`` found: padding as measured and as expected, tokens, rates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

PHASES = ("prefill", "decode")
MAX_DECODE_POINTS = 5.0
"""By which measured and expected decode waste may differ, in points of a percent."""


@dataclass(frozen=True, slots=True)
class PhaseWork:
    """Tokens of one phase, as measured or as expected.

    Attributes:
        num_steps: that ran.
        real_tokens: of requests.
        padded_tokens: with padding.
        seconds: of the steps; None where the plan knows none.
    """

    num_steps: int
    real_tokens: int
    padded_tokens: int
    seconds: float | None

    @property
    def waste(self) -> float:
        """Padding beside real tokens, as a share of these."""
        return self.padded_tokens / self.real_tokens - 1 if self.real_tokens else 0.0


@dataclass(frozen=True, slots=True)
class EngineRun:
    """One engine's run of the requests.

    Attributes:
        buckets: what its graphs come from.
        num_graphs: that it has.
        seconds: from the first submission to the last token.
        phases: work by phase.
        token_ids: of each request.
    """

    buckets: str
    num_graphs: int
    seconds: float
    phases: Mapping[str, PhaseWork]
    token_ids: tuple[tuple[int, ...], ...]

    @property
    def num_output_tokens(self) -> int:
        """Of all requests."""
        return sum(map(len, self.token_ids))

    @property
    def tokens_per_s(self) -> float:
        """Generated tokens per second of the whole run."""
        return self.num_output_tokens / self.seconds


@dataclass(frozen=True, slots=True)
class PlannedReport:
    """What a plan promised and what it gave.

    Attributes:
        num_requests: that ran.
        num_prompt_tokens: of them.
        expected: by the planner, by phase.
        planned: run of the plan's engine.
        baseline: run of an engine with powers of two; None if it was left out.
        warnings: about the traffic.
    """

    num_requests: int
    num_prompt_tokens: int
    expected: Mapping[str, PhaseWork]
    planned: EngineRun
    baseline: EngineRun | None
    warnings: tuple[str, ...]

    @property
    def is_prefill_exact(self) -> bool:
        """Whether prefill ran the expected steps, tokens and padding."""
        return _counts(self.planned.phases["prefill"]) == _counts(self.expected["prefill"])

    @property
    def decode_points(self) -> float:
        """Measured less expected waste of decode steps, in points of a percent."""
        return 100 * (self.planned.phases["decode"].waste - self.expected["decode"].waste)

    @property
    def are_tokens_equal(self) -> bool:
        """Whether every request got the tokens that it gets with powers of two."""
        return self.baseline is None or self.planned.token_ids == self.baseline.token_ids

    @property
    def is_as_expected(self) -> bool:
        """Whether all of this is as it must be."""
        is_near = abs(self.decode_points) <= MAX_DECODE_POINTS
        return self.is_prefill_exact and is_near and self.are_tokens_equal

    def to_mapping(self) -> dict[str, object]:
        """Return everything but the tokens as plain data."""
        runs = [run for run in (self.planned, self.baseline) if run is not None]
        return {
            "num_requests": self.num_requests,
            "num_prompt_tokens": self.num_prompt_tokens,
            "expected": {phase: asdict(work) for phase, work in self.expected.items()},
            "runs": [_run_mapping(run) for run in runs],
            "is_prefill_exact": self.is_prefill_exact,
            "decode_points": self.decode_points,
            "are_tokens_equal": self.are_tokens_equal,
            "warnings": list(self.warnings),
        }


def _counts(work: PhaseWork) -> tuple[int, int, int]:
    return work.num_steps, work.real_tokens, work.padded_tokens


def _run_mapping(run: EngineRun) -> dict[str, object]:
    return {
        "buckets": run.buckets,
        "num_graphs": run.num_graphs,
        "seconds": run.seconds,
        "num_output_tokens": run.num_output_tokens,
        "tokens_per_s": run.tokens_per_s,
        "phases": {phase: asdict(work) for phase, work in run.phases.items()},
    }
