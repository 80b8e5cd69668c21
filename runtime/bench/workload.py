"""The offline workload: how many prompts, of which ids, and how many tokens each one gets."""

from __future__ import annotations

import random
from dataclasses import dataclass, fields

from ..errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Prompts of random ids, all there at once and equally long.

    Attributes:
        num_prompts: prompts of one run.
        prompt_len: ids of one prompt.
        new_tokens: tokens that each prompt gets, whatever they are.
        vocab_size: ids are drawn from 0 up to, and without, this.
        seed: other seeds draw other prompts.

    Raises:
        ConfigError: a count is below 1.
    """

    num_prompts: int = 32
    prompt_len: int = 64
    new_tokens: int = 64
    vocab_size: int
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse a workload without work."""
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name != "seed" and value < 1:
                raise ConfigError(f"{field.name} is {value}; it must be at least 1")

    @property
    def num_new_tokens(self) -> int:
        """New tokens of one run, all prompts together."""
        return self.num_prompts * self.new_tokens

    @property
    def tokens_per_prompt(self) -> int:
        """Length of a finished request, its prompt included."""
        return self.prompt_len + self.new_tokens

    def prompts(self, run: int) -> list[list[int]]:
        """Return the prompts of one run, the same for every engine.

        Each run has prompts of its own, so that no prefix cache can know them.
        """
        draw = random.Random(f"{self.seed}/{run}").randrange
        return [
            [draw(self.vocab_size) for _ in range(self.prompt_len)] for _ in range(self.num_prompts)
        ]
