"""From limits and bucket lists to a plan, and from a plan to the rows of a printed table.

Knows the names of the settings, so that its errors read like the configuration.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise

from .buckets import Bucket, BucketPlan, DecodeBucket, PrefillBucket, ScoreBucket
from .ladder import Ladder, require_positive
from .padding import packed_len, round_up, waste_share


@dataclass(frozen=True, slots=True)
class PlanLimits:
    """What an engine may do at most, and what its target asks of shapes.

    Attributes:
        max_num_batched_tokens: tokens of one prefill step.
        max_num_seqs: requests that run at once.
        max_model_len: tokens of one request, prompt and output.
        max_num_prefill_seqs: requests that one prefill step may pack.
        block_size: tokens of a KV block.
        prefill_tile: rows at whose multiples packed requests start.
        fold_blocks: blocks that a target gathers at once; tables are whole folds wide.
        num_speculative_tokens: drafts that a decode step verifies per request, 0 for none.

    Raises:
        ValueError: a limit is not a positive integer, or a prefill step holds more requests
            than may run.
    """

    max_num_batched_tokens: int
    max_num_seqs: int
    max_model_len: int
    max_num_prefill_seqs: int
    block_size: int
    prefill_tile: int = 1
    fold_blocks: int = 1
    num_speculative_tokens: int = 0

    def __post_init__(self) -> None:
        """Validate every limit."""
        for limit in fields(self):
            value = getattr(self, limit.name)
            is_zero_drafts = limit.name == "num_speculative_tokens" and value == 0
            if not is_zero_drafts or isinstance(value, bool):
                require_positive(limit.name, value)
        if self.max_num_prefill_seqs > self.max_num_seqs:
            raise ValueError(
                f"max_num_prefill_seqs {self.max_num_prefill_seqs} is above "
                f"max_num_seqs {self.max_num_seqs}"
            )

    @property
    def max_prefill_tokens(self) -> int:
        """Tokens of the largest prefill bucket: the smaller of the step's and the model's limit.

        >>> PlanLimits(2048, 8, 512, 8, 16).max_prefill_tokens
        512
        """
        return min(self.max_num_batched_tokens, self.max_model_len)

    @property
    def query_len(self) -> int:
        """Tokens that a request runs in a decode step."""
        return 1 + self.num_speculative_tokens

    def table_width(self, context_len: int) -> int:
        """Return the block table columns of a context: blocks rounded up, then whole folds.

        >>> PlanLimits(512, 8, 1000, 8, block_size=48).table_width(1000)
        21
        """
        return round_up(-(-context_len // self.block_size), self.fold_blocks)


@dataclass(frozen=True, slots=True)
class BucketLists:
    """The sizes of each axis, as a configuration lists them.

    Attributes:
        num_batched_tokens: rows of prefill graphs; the last is ``PlanLimits.max_prefill_tokens``.
        num_seqs: requests of decode graphs; the last is ``max_num_seqs``.
        prefill_context: contexts of prefill graphs, cached and new tokens of a request.
        decode_context: contexts of decode graphs. ``max_model_len`` belongs to both context
            lists whether it is in them or not.
    """

    num_batched_tokens: tuple[int, ...]
    num_seqs: tuple[int, ...]
    prefill_context: tuple[int, ...] = ()
    decode_context: tuple[int, ...] = ()


def plan_buckets(limits: PlanLimits, lists: BucketLists, *, has_scores: bool = False) -> BucketPlan:
    """Combine the lists to a plan in which every step within the limits has a bucket.

    A prefill graph is left out only where no step can need it: where the most rows that packed
    requests of its context take fit the next smaller graph. ``has_scores`` adds one graph for
    logprobs of prompts, of the fewest tokens: it returns the logits of every row, and longer
    prompts run through it in chunks.

    Raises:
        ValueError: a list is empty, not strictly increasing, does not end with its limit, goes
            beyond it, or has a token size that is no multiple of the target's tile.

    >>> limits = PlanLimits(256, 2, 512, 1, 16)
    >>> plan = plan_buckets(limits, BucketLists((128, 256), (1, 2), (128,), (256,)))
    >>> [bucket.label for bucket in plan.prefill]
    ['prefill_t128_c128', 'prefill_t128_c512', 'prefill_t256_c512']
    >>> [bucket.label for bucket in plan.decode]
    ['decode_s1_c256', 'decode_s1_c512', 'decode_s2_c256', 'decode_s2_c512']
    """
    tokens = _limited(
        "num_batched_tokens_buckets",
        lists.num_batched_tokens,
        limits.max_prefill_tokens,
        "min(max_num_batched_tokens, max_model_len)",
    )
    for size in tokens:
        if size % limits.prefill_tile:
            raise ValueError(
                f"num_batched_tokens_buckets: {size} is not a multiple of the target's "
                f"prefill_tile {limits.prefill_tile}"
            )
    seqs = _limited("num_seqs_buckets", lists.num_seqs, limits.max_num_seqs, "max_num_seqs")
    prefill_contexts = _contexts("prefill_context_length_buckets", lists.prefill_context, limits)
    decode_contexts = _contexts("decode_context_length_buckets", lists.decode_context, limits)
    prefill = (
        PrefillBucket(size, context_len)
        for smaller, size in pairwise((0, *tokens))
        for context_len in prefill_contexts
        if _max_packed_len(context_len, limits) > smaller
    )
    decode = (
        DecodeBucket(size, context_len, limits.query_len)
        for size in seqs
        for context_len in decode_contexts
    )
    score = (ScoreBucket(tokens.sizes[0], limits.max_model_len),) if has_scores else ()
    return BucketPlan(tuple(prefill), tuple(decode), score)


def _limited(setting: str, sizes: Sequence[int], limit: int, limit_name: str) -> Ladder:
    ladder = Ladder(tuple(sizes), setting)
    if ladder.largest != limit:
        raise ValueError(
            f"{setting} {list(ladder)} must end with {limit_name} = {limit}, not {ladder.largest}"
        )
    return ladder


def _contexts(setting: str, sizes: Sequence[int], limits: PlanLimits) -> Ladder:
    limit = limits.max_model_len
    if not sizes:
        return Ladder((limit,), setting)
    ladder = Ladder(tuple(sizes), setting)
    if ladder.largest > limit:
        raise ValueError(f"{setting}: {ladder.largest} is above max_model_len {limit}")
    return ladder if ladder.largest == limit else Ladder((*ladder, limit), setting)


def _max_packed_len(context_len: int, limits: PlanLimits) -> int:
    return packed_len([context_len] * limits.max_num_prefill_seqs, limits.prefill_tile)


@dataclass(frozen=True, slots=True)
class GraphRow:
    """One graph of a plan, as a row of a table.

    Attributes:
        bucket: the shape; label, phase, num_rows and context_len are taken from it.
        table_width: block table columns per request.
        smallest_need: fewest tokens (prefill) or requests (decode) for which, at the bucket's own
            context, no cheaper graph is chosen.
        worst_padding: share of the rows that is padding at the smallest need, 0 to 1.
        expected_padding: the same share where all needs from the smallest up to the bucket's
            size are equally frequent.
        relative_work: work of a step as a share of the phase's largest graph; its seconds, where
            the plan knows them.
    """

    bucket: Bucket
    table_width: int
    smallest_need: int
    worst_padding: float
    expected_padding: float
    relative_work: float

    @property
    def label(self) -> str:
        """Name of the graph."""
        return self.bucket.label

    @property
    def phase(self) -> str:
        """``prefill``, ``decode`` or ``score``."""
        return self.bucket.phase

    @property
    def num_rows(self) -> int:
        """Rows of the graph's hidden states."""
        return self.bucket.num_rows

    @property
    def context_len(self) -> int:
        """Most tokens of one request."""
        return self.bucket.context_len


