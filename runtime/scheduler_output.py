"""What the scheduler hands to the model runner: one step, in plain values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from .kv_cache_manager import BlockTables
from .sampling_params import SamplingParams
from .sampling_state import SamplerRow


class Phase(Enum):
    """A step runs prompts or generates; never both."""

    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(frozen=True, slots=True)
class ScheduledRequest:
    """The part of a request that runs in one step.

    Attributes:
        token_ids: tokens to run, the first at position ``num_computed_tokens``.
        block_tables: block ids per KV group that cover context and these tokens.
        seed: with the position of the token to draw, all that randomness depends on.
    """

    request_id: str
    token_ids: Sequence[int]
    num_computed_tokens: int
    block_tables: BlockTables
    params: SamplingParams
    seed: int

    @property
    def num_context_tokens(self) -> int:
        """Tokens in the cache once the step has run."""
        return self.num_computed_tokens + len(self.token_ids)

    @property
    def sampling(self) -> SamplerRow | None:
        """What to draw once the step has run; None for a chunk that draws nothing."""
        return SamplerRow(self.params, self.seed, position=self.num_context_tokens)


@dataclass(frozen=True, slots=True)
class SchedulerOutput:
    """The requests of one step, in row order."""

    phase: Phase
    requests: tuple[ScheduledRequest, ...]

    @property
    def num_scheduled_tokens(self) -> int:
        """Real tokens of the step."""
        return sum(len(request.token_ids) for request in self.requests)
