"""The step rule: how many tokens of which requests run in the next prefill step.

Integers in, integers out: the scheduler asks it with live requests, a planner with traffic.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from .ladder import require_positive
from .padding import round_up
from .plan import PlanLimits

WATERMARK = 0.01
"""Share of the blocks that an admission leaves free for what running requests generate.

Without it a request is admitted only to be preempted for the next token of another."""


class StepPolicy(Protocol):
    """A way to fill a prefill step."""

    @abstractmethod
    def pack(self, waiting: Iterable[int]) -> tuple[int, ...]:
        """Return how many tokens to run of each of the first requests, in their order.

        Args:
            waiting: tokens that each request has yet to run, first come first; read only as far
                as needed.

        Returns:
            One count of at least 1 for each request taken; a prefix of ``waiting`` in order,
            because nobody overtakes. Empty only if nothing waits.
        """
        ...


@dataclass(frozen=True, slots=True)
class FillPolicy(StepPolicy):
    """Fills the largest prefill bucket, first come first served.

    The last prompt may be cut: what is left of it runs in later steps.

    Attributes:
        max_num_tokens: rows of the largest prefill bucket.
        max_num_seqs: requests that a prefill step has rows for.
        prefill_tile: each request starts at a multiple of it; the gaps count as rows.

    >>> FillPolicy(max_num_tokens=512, max_num_seqs=8).pack([200, 300, 20, 1])
    (200, 300, 12)
    >>> FillPolicy(max_num_tokens=512, max_num_seqs=8, prefill_tile=128).pack([200, 300, 20])
    (200, 256)
    """

    max_num_tokens: int
    max_num_seqs: int
    prefill_tile: int = 1

    @classmethod
    def of(cls, limits: PlanLimits, max_num_tokens: int) -> FillPolicy:
        """Return the policy of a largest graph of so many rows."""
        return cls(max_num_tokens, limits.max_num_prefill_seqs, limits.prefill_tile)

    def __post_init__(self) -> None:
        """Refuse what is not a positive integer."""
        require_positive("max_num_tokens", self.max_num_tokens)
        require_positive("max_num_seqs", self.max_num_seqs)
        require_positive("prefill_tile", self.prefill_tile)

    def pack(self, waiting: Iterable[int]) -> tuple[int, ...]:
        """Return the tokens of each prompt at the head that run in one step together."""
        return _fill(waiting, self.max_num_tokens, self.max_num_seqs, self.prefill_tile)


@dataclass(frozen=True, slots=True)
class CoverPolicy(StepPolicy):
    """Fills the prefill bucket that a table names for all that waits, first come first served.

    So many rows run in several full buckets where that takes less than one padded one. The last
    prompt may be cut, as by ``FillPolicy``.

    Attributes:
        first_chunk: rows of the bucket to fill, by the rows that wait, 0 (which means nothing) to
            any number; more rows are treated as that number.
        max_num_tokens: rows of the largest prefill bucket.
        max_num_seqs: requests that a prefill step has rows for; others do not wait yet.
        prefill_tile: each request starts at a multiple of it; the gaps count as rows.

    >>> policy = CoverPolicy.of_changes([(1, 128), (129, 512)], 512, max_num_seqs=8)
    >>> policy.pack([600, 20]), policy.pack([88, 20]), policy.pack([88, 60])
    ((512,), (88, 20), (88, 60))
    """

    first_chunk: Sequence[int]
    max_num_tokens: int
    max_num_seqs: int
    prefill_tile: int = 1

    def __post_init__(self) -> None:
        """Refuse what is not a positive integer, and chunks that no bucket holds."""
        require_positive("max_num_tokens", self.max_num_tokens)
        require_positive("max_num_seqs", self.max_num_seqs)
        require_positive("prefill_tile", self.prefill_tile)
        chunks = set(self.first_chunk[1:])
        if not chunks:
            raise ValueError("first_chunk must name a chunk for 1 row at least")
        for chunk in chunks:
            if require_positive("chunk", chunk) > self.max_num_tokens:
                raise ValueError(f"chunk {chunk} is above max_num_tokens {self.max_num_tokens}")

    @classmethod
    def of_changes(
        cls,
        changes: Sequence[tuple[int, int]],
        max_num_tokens: int,
        *,
        max_num_seqs: int,
        prefill_tile: int = 1,
    ) -> CoverPolicy:
        """Return the policy of (rows, chunk) pairs: from so many rows on, this chunk.

        Rows increase from 1 on.
        """
        if not changes or changes[0][0] != 1 or any(b[0] <= a[0] for a, b in pairwise(changes)):
            raise ValueError(f"rows must increase from 1 on, got {list(changes)}")
        table = [0]
        for (rows, chunk), (end, _) in pairwise([*changes, (changes[-1][0] + 1, 0)]):
            table += [chunk] * (end - rows)
        return cls(table, max_num_tokens, max_num_seqs, prefill_tile)

    def pack(self, waiting: Iterable[int]) -> tuple[int, ...]:
        """Return the tokens of each prompt at the head that run in one step together."""
        most = len(self.first_chunk) - 1
        head: list[int] = []
        num_rows = 0
        for num_tokens in waiting:
            require_positive("waiting prompt length", num_tokens)
            num_rows = round_up(num_rows, self.prefill_tile) + num_tokens
            head.append(num_tokens)
            if len(head) == self.max_num_seqs or num_rows >= max(most, self.max_num_tokens):
                break
        chunk = self.first_chunk[min(num_rows, most)]
        return _fill(head, chunk, self.max_num_seqs, self.prefill_tile)


def _fill(
    waiting: Iterable[int], max_num_tokens: int, max_num_seqs: int, prefill_tile: int
) -> tuple[int, ...]:
    """Return how many tokens of each of the first prompts fit so many rows."""
    taken: list[int] = []
    start = 0
    for num_tokens in waiting:
        require_positive("waiting prompt length", num_tokens)
        if len(taken) == max_num_seqs or start >= max_num_tokens:
            break
        taken.append(min(num_tokens, max_num_tokens - start))
        start += round_up(taken[-1], prefill_tile)
    return tuple(taken)


def num_spare_blocks(num_usable_blocks: int) -> int:
    """Return the blocks that an admission leaves free if others run.

    >>> num_spare_blocks(1000), num_spare_blocks(20)
    (10, 1)
    """
    return max(1, int(WATERMARK * num_usable_blocks))


def decode_context_need(max_num_computed_tokens: int, *, num_speculative_tokens: int = 0) -> int:
    """Return the context that a decode step needs: what is cached, one new token, the drafts.

    Args:
        max_num_computed_tokens: the largest number of cached tokens of any request in the step.
        num_speculative_tokens: drafts that are verified in this step.

    The rule is vLLM Neuron's. Near ``max_model_len`` fewer drafts fit; pass what really runs.

    >>> decode_context_need(255), decode_context_need(255, num_speculative_tokens=3)
    (256, 259)
    """
    if max_num_computed_tokens < 0 or num_speculative_tokens < 0:
        raise ValueError(
            f"counts must not be negative, got {max_num_computed_tokens} computed and "
            f"{num_speculative_tokens} speculative tokens"
        )
    return max_num_computed_tokens + 1 + num_speculative_tokens
