"""The step rule: how many tokens of which requests run in the next prefill step.

Integers in, integers out: the scheduler asks it with live requests, a planner with traffic.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from .ladder import require_positive
from .padding import round_up


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

    def __post_init__(self) -> None:
        """Refuse what is not a positive integer."""
        require_positive("max_num_tokens", self.max_num_tokens)
        require_positive("max_num_seqs", self.max_num_seqs)
        require_positive("prefill_tile", self.prefill_tile)

    def pack(self, waiting: Iterable[int]) -> tuple[int, ...]:
        """Return the tokens of each prompt at the head that run in one step together."""
        taken: list[int] = []
        start = 0
        for num_tokens in waiting:
            require_positive("waiting prompt length", num_tokens)
            if len(taken) == self.max_num_seqs or start >= self.max_num_tokens:
                break
            taken.append(min(num_tokens, self.max_num_tokens - start))
            start += round_up(taken[-1], self.prefill_tile)
        return tuple(taken)


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
