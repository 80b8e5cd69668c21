"""Everything that a report shows, as numbers and names. Shares are of 1; times are seconds."""

from __future__ import annotations

from dataclasses import dataclass

from ..planner.candidates import Weighed
from .bands import Band, Percentile, WastePoint

PLAN_NAME = "this plan"


@dataclass(frozen=True, slots=True)
class TrafficFacts:
    """The traffic. ``window_s``: from the first arrival to the end, ``busy_s``: of it in steps.

    ``num_requests`` is None where only the steps are known.
    """

    name: str
    sha256: str
    num_requests: float | None
    window_s: float
    busy_s: float
    mean_num_seqs: float
    num_preemptions: int
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CostFacts:
    """Where the seconds come from; ``error_share``: of measured steps, None: none were measured."""

    source: str
    error_share: float | None
    left_out_error_share: float | None
    prefix: str
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PhaseFacts:
    """One phase of a plan: ``floor_s`` if each step had a graph of exactly its shape.

    ``waste`` is of tokens, ``time_waste`` of seconds.
    """

    phase: str
    num_graphs: int
    num_steps: float
    seconds: float
    floor_s: float
    waste: float
    time_waste: float

    @property
    def step_s(self) -> float:
        """Of a step, on average."""
        return self.seconds / self.num_steps if self.num_steps else 0.0


@dataclass(frozen=True, slots=True)
class GraphFacts:
    """One graph: what runs in it and what it is worth.

    Attributes:
        label: of the graph.
        phase: ``prefill`` or ``decode``.
        size: tokens or requests.
        context_len: tokens of one request.
        num_steps: that run in it.
        step_share: of the phase's steps.
        seconds: of its steps.
        saved_s: by which they would take longer without it; None: nothing else can run them.
        longer_share: ``saved_s`` as a share of all seconds.
        compile_s: of one worker.
        num_bytes: while it is loaded.
        pays_after_s: seconds of such traffic until it saved what compiling it takes; None: never,
            or nothing else can run its steps.
    """

    label: str
    phase: str
    size: int
    context_len: int
    num_steps: float
    step_share: float
    seconds: float
    saved_s: float | None
    longer_share: float | None
    compile_s: float
    num_bytes: float
    pays_after_s: float | None


@dataclass(frozen=True, slots=True)
class BillFacts:
    """What graphs cost to have. ``wall_s``: until all are compiled, by all workers.

    ``seconds``: what the traffic takes with them, as the planner weighed it: with a little of
    every shape in it, and in the steps of its last round.
    """

    num_prefill: int
    num_decode: int
    compile_s: float
    wall_s: float
    num_bytes: float
    seconds: float

    @property
    def num_graphs(self) -> int:
        """Of both phases."""
        return self.num_prefill + self.num_decode


@dataclass(frozen=True, slots=True)
class BudgetFacts:
    """What graphs may cost; None: any."""

    wall_s: float | None
    workers: int
    num_bytes: float | None
    num_graphs: float | None
    horizon_s: float


@dataclass(frozen=True, slots=True)
class WarmUpFacts:
    """After a graph: ``wall_s`` of all workers, ``seconds`` of the traffic with those so far."""

    label: str
    wall_s: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Coverage:
    """A count of every shape that a step of a phase may have, and of those with a graph.

    Attributes:
        phase: ``prefill`` or ``decode``.
        max_size: rows that the step policy fills at most, or requests; all from 1 on are counted.
        max_context_len: tokens of one request; so is every context.
        num_shapes: sizes times contexts.
        num_covered: of them, those that a graph holds.
        missing: the first (size, context) without a graph.
        idle: labels of graphs that no shape is sent to.
    """

    phase: str
    max_size: int
    max_context_len: int
    num_shapes: int
    num_covered: int
    missing: tuple[int, int] | None
    idle: tuple[str, ...]

    @property
    def is_proven(self) -> bool:
        """Whether no step can be without a graph."""
        return self.num_covered == self.num_shapes


