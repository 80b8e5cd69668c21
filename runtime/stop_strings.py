"""Finding stop strings in text that comes in pieces (Aho and Corasick, 1975)."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StopMatch:
    """A stop string that was completed.

    Attributes:
        end: characters of the last piece up to its end.
        length: its own characters, which may have begun in earlier pieces.
    """

    end: int
    length: int


class StopMatcher:
    """Reads one text and finds the first stop string in it.

    First is the one whose last character comes first, and of those the longest. Every character
    is read once.
    """

    def __init__(self, stop: Sequence[str]) -> None:
        """Prepare for ``stop``: strings, none of them empty."""
        # A state is the longest end of the text that some stop string begins with: its characters
        # (depth), the next longest such end (shorter), and the longest stop string it ends with.
        self._next: list[dict[str, int]] = [{}]
        self._depth = [0]
        self._shorter = [0]
        self._match_length = [0]
        self._state = 0
        for string in stop:
            self._insert(string)
        self._link()

    @property
    def num_held(self) -> int:
        """How many of the last characters a stop string begins with."""
        return self._depth[self._state]

    def feed(self, text: str, *, is_allowed: bool = True) -> StopMatch | None:
        """Read the next piece up to the end of the first stop string, None where there is none.

        With ``is_allowed`` False a stop string that this piece completes is passed over.
        """
        if self._state == 0 and self._next[0].keys().isdisjoint(text):
            return None
        for index, character in enumerate(text):
            self._state = self._after(self._state, character)
            length = self._match_length[self._state]
            if length and is_allowed:
                return StopMatch(index + 1, length)
        return None

    def _after(self, state: int, character: str) -> int:
        while state and character not in self._next[state]:
            state = self._shorter[state]
        return self._next[state].get(character, 0)

    def _insert(self, string: str) -> None:
        state = 0
        for character in string:
            if character not in self._next[state]:
                self._next[state][character] = len(self._next)
                self._depth.append(self._depth[state] + 1)
                self._next.append({})
                self._shorter.append(0)
                self._match_length.append(0)
            state = self._next[state][character]
        self._match_length[state] = len(string)

    def _link(self) -> None:
        """Fill in the shorter ends, which are known of all states that are less deep."""
        queue = deque(self._next[0].values())
        while queue:
            state = queue.popleft()
            for character, following in self._next[state].items():
                shorter = self._after(self._shorter[state], character)
                self._shorter[following] = shorter
                longest = self._match_length[following] or self._match_length[shorter]
                self._match_length[following] = longest
                queue.append(following)
