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


class StopTable:
    """What is known of stop strings beforehand; any number of texts may be read with one."""

    def __init__(self, stop: Sequence[str]) -> None:
        """Prepare for ``stop``: strings, none of them empty."""
        # A state is the longest end of the text that some stop string begins with: its characters
        # (depth), the next longest such end (shorter), and the longest stop string it ends with.
        self.next: list[dict[str, int]] = [{}]
        self.depth = [0]
        self.match_length = [0]
        self._shorter = [0]
        for string in stop:
            self._insert(string)
        self._link()

    def after(self, state: int, character: str) -> int:
        """Return the state that a character leads to."""
        while state and character not in self.next[state]:
            state = self._shorter[state]
        return self.next[state].get(character, 0)

    def _insert(self, string: str) -> None:
        state = 0
        for character in string:
            if character not in self.next[state]:
                self.next[state][character] = len(self.next)
                self.depth.append(self.depth[state] + 1)
                self.next.append({})
                self._shorter.append(0)
                self.match_length.append(0)
            state = self.next[state][character]
        self.match_length[state] = len(string)

    def _link(self) -> None:
        """Fill in the shorter ends, which are known of all states that are less deep."""
        queue = deque(self.next[0].values())
        while queue:
            state = queue.popleft()
            for character, following in self.next[state].items():
                shorter = self.after(self._shorter[state], character)
                self._shorter[following] = shorter
                longest = self.match_length[following] or self.match_length[shorter]
                self.match_length[following] = longest
                queue.append(following)


class StopMatcher:
    """Reads one text and finds the first stop string in it.

    First is the one whose last character comes first, and of those the longest. Every character
    is read once.
    """

    def __init__(self, table: StopTable) -> None:
        """Start before the first character."""
        self._table = table
        self._state = 0

    @property
    def num_held(self) -> int:
        """How many of the last characters a stop string begins with."""
        return self._table.depth[self._state]

    def feed(self, text: str, *, is_allowed: bool = True) -> StopMatch | None:
        """Read the next piece up to the end of the first stop string, None where there is none.

        With ``is_allowed`` False a stop string that this piece completes is passed over.
        """
        table = self._table
        if self._state == 0 and table.next[0].keys().isdisjoint(text):
            return None
        for index, character in enumerate(text):
            self._state = table.after(self._state, character)
            length = table.match_length[self._state]
            if length and is_allowed:
                return StopMatch(index + 1, length)
        return None
