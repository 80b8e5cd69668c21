"""A plan that was made from traffic, as plain data: what an engine runs and what is known about it.

Whoever reads or writes the file itself hands the data in here; nothing here opens files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from itertools import pairwise
from math import isfinite
from typing import Literal, get_args

from .buckets import Bucket, BucketPlan, DecodeBucket, PrefillBucket, ScoreBucket
from .ladder import require_positive
from .plan import PlanLimits
from .policy import CoverPolicy, FillPolicy, StepPolicy

FORMAT = 1
KEY = "noria_plan"
PolicyName = Literal["fill", "cover"]


class PlanFileError(ValueError):
    """A plan file that cannot be used; one line that names the place, its value and what fits."""


@dataclass(frozen=True, slots=True)
class PlannedGraph:
    """One graph and the seconds that a step of it is planned to take."""

    bucket: Bucket
    seconds: float


@dataclass(frozen=True, slots=True)
class PlanFile:
    """All that a plan file holds.

    Attributes:
        limits: that it was planned for; an engine must have the same.
        prefill: graphs, each with its seconds.
        decode: graphs, each with its seconds.
        policy: how prompts fill a step: ``fill`` the largest graph, or ``cover`` by ``chunks``.
        chunks: of ``cover``: (rows, chunk) pairs, ascending: from so many waiting rows on, a step
            takes this chunk. The first is for 1 row. Empty for ``fill``.
        order: labels of all graphs, in the order in which they are worth being compiled.
        about: what people and other commands want to know: traffic, costs, expectations, proof.

    >>> limits = PlanLimits(512, 4, 512, 4, 16)
    >>> graphs = [PlannedGraph(PrefillBucket(size, 512), size / 1e4) for size in (96, 512)]
    >>> plan = PlanFile(limits, tuple(graphs), (PlannedGraph(DecodeBucket(4, 512), 0.02),))
    >>> plan.bucket_plan().pick_prefill(97, 512).label
    'prefill_t512_c512'
    >>> PlanFile.from_mapping(plan.to_mapping()) == plan
    True
    """

    limits: PlanLimits
    prefill: tuple[PlannedGraph, ...]
    decode: tuple[PlannedGraph, ...]
    policy: PolicyName = "fill"
    chunks: tuple[tuple[int, int], ...] = ()
    order: tuple[str, ...] = ()
    about: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse a plan that no engine can run.

        Raises:
            PlanFileError: names what is wrong and what would fit.
        """
        self._check_limits()
        self._check_chunks()
        labels = [graph.bucket.label for graph in (*self.prefill, *self.decode)]
        if self.order and sorted(self.order) != sorted(labels):
            raise PlanFileError(f"order: must list every graph once, {', '.join(sorted(labels))}")

    def bucket_plan(self, *, has_scores: bool = False) -> BucketPlan:
        """Return the graphs for an engine, which dispatches by their seconds.

        ``has_scores`` adds the graph for logprobs of prompts, see ``plan_buckets``.
        """
        graphs = (*self.prefill, *self.decode)
        prefill = [one.bucket for one in graphs if isinstance(one.bucket, PrefillBucket)]
        smallest = min(bucket.num_tokens for bucket in prefill)
        score = (ScoreBucket(smallest, self.limits.max_model_len),) if has_scores else ()
        return BucketPlan(
            tuple(prefill),
            tuple(one.bucket for one in graphs if isinstance(one.bucket, DecodeBucket)),
            score,
            seconds={one.bucket: one.seconds for one in graphs},
            order=self.order,
        )

    def step_policy(self) -> StepPolicy:
        """Return how prompts fill a step."""
        limits, largest = self.limits, max(graph.bucket.size for graph in self.prefill)
        if self.policy == "cover":
            return CoverPolicy.of_changes(
                self.chunks,
                largest,
                max_num_seqs=limits.max_num_prefill_seqs,
                prefill_tile=limits.prefill_tile,
            )
        return FillPolicy.of(limits, largest)

    def to_mapping(self) -> dict[str, object]:
        """Return plain data that ``from_mapping`` turns into an equal plan."""
        return {
            KEY: FORMAT,
            "limits": asdict(self.limits),
            "prefill": {
                "policy": self.policy,
                "graphs": [_row(graph) for graph in self.prefill],
                "chunks": [list(pair) for pair in self.chunks],
            },
            "decode": {"graphs": [_row(graph) for graph in self.decode]},
            "order": list(self.order),
            "about": dict(self.about),
        }

    @classmethod
    def from_mapping(cls, data: object) -> PlanFile:
        """Read what ``to_mapping`` gave, or a person wrote.

        Raises:
            PlanFileError: names the place, its value and what would fit.
        """
        whole = _mapping("plan", data, {KEY, "limits", "prefill", "decode"}, {"order", "about"})
        if whole[KEY] is True or whole[KEY] != FORMAT:
            raise PlanFileError(f"{KEY}: is {whole[KEY]!r}; this version reads format {FORMAT}")
        prefill = _mapping("prefill", whole["prefill"], {"graphs"}, {"policy", "chunks"})
        decode = _mapping("decode", whole["decode"], {"graphs"}, set())
        limits = read_limits("limits", whole["limits"])
        about = _mapping("about", whole.get("about", {}), set(), None)
        return cls(
            limits=limits,
            prefill=_graphs("prefill", prefill["graphs"], limits),
            decode=_graphs("decode", decode["graphs"], limits),
            policy=_policy(prefill.get("policy", "fill")),
            chunks=_chunks(prefill.get("chunks", [])),
            order=tuple(_texts("order", whole.get("order", []))),
            about=about,
        )

    def _check_limits(self) -> None:
        limits = self.limits
        self._check_phase("prefill", self.prefill, limits.max_prefill_tokens, "tokens")
        self._check_phase("decode", self.decode, limits.max_num_seqs, "requests")

    def _check_phase(
        self, phase: str, graphs: Sequence[PlannedGraph], limit: int, name: str
    ) -> None:
        if not graphs:
            raise PlanFileError(f"{phase}.graphs: is empty; every phase needs a graph")
        found = {(graph.bucket.size, graph.bucket.context_len) for graph in graphs}
        if len(found) < len(graphs):
            raise PlanFileError(f"{phase}.graphs: names a graph twice")
        largest = max(size for size, _ in found)
        may_be_less = phase == "prefill" and self.policy == "cover"  # the rest runs in more chunks
        context = self.limits.max_model_len
        is_whole = largest == limit or (may_be_less and largest < limit)
        if not is_whole or max(found) != (largest, context) or max(c for _, c in found) > context:
            raise PlanFileError(
                f"{phase}.graphs: the largest must have {limit} {name} and a context of {context}, "
                "the limits of this plan"
            )
        self._check_graphs(phase, graphs, largest)

    def _check_graphs(self, phase: str, graphs: Sequence[PlannedGraph], size: int) -> None:
        limit = next(
            graph
            for graph in graphs
            if (graph.bucket.size, graph.bucket.context_len) == (size, self.limits.max_model_len)
        )
        for graph in graphs:
            if phase == "prefill" and graph.bucket.size % self.limits.prefill_tile:
                raise PlanFileError(
                    f"prefill.graphs: {graph.bucket.label} is of a size that is no multiple of "
                    f"prefill_tile {self.limits.prefill_tile}"
                )
            if not 0 < graph.seconds <= limit.seconds:  # NaN is neither
                raise PlanFileError(
                    f"{phase}.graphs: {graph.bucket.label} takes {graph.seconds!r} seconds; a "
                    f"graph takes some, and no more than the largest, {limit.seconds!r}"
                )

    def _check_chunks(self) -> None:
        if bool(self.chunks) != (self.policy == "cover"):
            raise PlanFileError(
                f"prefill.chunks: policy is {self.policy}; chunks belong to policy cover, which "
                "needs them"
            )
        sizes = {graph.bucket.size for graph in self.prefill}
        for rows, chunk in self.chunks:
            if chunk not in sizes:
                raise PlanFileError(
                    f"prefill.chunks: {chunk} is no size of a prefill graph, {sorted(sizes)}"
                )
            if rows < 1:
                raise PlanFileError(f"prefill.chunks: {rows} is no number of rows")
        if self.chunks and self.chunks[0][0] != 1:
            raise PlanFileError("prefill.chunks: must begin with 1 row")
        if any(after[0] <= before[0] for before, after in pairwise(self.chunks)):
            raise PlanFileError("prefill.chunks: rows must be strictly increasing")


