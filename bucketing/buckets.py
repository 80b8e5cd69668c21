"""Buckets: the shapes that graphs are compiled for, and the choice of one for a step.

A bucket is the identity of one compiled graph. A plan holds all of them, as any set of shapes:
a product of ladders is only one such set.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TypeVar

from .ladder import NoBucketError, require_positive

ROW_WORK = 4096
"""Cached tokens that cost as much to attend to as one row costs in all other layers.

In a Llama of hidden size E and E-wide attention a row takes about 24 E^2 operations per layer
outside attention and 4 E per attended token, hence 6 E tokens: 3,500 for E = 576.
"""


@dataclass(frozen=True, slots=True, order=True)
class PrefillBucket:
    """Shape of a prefill graph.

    Attributes:
        num_tokens: rows, shared by the requests that are packed into the step.
        context_len: most tokens that one request may have, its new ones included.

    >>> PrefillBucket(128, 2048).label
    'prefill_t128_c2048'
    """

    num_tokens: int
    context_len: int

    def __post_init__(self) -> None:
        """Refuse what is not a positive integer."""
        require_positive("num_tokens", self.num_tokens)
        require_positive("context_len", self.context_len)

    @property
    def phase(self) -> str:
        """``prefill``."""
        return "prefill"

    @property
    def size(self) -> int:
        """What is counted to fill the graph: tokens."""
        return self.num_tokens

    @property
    def query_len(self) -> int:
        """Most tokens of one request in a step."""
        return self.num_tokens

    @property
    def num_rows(self) -> int:
        """Rows of the graph's hidden states."""
        return self.num_tokens

    @property
    def work(self) -> int:
        """Work of a step, see ``bucket_work``."""
        return bucket_work(self.num_rows, self.context_len)

    @property
    def label(self) -> str:
        """Name of the graph in tables, folders and messages."""
        return f"prefill_t{self.num_tokens}_c{self.context_len}"


@dataclass(frozen=True, slots=True, order=True)
class ScoreBucket(PrefillBucket):
    """Shape of a prefill graph that returns the logits of all its rows.

    >>> ScoreBucket(128, 2048).label
    'score_t128_c2048'
    """

    @property
    def phase(self) -> str:
        """``score``."""
        return "score"

    @property
    def label(self) -> str:
        """Name of the graph in tables, folders and messages."""
        return f"score_t{self.num_tokens}_c{self.context_len}"


@dataclass(frozen=True, slots=True, order=True)
class DecodeBucket:
    """Shape of a decode graph.

    Attributes:
        num_seqs: requests.
        context_len: most tokens that one request may have, its new ones included.
        query_len: tokens that each request runs: 1 and the drafts of speculation.

    >>> DecodeBucket(8, 2048).label, DecodeBucket(8, 2048, query_len=4).label
    ('decode_s8_c2048', 'decode_s8_c2048_q4')
    """

    num_seqs: int
    context_len: int
    query_len: int = 1

    def __post_init__(self) -> None:
        """Refuse what is not a positive integer."""
        require_positive("num_seqs", self.num_seqs)
        require_positive("context_len", self.context_len)
        require_positive("query_len", self.query_len)

    @property
    def phase(self) -> str:
        """``decode``."""
        return "decode"

    @property
    def size(self) -> int:
        """What is counted to fill the graph: requests."""
        return self.num_seqs

    @property
    def num_rows(self) -> int:
        """Rows of the graph's hidden states: ``num_seqs * query_len``."""
        return self.num_seqs * self.query_len

    @property
    def work(self) -> int:
        """Work of a step, see ``bucket_work``."""
        return bucket_work(self.num_rows, self.context_len)

    @property
    def label(self) -> str:
        """Name of the graph in tables, folders and messages."""
        suffix = f"_q{self.query_len}" if self.query_len > 1 else ""
        return f"decode_s{self.num_seqs}_c{self.context_len}{suffix}"


Bucket = PrefillBucket | DecodeBucket
_B = TypeVar("_B", PrefillBucket, ScoreBucket, DecodeBucket)


def bucket_work(num_rows: int, context_len: int) -> int:
    """Return the work of a graph, in tokens attended to: rows first, then their context.

    A full graph is charged, because padded rows and columns run like real ones. Only the order
    of graphs and their ratios mean something.

    >>> bucket_work(8, 4096) < bucket_work(16, 1024) < bucket_work(8, 131072)
    True
    """
    return num_rows * (ROW_WORK + context_len)


def cost_order(bucket: Bucket) -> tuple[int, int, int]:
    """Return the sort key of the choice: less work, then fewer rows, then a shorter context."""
    return (bucket.work, bucket.num_rows, bucket.context_len)