@dataclass(frozen=True, slots=True)
class PlanTable:
    """What there is to say of a plan before anything is compiled.

    Attributes:
        rows: one per graph, in warm-up order.
    """

    rows: tuple[GraphRow, ...]

    @property
    def num_graphs(self) -> int:
        """Model graphs to compile."""
        return len(self.rows)

    @property
    def worst_padding(self) -> float:
        """The largest share of padding that any step can have, alignment gaps not counted."""
        return max(row.worst_padding for row in self.rows)


def describe(plan: BucketPlan, limits: PlanLimits) -> PlanTable:
    """Return the plan as rows of plain numbers, to be printed by whoever asked.

    >>> limits = PlanLimits(256, 2, 512, 1, 16)
    >>> table = describe(plan_buckets(limits, BucketLists((128, 256), (2,))), limits)
    >>> [(row.label, row.smallest_need, row.table_width) for row in table.rows]
    [('prefill_t256_c512', 129, 32), ('decode_s2_c512', 1, 32), ('prefill_t128_c512', 1, 32)]
    """
    phases: tuple[Sequence[Bucket], ...] = (plan.prefill, plan.decode, plan.score)
    needs: dict[Bucket, int] = {}
    for phase in phases:
        needs |= _smallest_needs(phase)
    largest = {phase[-1].phase: phase[-1] for phase in phases if phase}
    rows = (
        _describe_bucket(bucket, needs[bucket], _relative_work(plan, bucket, largest), limits)
        for bucket in plan.buckets
    )
    return PlanTable(tuple(rows))


def _describe_bucket(
    bucket: Bucket, smallest_need: int, relative_work: float, limits: PlanLimits
) -> GraphRow:
    # Shares of rows equal shares of tokens or requests: every request of a graph has as many rows.
    worst = waste_share(smallest_need, bucket.size)
    return GraphRow(
        bucket=bucket,
        table_width=limits.table_width(bucket.context_len),
        smallest_need=smallest_need,
        worst_padding=worst,
        expected_padding=worst / 2,
        relative_work=relative_work,
    )


def _relative_work(plan: BucketPlan, bucket: Bucket, largest: Mapping[str, Bucket]) -> float:
    limit = largest[bucket.phase]
    if bucket in plan.seconds:
        return plan.seconds[bucket] / plan.seconds[limit]
    return bucket.work / limit.work


def _smallest_needs(phase: Sequence[Bucket]) -> dict[Bucket, int]:
    """Return 1 + the largest size that a cheaper graph runs at each bucket's own context.

    Args:
        phase: the buckets of a phase, cheapest first.
    """
    needs: dict[Bucket, int] = {}
    # Of the graphs so far, those that no other beats in both: contexts rise, sizes fall.
    contexts: list[int] = []
    sizes: list[int] = []
    for bucket in phase:
        at = bisect_left(contexts, bucket.context_len)
        cheaper = sizes[at] if at < len(sizes) else 0
        needs[bucket] = 1 + cheaper
        if bucket.size > cheaper:
            end = bisect_right(contexts, bucket.context_len)
            start = bisect_left(sizes, -bucket.size, hi=end, key=lambda size: -size)
            contexts[start:end] = [bucket.context_len]
            sizes[start:end] = [bucket.size]
    return needs
