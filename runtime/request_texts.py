"""What requests need of the model's tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import cast

import numpy as np

from .constraint import TokenConstraint
from .conversation import Conversation
from .errors import RequestError
from .models.grammar import Grammars
from .models.tokenizer import StreamDecoder, Tokenizer
from .output_text import OutputText
from .prompts import Prompt, is_messages
from .sampling_params import SamplingParams
from .stop_strings import StopTable
from .value_text import value_text

NEEDS_TOKENIZER = ("stop", "bad_words", "structured_output")
"""Settings that are about text."""


class RequestTexts:
    """Turns what callers write into what the engine takes, for one model."""

    def __init__(
        self, tokenizer: Tokenizer | None, *, vocab_size: int, end_token_ids: Sequence[int]
    ) -> None:
        """Use the model's tokenizer; with None, prompts are token ids and outputs have no text.

        Args:
            tokenizer: the model's, if it has one.
            vocab_size: of the model, which may exceed the tokenizer's.
            end_token_ids: the model's own end tokens.
        """
        self._tokenizer = tokenizer
        self._grammars = (
            Grammars(tokenizer, vocab_size=vocab_size, end_token_ids=end_token_ids)
            if tokenizer is not None
            else None
        )

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer.

        Raises:
            RequestError: it has none.
        """
        if self._tokenizer is None:
            raise RequestError("the model has no tokenizer: give prompts as lists of token ids")
        return self._tokenizer

    def token_ids(self, prompt: Prompt) -> Sequence[int]:
        """Return the ids of a prompt; ids themselves are left to the engine to judge.

        Raises:
            RequestError: it is no prompt, or the tokenizer or the chat template refuses it.
        """
        if isinstance(prompt, str):
            return self.tokenizer.encode(prompt)
        if isinstance(prompt, Conversation):
            return self.tokenizer.encode_chat(prompt.messages, prompt.tools)
        if isinstance(prompt, np.ndarray):
            prompt = prompt.tolist()
        if not isinstance(prompt, Sequence) or isinstance(prompt, bytes | bytearray):
            raise RequestError(
                f"a prompt is a text, a list of token ids or a list of messages, not "
                f"{type(prompt).__name__}"
            )
        if is_messages(prompt):
            return self.tokenizer.encode_chat(prompt)
        return cast("Sequence[int]", prompt)

    def read_params(self, params: SamplingParams) -> SamplingParams:
        """Return the settings with their ``bad_words`` as token ids.

        A word is banned as it stands and behind a space, for it has other tokens there.

        Raises:
            RequestError: a setting is about text and the model has no tokenizer, or no tokens
                spell a word.
        """
        if self._tokenizer is None:
            for name in NEEDS_TOKENIZER:
                if getattr(params, name):
                    raise RequestError(f"{name}: the model has no tokenizer, so there is no text")
        if not params.bad_words:
            return params
        ids = (ids for word in params.bad_words for ids in self._bad_word_ids(word))
        return replace(params, bad_word_ids=tuple(dict.fromkeys((*params.bad_word_ids, *ids))))

    def text_maker(self, params: SamplingParams) -> Callable[[], OutputText | None]:
        """Return what makes the text of each sample, None where the model has no tokenizer."""
        tokenizer = self._tokenizer
        if tokenizer is None:
            return lambda: None
        stop = StopTable(params.stop) if params.stop else None
        return lambda: OutputText(
            StreamDecoder(tokenizer, skip_special_tokens=params.skip_special_tokens),
            stop,
            include_stop=params.include_stop_str_in_output,
            min_tokens=params.min_tokens,
        )

    def constraint_maker(self, params: SamplingParams) -> Callable[[], TokenConstraint | None]:
        """Return what makes each sample's constraint, None where there is no structured_output.

        Raises:
            RequestError: there can be no such constraint.
        """
        if params.structured_output is None:
            return lambda: None
        assert self._grammars is not None, "read_params refuses it"
        return self._grammars.constraint(params.structured_output).copy

    def _bad_word_ids(self, word: str) -> Iterator[tuple[int, ...]]:
        alone = tuple(self.tokenizer.encode_part(word))
        if not alone:
            raise RequestError(f"bad_words: no tokens spell {value_text(word)}")
        yield alone
        spaced = tuple(self.tokenizer.encode_part(f" {word}"))
        # Where the space is a token of its own, what is banned already follows it.
        if spaced[-len(alone) :] != alone:
            yield spaced
