"""What the scheduler hands to the model runner, and what comes back: plain values of one step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from .block_table import BlockCopy, BlockTables
from .sampling_state import SamplerRow


class Phase(Enum):
    """A step runs prompts, scores prompts or generates; never two of these.

    Scoring is a prefill that returns the logits of every token.
    """

    PREFILL = "prefill"
    SCORE = "score"
    DECODE = "decode"


@dataclass(frozen=True, slots=True)
class ScheduledRequest:
    """The part of a request that runs in one step.

    Attributes:
        token_ids: tokens to run, the first at position ``num_computed_tokens``.
        block_tables: blocks per KV group that hold what these tokens see, and these tokens.
        sampling: how to draw the token behind them; None if the next one is known.
        next_token_ids: when scoring, the token behind each of ``token_ids``.
        num_prompt_logprobs: when scoring, how many most probable tokens to return for each.
    """

    request_id: str
    token_ids: Sequence[int]
    num_computed_tokens: int
    block_tables: BlockTables
    sampling: SamplerRow | None = None
    next_token_ids: Sequence[int] = ()
    num_prompt_logprobs: int = 0

    @property
    def num_context_tokens(self) -> int:
        """Tokens in the cache once the step has run."""
        return self.num_computed_tokens + len(self.token_ids)


@dataclass(frozen=True, slots=True)
class SchedulerOutput:
    """The requests of one step, in row order, and the blocks to copy before it."""

    phase: Phase
    requests: tuple[ScheduledRequest, ...]
    block_copies: tuple[BlockCopy, ...] = ()

    @property
    def num_scheduled_tokens(self) -> int:
        """Real tokens of the step."""
        return sum(len(request.token_ids) for request in self.requests)