def _row(graph: PlannedGraph) -> list[float]:
    return [graph.bucket.size, graph.bucket.context_len, graph.seconds]


def _mapping(
    place: str, data: object, needed: set[str], optional: set[str] | None
) -> Mapping[str, object]:
    """Return a mapping that has the needed keys; ``optional`` None allows any others."""
    if not isinstance(data, Mapping):
        raise PlanFileError(f"{place}: is {data!r:.60}; it must be a mapping")
    missing = sorted(needed - data.keys())
    if missing:
        raise PlanFileError(f"{place}: lacks {', '.join(missing)}")
    unknown = sorted(map(str, data.keys() - needed - (optional or set())))
    if optional is not None and unknown:
        known = ", ".join(sorted(needed | optional))
        raise PlanFileError(f"{place}: does not know {', '.join(unknown)}; it has {known}")
    return data


def read_limits(place: str, data: object) -> PlanLimits:
    """Read the limits of a plan, or of an engine.

    Raises:
        PlanFileError: begins with the place, and names the limit and what would fit.
    """
    names = {limit.name for limit in fields(PlanLimits)}
    needed = {"max_num_batched_tokens", "max_num_seqs", "max_model_len", "max_num_prefill_seqs"}
    given = _mapping(place, data, needed | {"block_size"}, names)
    try:
        return PlanLimits(**given)  # type: ignore[arg-type]
    except ValueError as error:
        raise PlanFileError(f"{place}: {error}") from None


