"""What an engine did so far, counted as a planner reads it back: steps, graphs, requests.

Memory is bounded however long a process serves. Contexts are counted in whole blocks, those of
prefill steps as far as they go beyond the rows of the step; lengths above 128, and contexts above
128 blocks, are rounded up to a 64th of their size. Where a table of shapes
still grows full, as it may with contexts of very many blocks, its resolution is halved, and again.
Graphs are counted exactly: steps, tokens and padding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass

from ..bucketing import Bucket, BucketPlan, PaddingCounter
from ..bucketing.traces.counted_engine import CountedEngine

EXACT_BITS = 7
"""Sizes up to 2**7 are counted exactly, larger ones to 6 bits behind the first. With as many
halvings only powers of two are left, which a table always has room for."""
MAX_NUM_SHAPES = 16384
"""Of one table; each takes about 250 bytes."""


@dataclass(frozen=True, slots=True)
class Resolution:
    """How one size of a shape is rounded.

    Attributes:
        limit: the largest that there is; nothing is rounded beyond it.
        unit: sizes are counted in whole ones.
    """

    limit: int
    unit: int = 1

    def round_up(self, size: int, halvings: int = 0) -> int:
        """Return the size that one is counted as, not below it unless it is above the limit.

        >>> fine = Resolution(limit=4000)
        >>> [fine.round_up(size) for size in (128, 129, 257, 3999)]
        [128, 130, 260, 4000]
        >>> Resolution(limit=4000, unit=16).round_up(17), fine.round_up(129, halvings=1)
        (32, 132)
        """
        count = -(-size // self.unit)
        num_bits = (count - 1).bit_length()
        shift = min(num_bits - EXACT_BITS + halvings, num_bits)
        if shift > 0:
            count = -(-count >> shift << shift)
        return min(count * self.unit, self.limit)


class ShapeTable:
    """Counts of pairs of sizes, each pair with one or two numbers that are summed up."""

    def __init__(
        self, first: Resolution, second: Resolution, *, max_num: int = MAX_NUM_SHAPES
    ) -> None:
        """Start with no pair; keep at most ``max_num`` of them, or one for each power of two."""
        self._first = first
        self._second = second
        self._max_num = max_num
        self._halvings = 0
        self._sums: dict[tuple[int, int], list[int]] = {}

    def add(self, first: int, second: int, more: int = 0) -> None:
        """Count a pair once, and ``more`` of what there is more of."""
        halvings = self._halvings
        key = (self._first.round_up(first, halvings), self._second.round_up(second, halvings))
        sums = self._sums.get(key)
        if sums is None:
            self._sums[key] = [1, more]
            if len(self._sums) > self._max_num:
                self._make_room()
        else:
            sums[0] += 1
            sums[1] += more

    def rows(self) -> Iterator[tuple[int, int, int, int]]:
        """Yield each pair in ascending order, how often it came and the sum of ``more``."""
        for (first, second), (count, more) in sorted(self._sums.items()):
            yield first, second, count, more

    def _make_room(self) -> None:
        """Halve the resolution until a quarter of the table is free."""
        while len(self._sums) > self._max_num * 3 // 4 and self._halvings < EXACT_BITS:
            self._halvings += 1
            before, self._sums = self._sums, {}
            for (first, second), (count, more) in before.items():
                key = (
                    self._first.round_up(first, self._halvings),
                    self._second.round_up(second, self._halvings),
                )
                sums = self._sums.setdefault(key, [0, 0])
                sums[0] += count
                sums[1] += more


@dataclass(frozen=True, slots=True)
class GraphCounts:
    """What one graph ran; the names are those of the counters file.

    Attributes:
        num_steps: times that it ran.
        real_tokens: tokens of requests in them.
        padded_tokens: rows that ran, padding included.
        seconds: of these steps: inputs, graph and sampling.
    """

    num_steps: int
    real_tokens: int
    padded_tokens: int
    seconds: float

    @property
    def waste_tokens(self) -> int:
        """Rows of padding."""
        return self.padded_tokens - self.real_tokens


class StepCounters:
    """Counts the steps of an engine and its finished requests; its engine's lock guards it.

    Attributes:
        padding: real tokens and padding by graph.
        num_prompt_tokens: of finished requests.
        num_output_tokens: of finished requests.
        num_requests: finished ones, cancelled and failed ones not among them. Each sample of a
            prompt is one.
    """

    def __init__(
        self, *, max_num_rows: int, max_num_seqs: int, max_model_len: int, block_size: int
    ):
        """Start with nothing counted.

        Args:
            max_num_rows: of a prefill step.
            max_num_seqs: of a decode step.
            max_model_len: tokens of a request.
            block_size: tokens of a KV block.
        """
        length, context = Resolution(max_model_len), Resolution(max_model_len, block_size)
        self.padding = PaddingCounter()
        self.num_requests = self.num_prompt_tokens = self.num_output_tokens = 0
        self._seconds: dict[Bucket, float] = {}
        self._max_model_len = max_model_len
        self._prefill = ShapeTable(Resolution(max_num_rows), context)
        self._decode = ShapeTable(Resolution(max_num_seqs), context)
        self._requests = ShapeTable(length, length)

    @classmethod
    def of_plan(cls, plan: BucketPlan, block_size: int) -> StepCounters:
        """Return counters for steps that fit these graphs."""
        return cls(
            max_num_rows=plan.prefill[-1].num_tokens,
            max_num_seqs=plan.decode[-1].num_seqs,
            max_model_len=plan.decode[-1].context_len,
            block_size=block_size,
        )

    @property
    def seconds_by_bucket(self) -> Mapping[Bucket, float]:
        """Seconds that the steps of each bucket took: inputs, graph and sampling."""
        return self._seconds

    def add_step(
        self,
        bucket: Bucket,
        size: int,
        context_len: int,
        *,
        num_tokens: int,
        num_requests: int,
        seconds: float,
    ) -> None:
        """Count a step that has run.

        Args:
            bucket: its graph.
            size: rows that a prefill step needs, alignment gaps included, or requests of a decode
                step.
            context_len: the longest that it needs.
            num_tokens: real ones.
            num_requests: in it.
            seconds: that it took.
        """
        self.padding.add(bucket, num_tokens)
        self._seconds[bucket] = self._seconds.get(bucket, 0.0) + seconds
        if bucket.phase == "decode":
            self._decode.add(size, context_len, num_requests)
        elif bucket.phase == "prefill":  # of the graph that scores prompts nothing is planned
            # By what is cached: a prompt alone, without any, must not seem to have some.
            self._prefill.add(size, max(0, context_len - size), num_requests)

    def add_request(self, prompt_len: int, output_len: int) -> None:
        """Count a request that has finished with this many tokens."""
        self.num_requests += 1
        self.num_prompt_tokens += prompt_len
        self.num_output_tokens += output_len
        self._requests.add(prompt_len, output_len)

    @property
    def graphs(self) -> Mapping[Bucket, GraphCounts]:
        """What each graph that ran did, in the order of labels."""
        ran = sorted(self.padding.by_bucket.items(), key=lambda item: item[0].label)
        return {
            bucket: GraphCounts(
                step.num_steps,
                step.num_actual_tokens,
                step.num_padded_tokens,
                self._seconds[bucket],
            )
            for bucket, step in ran
        }

    def to_mapping(self, engine: CountedEngine) -> dict[str, object]:
        """Return the counters of an engine as ``bucketing.traces.counters`` reads them."""
        return {
            "noria_counters": 2,
            "engine": engine.to_mapping(),
            "prefill": [
                [rows, min(rows + cached, self._max_model_len), count, num_requests]
                for rows, cached, count, num_requests in self._prefill.rows()
            ],
            "prompts": [list(row[:3]) for row in self._requests.rows()],
            "decode": [list(row[:3]) for row in self._decode.rows()],
            "graphs": {bucket.label: asdict(counts) for bucket, counts in self.graphs.items()},
        }