@dataclass(frozen=True, slots=True)
class PrefixFacts:
    """Prefill seconds if kernels pay so for cached tokens; ``time_waste``: above what is read."""

    prefix: str
    seconds: float
    time_waste: float


@dataclass(frozen=True, slots=True)
class Rule:
    """A set of graphs beside others: the plan, or the default of another system.

    ``saved_share``: of its time, what the plan saves.
    """

    name: str
    num_graphs: int
    wall_s: float
    num_bytes: float
    prefill: PhaseFacts
    decode: PhaseFacts
    saved_share: float

    @property
    def seconds(self) -> float:
        """Of all steps."""
        return self.prefill.seconds + self.decode.seconds


@dataclass(frozen=True, slots=True)
class Case:
    """The plan under other conditions.

    Attributes:
        about: what is other: ``costs`` or ``traffic``.
        name: how.
        seconds: of all steps.
        floor_s: of them in graphs of exactly their shapes.
        decode_step_s: of a decode step, on average.
        default_s: of all steps that the default leads to; None without one.
        default_step_s: of a decode step of these, on average.
    """

    about: str
    name: str
    seconds: float
    floor_s: float
    decode_step_s: float
    default_s: float | None
    default_step_s: float | None

    @property
    def time_waste(self) -> float:
        """Seconds beside those of graphs for every shape, as a share of these."""
        return self.seconds / self.floor_s - 1 if self.floor_s else 0.0

    @property
    def saved_share(self) -> float | None:
        """Of the default's time, what the plan saves."""
        return 1 - self.seconds / self.default_s if self.default_s else None


@dataclass(frozen=True, slots=True)
class Proof:
    """How sure it is that the plan is the best, see ``Planned``, and whether decode is known.

    ``rules``: spacing rules whose prefill sizes and decode graphs nothing that was found beats.
    """

    policy: str
    prefill: str
    decode_shape: str
    knows_decode: bool
    decode_gap: float | None
    changed_share: float
    is_cut_short: bool
    rules: tuple[str | None, str | None]
    weighed: Weighed


@dataclass(frozen=True, slots=True)
class Report:
    """All of it.

    ``phases`` and ``graphs`` are of the steps that the plan leads to. ``rules`` are compared for
    the same steps: the first is the plan, the second, if any, the default. So are the bands of
    decode. What is of prompts is empty where these are not known.
    """

    traffic: TrafficFacts
    limits: tuple[tuple[str, int], ...]
    costs: CostFacts
    phases: tuple[PhaseFacts, PhaseFacts]
    graphs: tuple[GraphFacts, ...]
    prompt_bands: tuple[Band, ...]
    row_bands: tuple[Band, ...]
    request_bands: tuple[Band, ...]
    context_bands: tuple[Band, ...]
    payers: tuple[Percentile, ...]
    wastes: tuple[WastePoint, ...]
    curve: tuple[BillFacts, ...]
    bill: BillFacts
    budget: BudgetFacts
    warm_up: tuple[WarmUpFacts, ...]
    coverage: tuple[Coverage, ...]
    prefixes: tuple[PrefixFacts, ...]
    rules: tuple[Rule, ...]
    cases: tuple[Case, ...]
    num_case_requests: int
    proof: Proof

    @property
    def seconds(self) -> float:
        """Of the steps that the plan leads to."""
        return sum(phase.seconds for phase in self.phases)

    @property
    def time_waste(self) -> float:
        """Of these, beside those of graphs for every shape, as a share of them."""
        floor_s = sum(phase.floor_s for phase in self.phases)
        return self.seconds / floor_s - 1 if floor_s else 0.0

    @property
    def plan(self) -> Rule:
        """What was planned."""
        return self.rules[0]

    @property
    def default(self) -> Rule | None:
        """What it is compared with first."""
        return self.rules[1] if len(self.rules) > 1 else None
