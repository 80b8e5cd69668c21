"""The text of one request as its tokens come: whole characters, cut at stop strings.

Knows neither tokenizers nor requests: it is given a decoder and tokens, one at a time, and costs
the same for each of them, however long the text has become.
"""

from __future__ import annotations

from typing import Protocol

from .stop_strings import StopMatcher, StopTable


class TextDecoder(Protocol):
    """Decodes tokens one by one into text that later tokens cannot change."""

    def push(self, token_id: int) -> str:
        """Take the next token; return the text that is now certain."""

    def flush(self) -> str:
        """Return what was held back, after the last token."""


class OutputText:
    """Text of one request's output.

    A stop string ends the text where it is completed: of several, the one whose last character
    comes first, and of those the longest. This does not depend on how the text was cut into tokens.
    """

    def __init__(
        self,
        decoder: TextDecoder,
        stop: StopTable | None = None,
        *,
        include_stop: bool = False,
        min_tokens: int = 0,
    ) -> None:
        """Start before the first token.

        Args:
            decoder: of this request alone.
            stop: strings that end the text; one table may serve many texts.
            include_stop: keep the stop string that ended the text; without, it is cut off.
            min_tokens: what is completed by fewer tokens is no stop string but text.
        """
        self._decoder = decoder
        self._matcher = StopMatcher(stop) if stop else None
        self._include_stop = include_stop
        self._min_tokens = min_tokens
        self._pieces: list[str] = []  # certain text
        self._held = ""  # what could be the beginning of a stop string
        self._num_taken = 0  # pieces
        self.num_tokens = 0
        """Tokens that were pushed."""
        self.stop_num_tokens: int | None = None
        """``num_tokens`` at which a stop string was completed, None where none was."""

    @property
    def text(self) -> str:
        """All text so far, also what could be the beginning of a stop string."""
        return "".join(self._pieces) + self._held

    def push(self, token_id: int) -> bool:
        """Take the next token; return whether it completed a stop string, which ends the text."""
        assert self.stop_num_tokens is None, "a token after a stop string"
        self.num_tokens += 1
        return self._add(self._decoder.push(token_id))

    def take(self) -> str:
        """Return the text that is certain and was not returned before.

        It holds no part of a character, and nothing that could become a stop string.
        """
        taken = "".join(self._pieces[self._num_taken :])
        self._num_taken = len(self._pieces)
        return taken

    def finish(self) -> bool:
        """Release what was held back, after the last token.

        Returns:
            Whether a stop string turned up in what the decoder had held back.
        """
        is_stop = self.stop_num_tokens is None and self._add(self._decoder.flush())
        self._pieces.append(self._held)
        self._held = ""
        return is_stop

    def _add(self, text: str) -> bool:
        if self._matcher is None:
            self._pieces.append(text)
            return False
        is_allowed = self.num_tokens >= self._min_tokens
        match = self._matcher.feed(text, is_allowed=is_allowed)
        text = self._held + text
        if match is None:
            cut = len(text) - self._matcher.num_held
            self._held = text[cut:]
        else:
            end = len(self._held) + match.end
            cut = end if self._include_stop else end - match.length
            self._held = ""
            self.stop_num_tokens = self.num_tokens
        self._pieces.append(text[:cut])
        return match is not None
