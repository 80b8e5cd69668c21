"""From measured runs to a report: medians, spread, ratios, and how far the roofline is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median

from .machine import Machine
from .offline import PeerResult
from .peers import NORIA
from .roofline import ModelCost, Roofs, job_flop, roofs
from .workload import Workload

LOUD_SHARE = 0.03
"""Other processes that use more of the CPUs than this make rates hard to compare."""


@dataclass(frozen=True, slots=True)
class Rate:
    """New tokens per second of several runs."""

    median: float
    lowest: float
    highest: float


@dataclass(frozen=True, slots=True)
class Row:
    """One variant of one engine.

    Attributes:
        engine: its name.
        weights: format that its weights are stored in.
        activations: dtype that it computes in.
        version: its version, None if it never was ready.
        seconds: every measured run.
        rate: None if it has no measured run.
        noria_ratio: rate over that of Noria with the same activations; None: no such rate.
        start_up_s: from process start to readiness.
        peak_rss_bytes: most memory held.
        roofs: bounds for these dtypes.
        roof_share: rate over the lowest roof.
        agreement: share of prompts whose first ids are those of the reference; None: not compared.
        others_share: largest CPU share of other processes during a run; None: not known.
        is_disturbed: whether that is too much for the rate to be compared.
        problem: why there are no runs, or fewer.
    """

    engine: str
    weights: str
    activations: str
    version: str | None
    seconds: tuple[float, ...]
    rate: Rate | None
    noria_ratio: float | None
    start_up_s: float | None
    peak_rss_bytes: int | None
    roofs: Roofs
    roof_share: float | None
    agreement: float | None
    others_share: float | None
    is_disturbed: bool
    problem: str | None


@dataclass(frozen=True, slots=True)
class Report:
    """A workload, the machine and a row per variant; ``notes`` are for whoever reads them."""

    model: str
    workload: Workload
    cost: ModelCost
    machine: Machine
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()

    def to_mapping(self) -> dict[str, object]:
        """Return everything as plain data; counts are exact, seconds and bytes unrounded."""
        return asdict(self) | {"job_flop": job_flop(self.cost, self.workload)}


def build_report(
    results: Sequence[PeerResult],
    *,
    model: str,
    workload: Workload,
    cost: ModelCost,
    machine: Machine,
    notes: Sequence[str] = (),
) -> Report:
    """Turn results into rows, in their order.

    Args:
        results: what was measured; Noria's are what the others are compared with.
        model: what the model is called.
        workload: what was run.
        cost: what the model costs.
        machine: limits for every dtype of activations.
        notes: what else a reader should know.
    """
    rows = tuple(
        _row(result, results, workload=workload, cost=cost, machine=machine) for result in results
    )
    return Report(model, workload, cost, machine, rows, tuple(notes))


def rate_of(seconds: Sequence[float], num_new_tokens: int) -> Rate | None:
    """Return the median rate of runs and its spread; None without runs."""
    if not seconds:
        return None
    rates = [num_new_tokens / one for one in seconds]
    return Rate(median(rates), min(rates), max(rates))


def is_loud(others_share: float | None) -> bool:
    """Return whether other processes used too much of the CPUs."""
    return others_share is not None and others_share > LOUD_SHARE


def agreement_of(result: PeerResult, results: Sequence[PeerResult]) -> float | None:
    """Return the share of prompts whose first ids are those of the reference.

    The reference is Noria in float32, or without it the first other float32 engine. Only float32
    is compared: bfloat16 decides near ties between two tokens either way.
    """
    compared = [r for r in results if r.variant.activations == "float32" and r.first_ids]
    reference = min(compared, key=lambda r: r.variant.engine != NORIA, default=None)
    if reference is None or reference is result or result not in compared:
        return None
    pairs = list(zip(result.first_ids, reference.first_ids, strict=True))
    return sum(ours == theirs for ours, theirs in pairs) / len(pairs)


def _row(
    result: PeerResult,
    results: Sequence[PeerResult],
    *,
    workload: Workload,
    cost: ModelCost,
    machine: Machine,
) -> Row:
    variant, started = result.variant, result.started
    seconds = tuple(sample.seconds for sample in result.samples)
    rate = rate_of(seconds, workload.num_new_tokens)
    bounds = roofs(
        cost,
        workload,
        flop_s=machine.flop_s[variant.activations],
        read_bytes_s=machine.read_bytes_s,
        stored=variant.stored,
    )
    others = _largest([sample.others_share for sample in result.samples])
    return Row(
        engine=variant.engine,
        weights=variant.stored.name,
        activations=variant.activations,
        version=started.version if started else None,
        seconds=seconds,
        rate=rate,
        noria_ratio=_ratio(rate, _noria_rate(variant.activations, results, workload=workload)),
        start_up_s=started.seconds if started else None,
        peak_rss_bytes=result.peak_rss_bytes,
        roofs=bounds,
        roof_share=rate.median / bounds.lowest if rate else None,
        agreement=agreement_of(result, results),
        others_share=others,
        is_disturbed=is_loud(others),
        problem=result.problem,
    )


def _noria_rate(
    activations: str, results: Sequence[PeerResult], *, workload: Workload
) -> Rate | None:
    for result in results:
        if (result.variant.engine, result.variant.activations) == (NORIA, activations):
            return rate_of([s.seconds for s in result.samples], workload.num_new_tokens)
    return None


def _ratio(rate: Rate | None, base: Rate | None) -> float | None:
    return rate.median / base.median if rate and base else None


def _largest(shares: Sequence[float | None]) -> float | None:
    return max((share for share in shares if share is not None), default=None)