@dataclass(frozen=True, slots=True)
class BucketPlan:
    """All graphs of an engine. Its tuples are kept in ascending ``cost_order``.

    Attributes:
        prefill: buckets of prompts.
        decode: buckets of running requests.
        score: empty where no request may ask for logprobs of its prompt.
        seconds: what a step of a bucket takes, where that is known: the choice goes by it. All of
            a phase have it, or none.
        order: labels in the order of warm-up, behind the limit graphs; those it lacks come last.

    Raises:
        ValueError: a phase has no bucket, a bucket appears twice, the decode buckets differ in
            query_len, or no bucket of a phase has both its largest size and its largest context
            (then two needs that are legal by themselves would be illegal together), or that one
            takes less than another.

    >>> plan = BucketPlan((PrefillBucket(128, 512),), (DecodeBucket(4, 256), DecodeBucket(8, 512)))
    >>> plan.pick_decode(num_seqs=3, context_len=256).label
    'decode_s4_c256'
    >>> plan.pick_decode(num_seqs=3, context_len=257).label
    'decode_s8_c512'
    """

    prefill: tuple[PrefillBucket, ...]
    decode: tuple[DecodeBucket, ...]
    score: tuple[ScoreBucket, ...] = ()
    seconds: Mapping[Bucket, float] = field(default_factory=dict, compare=False)
    order: tuple[str, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        """Validate and sort the phases."""
        query_lens = sorted({bucket.query_len for bucket in self.decode})
        if len(query_lens) > 1:
            raise ValueError(f"decode buckets must share one query_len, got {query_lens}")
        object.__setattr__(self, "prefill", self._checked("prefill", self.prefill))
        object.__setattr__(self, "decode", self._checked("decode", self.decode))
        if self.score:
            object.__setattr__(self, "score", self._checked("score", self.score))

    @property
    def buckets(self) -> tuple[Bucket, ...]:
        """All buckets in warm-up order: both limit graphs, then as ``order``, or by falling work.

        The largest first, so that whatever cannot fit fails at once and what memory the small
        graphs need is there already.
        """
        limits: tuple[Bucket, ...] = (self.prefill[-1], self.decode[-1])
        others: tuple[Bucket, ...] = (*self.prefill[:-1], *self.decode[:-1], *self.score)
        by_work = sorted(others, key=cost_order, reverse=True)
        places = {label: place for place, label in enumerate(self.order)}
        return limits + tuple(sorted(by_work, key=lambda b: places.get(b.label, len(places))))

    @property
    def limits(self) -> tuple[Bucket, ...]:
        """The largest bucket of each phase: with these alone, every step has a bucket."""
        return (self.prefill[-1], self.decode[-1], *self.score[-1:])

    def restricted_to(self, buckets: Collection[Bucket]) -> BucketPlan:
        """Return the plan of those of its buckets that are among ``buckets``."""
        return replace(
            self,
            prefill=tuple(bucket for bucket in self.prefill if bucket in buckets),
            decode=tuple(bucket for bucket in self.decode if bucket in buckets),
            score=tuple(bucket for bucket in self.score if bucket in buckets),
        )

    def pick_prefill(self, num_tokens: int, context_len: int) -> PrefillBucket:
        """Return the cheapest prefill bucket that holds both needs; a bucket holds its own size.

        Args:
            num_tokens: rows of the packed step, alignment gaps included.
            context_len: the largest cached plus new tokens of any request in it.

        Raises:
            NoBucketError: a need is larger than the limit bucket.
        """
        return _pick(self.prefill, "num_batched_tokens", num_tokens, context_len)

    def pick_score(self, num_tokens: int, context_len: int) -> ScoreBucket:
        """Return the cheapest bucket for logprobs of prompts, as ``pick_prefill`` does.

        Raises:
            NoBucketError: a need is larger than the limit bucket.
        """
        return _pick(self.score, "num_batched_tokens", num_tokens, context_len)

    def pick_decode(self, num_seqs: int, context_len: int) -> DecodeBucket:
        """Return the cheapest decode bucket that holds both needs; a bucket holds its own size.

        Args:
            num_seqs: requests of the step.
            context_len: the largest need of any of them, see ``decode_context_need``.

        Raises:
            NoBucketError: a need is larger than the limit bucket.
        """
        return _pick(self.decode, "num_seqs", num_seqs, context_len)

    def _checked(self, phase: str, buckets: tuple[_B, ...]) -> tuple[_B, ...]:
        if not buckets:
            raise ValueError(f"a plan needs at least one {phase} bucket")
        ordered = tuple(sorted(buckets, key=self._choice_order))
        for one, other in pairwise(ordered):
            if one == other:
                raise ValueError(f"{one.label} is in the plan twice")
        size = max(bucket.size for bucket in ordered)
        context_len = max(bucket.context_len for bucket in ordered)
        limit = ordered[-1]
        if (limit.size, limit.context_len) != (size, context_len):
            raise ValueError(
                f"no {phase} bucket has both the largest size {size} and the largest context "
                f"{context_len}, and takes most; {limit.label} does"
            )
        return ordered

    def _choice_order(self, bucket: Bucket) -> tuple[float, int, int, int]:
        """Return the sort key of the choice: fewer seconds, where known, then less work."""
        return (self.seconds.get(bucket, 0.0), *cost_order(bucket))


def _pick(ordered: tuple[_B, ...], axis: str, size: int, context_len: int) -> _B:
    require_positive(axis, size)
    require_positive("context_len", context_len)
    for bucket in ordered:
        if size <= bucket.size and context_len <= bucket.context_len:
            return bucket
    limit = ordered[-1]
    if size > limit.size:
        raise NoBucketError(axis, size, tuple(sorted({b.size for b in ordered})))
    contexts = tuple(sorted({b.context_len for b in ordered}))
    raise NoBucketError(f"{limit.phase} context_len", context_len, contexts)
