"""Structured output: JSON schemas, regular expressions and choices as token constraints.

The grammars are those of the package llguidance (extra ``grammar``), imported when the first
request asks for one.
"""

from __future__ import annotations

import copy
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..constraint import WORD_BITS, num_words
from ..errors import RequestError
from ..json_text import parse_json
from ..value_text import value_text
from .tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

LOG = logging.getLogger(__name__)


class Grammars:
    """Makes the token constraints of one model's requests."""

    def __init__(
        self, tokenizer: Tokenizer, *, vocab_size: int, end_token_ids: Sequence[int]
    ) -> None:
        """Prepare nothing yet: reading a large vocabulary takes a second.

        Args:
            tokenizer: the model's.
            vocab_size: of the model, which may exceed the tokenizer's.
            end_token_ids: allowed exactly where a text may end.
        """
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._end_token_ids = sorted(end_token_ids)

    def constraint(self, structured_output: Mapping[str, object]) -> GrammarConstraint:
        """Return a new constraint, before the first token.

        Args:
            structured_output: one of ``json`` (a JSON schema, as a mapping or as its text),
                ``regex`` (matched by the whole text) and ``choice`` (a list of texts).

        Raises:
            RequestError: it is malformed or allows no text, llguidance is not installed or lacks
                a feature that is asked for, or it cannot read the model's tokenizer.
        """
        kinds = ", ".join(_GRAMMARS)
        if len(structured_output) != 1 or not structured_output.keys() <= _GRAMMARS.keys():
            given = ", ".join(map(str, structured_output)) or "nothing"
            raise RequestError(f"structured_output has {given}; it takes exactly one of {kinds}")
        ((kind, value),) = structured_output.items()
        tokens = self._tokens
        from llguidance import LLMatcher

        grammar = _GRAMMARS[kind](value)
        if self._tokenizer.drops_first_space:
            grammar = _behind_a_space(grammar)
        matcher = LLMatcher(tokens, grammar, log_level=0)
        if matcher.is_error():
            raise RequestError(f"structured_output.{kind}: {_reason(matcher.get_error())}")
        constraint = GrammarConstraint(
            matcher, num_tokens=tokens.vocab_size, vocab_size=self._vocab_size
        )
        if not constraint.bitmask().any():
            raise RequestError(f"structured_output.{kind}: no text of this model fits it")
        return constraint

    @cached_property
    def _tokens(self) -> LLTokenizer:
        try:
            from llguidance import LLTokenizer
        except ImportError:
            raise RequestError(
                "structured_output needs the package llguidance: pip install 'llguidance>=1.9'"
            ) from None
        if not self._end_token_ids:
            raise RequestError("structured_output: the model has no end token to end a text with")
        vocab_size = max(self._vocab_size, self._tokenizer.vocab_size)
        try:
            return LLTokenizer(self._tokenizer.to_json(), vocab_size, self._end_token_ids)
        except ValueError as error:
            reason = _reason(str(error))
            raise RequestError(
                f"structured_output: llguidance cannot read the model's tokenizer: {reason}"
            ) from None


class GrammarConstraint:
    """One request's place in a grammar."""

    def __init__(self, matcher: LLMatcher, *, num_tokens: int, vocab_size: int) -> None:
        """Start before the first token.

        ``num_tokens`` is what the matcher knows; ids below ``vocab_size`` are the model's.
        """
        self._matcher = matcher
        self._num_words = num_words(num_tokens)
        self._num_model_words = num_words(vocab_size)
        last_bits = (vocab_size - 1) % WORD_BITS + 1
        self._last_word = np.array([2**last_bits - 1], np.uint32).view(np.int32)

    def copy(self) -> GrammarConstraint:
        """Return a constraint that stands where this one stands."""
        twin = copy.copy(self)
        twin._matcher = self._matcher.deep_copy()
        return twin

    def bitmask(self) -> NDArray[np.int32]:
        """Return one bit per token of the model; none is set once the grammar has failed."""
        from llguidance.numpy import fill_next_token_bitmask

        words = np.zeros((1, self._num_words), np.int32)
        fill_next_token_bitmask(self._matcher, words)
        words = words[0, : self._num_model_words]
        words[-1:] &= self._last_word
        # A matcher that failed allows the end of a text, which would then be no whole one.
        return np.zeros_like(words) if self._matcher.is_error() else words

    def accept(self, token_id: int) -> None:
        """Take the next token."""
        if not self._matcher.consume_token(token_id):
            LOG.warning("structured_output failed: %s", _reason(self._matcher.get_error()))

    @property
    def is_complete(self) -> bool:
        """Whether nothing may follow but the end."""
        return self._matcher.is_stopped() and not self._matcher.is_error()


def _behind_a_space(grammar: str) -> str:
    """Let a space begin the text, where decoding drops it: what is left then fits ``grammar``.

    The model, too, knows words at the beginning of a text as tokens with a space.
    """
    (body,) = json.loads(grammar)["grammars"]
    space = {"lark_grammar": 'start: " " @body'}
    return json.dumps({"grammars": [space, {**body, "name": "body"}]})


def _json_grammar(schema: object) -> str:
    from llguidance import LLMatcher

    try:
        value = parse_json(schema) if isinstance(schema, str) else schema
        if not isinstance(value, Mapping | bool):
            fits = "must be a JSON schema: an object, or its text"
            raise RequestError(f"structured_output.json is {value_text(value)}; {fits}")
        return LLMatcher.grammar_from_json_schema(json.dumps(value))
    except RequestError:
        raise
    except (TypeError, ValueError, RecursionError) as error:
        raise RequestError(f"structured_output.json is not JSON: {_reason(str(error))}") from None


def _regex_grammar(regex: object) -> str:
    from llguidance import LLMatcher

    if not isinstance(regex, str):
        fits = "must be a regular expression"
        raise RequestError(f"structured_output.regex is {value_text(regex)}; {fits}")
    return LLMatcher.grammar_from_regex(regex)


def _choice_grammar(choice: object) -> str:
    texts = choice if isinstance(choice, Sequence) and not isinstance(choice, str) else ()
    if not texts or not all(isinstance(text, str) and text for text in texts):
        fits = "must be a list of texts, none of them empty"
        raise RequestError(f"structured_output.choice is {value_text(choice)}; {fits}")
    # Written by their numbers, no character has a meaning of its own.
    escaped = ("".join(f"\\x{{{ord(char):x}}}" for char in text) for text in texts)
    return _regex_grammar("|".join(escaped))


_GRAMMARS: Mapping[str, Callable[[object], str]] = MappingProxyType(
    {"json": _json_grammar, "regex": _regex_grammar, "choice": _choice_grammar}
)


def _reason(message: str) -> str:
    """Return the line of a message that tells what is wrong: it may quote a text and point."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return (errors or lines or [""])[0]
