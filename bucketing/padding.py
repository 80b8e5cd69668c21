"""Padding arithmetic: where packed requests start, and how much of a graph is padding.

Counts only. Padding never enters accounting: tokens scheduled, computed or billed are actual ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .buckets import Bucket
from .ladder import require_positive


def aligned_starts(query_lens: Sequence[int], prefill_tile: int = 1) -> tuple[int, ...]:
    """Return the first row of each packed request: a multiple of ``prefill_tile``.

    Request i + 1 starts where the last tile of request i ends, so a tile belongs to one request.

    >>> aligned_starts([100, 30, 128], prefill_tile=128)
    (0, 128, 256)
    >>> aligned_starts([100, 30, 128])
    (0, 100, 130)
    """
    require_positive("prefill_tile", prefill_tile)
    starts, end = [], 0
    for query_len in query_lens:
        starts.append(end)
        end += round_up(require_positive("query_len", query_len), prefill_tile)
    return tuple(starts)


def packed_len(query_lens: Sequence[int], prefill_tile: int = 1) -> int:
    """Return the rows that packed requests need, up to the last token of the last one.

    The gaps behind the other requests count; the one behind the last is the bucket's padding.

    >>> packed_len([100, 30], prefill_tile=128), packed_len([100, 30]), packed_len([])
    (158, 130, 0)
    """
    if not query_lens:
        return 0
    return aligned_starts(query_lens, prefill_tile)[-1] + query_lens[-1]


def round_up(n: int, multiple: int) -> int:
    """Return the smallest multiple that is not below ``n``.

    >>> round_up(1000, 48), round_up(960, 48)
    (1008, 960)
    """
    return -(-n // multiple) * multiple


def num_pad_tokens(num_tokens: int, bucket: Bucket) -> int:
    """Return how many rows of a bucket hold no token, alignment gaps included.

    >>> from noria.bucketing import PrefillBucket
    >>> num_pad_tokens(100, PrefillBucket(128, 2048))
    28
    """
    if not 0 <= num_tokens <= bucket.num_rows:
        raise ValueError(
            f"num_tokens {num_tokens} is outside 0..{bucket.num_rows} of {bucket.label}"
        )
    return bucket.num_rows - num_tokens


@dataclass(frozen=True, slots=True)
class StepPadding:
    """Rows before and after padding, of one step or summed over several.

    Attributes:
        num_steps: steps that are summed.
        num_actual_tokens: rows that held a token.
        num_padded_tokens: rows that ran, padding included.

    >>> from noria.bucketing import DecodeBucket
    >>> one = StepPadding.of_step(DecodeBucket(8, 2048), 2)
    >>> (one + one).num_pad_tokens, one.waste_share
    (12, 0.75)
    """

    num_steps: int = 0
    num_actual_tokens: int = 0
    num_padded_tokens: int = 0

    @classmethod
    def of_step(cls, bucket: Bucket, num_actual_tokens: int) -> StepPadding:
        """Return the padding of one step with this many tokens in this bucket.

        Raises:
            ValueError: the tokens do not fit the bucket.
        """
        num_pad = num_pad_tokens(num_actual_tokens, bucket)
        return cls(1, num_actual_tokens, num_actual_tokens + num_pad)

    def __add__(self, other: StepPadding) -> StepPadding:
        """Return the sum over the steps of both."""
        return StepPadding(
            self.num_steps + other.num_steps,
            self.num_actual_tokens + other.num_actual_tokens,
            self.num_padded_tokens + other.num_padded_tokens,
        )

    @property
    def num_pad_tokens(self) -> int:
        """Rows that held no token."""
        return self.num_padded_tokens - self.num_actual_tokens

    @property
    def waste_share(self) -> float:
        """Share of the rows that held no token, 0 to 1; 0 where nothing ran."""
        return waste_share(self.num_actual_tokens, self.num_padded_tokens)


def waste_share(num_actual: int, num_padded: int) -> float:
    """Return which share of ``num_padded`` is padding; 0 where there is nothing.

    >>> waste_share(96, 128)
    0.25
    """
    return (num_padded - num_actual) / num_padded if num_padded else 0.0


class PaddingCounter:
    """Sums the padding of steps by bucket.

    >>> from noria.bucketing import DecodeBucket
    >>> counter = PaddingCounter()
    >>> counter.add(DecodeBucket(4, 2048), 3)
    >>> counter.total
    StepPadding(num_steps=1, num_actual_tokens=3, num_padded_tokens=4)
    """

    def __init__(self) -> None:
        """Start with no step."""
        self._sums: dict[Bucket, list[int]] = {}

    def add(self, bucket: Bucket, num_actual_tokens: int) -> None:
        """Count one step.

        Raises:
            ValueError: the tokens do not fit the bucket; nothing is counted.
        """
        num_pad_tokens(num_actual_tokens, bucket)
        sums = self._sums.get(bucket)
        if sums is None:
            sums = self._sums[bucket] = [0, 0]
        sums[0] += 1
        sums[1] += num_actual_tokens

    @property
    def by_bucket(self) -> Mapping[Bucket, StepPadding]:
        """The sums so far, for buckets that ran."""
        return {
            bucket: StepPadding(num_steps, num_actual, num_steps * bucket.num_rows)
            for bucket, (num_steps, num_actual) in self._sums.items()
        }

    @property
    def total(self) -> StepPadding:
        """The sum over all buckets."""
        return sum(self.by_bucket.values(), StepPadding())