def _graphs(phase: str, data: object, limits: PlanLimits) -> tuple[PlannedGraph, ...]:
    if not isinstance(data, Sequence) or isinstance(data, str):
        raise PlanFileError(f"{phase}.graphs: is {data!r:.60}; it must be a list of graphs")
    return tuple(_graph(f"{phase}.graphs[{at}]", phase, row, limits) for at, row in enumerate(data))


def _graph(place: str, phase: str, row: object, limits: PlanLimits) -> PlannedGraph:
    if not isinstance(row, Sequence) or isinstance(row, str) or len(row) != 3:
        raise PlanFileError(f"{place}: is {row!r:.60}; a graph is [size, context, seconds]")
    size, context_len, seconds = row
    try:
        require_positive("size", size)
        require_positive("context", context_len)
    except ValueError as error:
        raise PlanFileError(f"{place}: {error}") from None
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not is_number or not isfinite(seconds):
        raise PlanFileError(f"{place}: seconds must be a finite number, got {seconds!r:.60}")
    if phase == "decode":
        bucket: Bucket = DecodeBucket(size, context_len, limits.query_len)
    else:
        bucket = PrefillBucket(size, context_len)
    return PlannedGraph(bucket, float(seconds))


def _policy(data: object) -> PolicyName:
    for name in get_args(PolicyName):
        if data == name:
            found: PolicyName = name
            return found
    raise PlanFileError(f"prefill.policy: is {data!r:.60}; it must be fill or cover")


def _chunks(data: object) -> tuple[tuple[int, int], ...]:
    if not isinstance(data, Sequence) or isinstance(data, str):
        raise PlanFileError(f"prefill.chunks: is {data!r:.60}; it must be a list of pairs")
    for at, pair in enumerate(data):
        is_pair = isinstance(pair, Sequence) and len(pair) == 2
        if not is_pair or any(type(number) is not int for number in pair):
            raise PlanFileError(f"prefill.chunks[{at}]: is {pair!r:.60}; it must be [rows, chunk]")
    return tuple((rows, chunk) for rows, chunk in data)


def _texts(place: str, data: object) -> Sequence[str]:
    is_list = isinstance(data, Sequence) and not isinstance(data, str)
    if not is_list or not all(isinstance(one, str) for one in data):  # type: ignore[attr-defined]
        raise PlanFileError(f"{place}: is {data!r:.60}; it must be a list of labels")
    return data  # type: ignore[return-value]
