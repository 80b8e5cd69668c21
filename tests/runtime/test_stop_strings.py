from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from noria.runtime.stop_strings import StopMatch, StopMatcher, StopTable

SHORT = st.text("ab", min_size=1, max_size=4)


def first_stop(text: str, stop: list[str]) -> tuple[int, int] | None:
    """Return end and length of the first stop string, by trying every end."""
    for end in range(1, len(text) + 1):
        lengths = [len(string) for string in stop if text[:end].endswith(string)]
        if lengths:
            return end, max(lengths)
    return None


def held(text: str, stop: list[str]) -> int:
    """Return the longest end of a text that a stop string begins with."""
    return max(
        size
        for size in range(len(text) + 1)
        if size == 0 or any(string.startswith(text[-size:]) for string in stop)
    )


@settings(max_examples=300)
@given(stop=st.lists(SHORT, min_size=1, max_size=4), pieces=st.lists(st.text("abc", max_size=5)))
def test_the_first_stop_string_is_found_however_the_text_is_cut(
    stop: list[str], pieces: list[str]
) -> None:
    matcher = StopMatcher(StopTable(stop))
    text = ""
    for piece in pieces:
        match = matcher.feed(piece)
        found = None if match is None else (len(text) + match.end, match.length)
        text += piece

        assert found == first_stop(text, stop)
        if match is not None:
            return
        assert matcher.num_held == held(text, stop)


def test_of_strings_that_end_together_the_longest_is_taken() -> None:
    assert StopMatcher(StopTable(["b", "ab"])).feed("xab") == StopMatch(end=3, length=2)


def test_a_prefix_of_another_is_completed_first() -> None:
    assert StopMatcher(StopTable(["abc", "ab"])).feed("abc") == StopMatch(end=2, length=2)


def test_what_is_not_allowed_yet_is_passed_over_and_may_still_begin_a_longer_one() -> None:
    matcher = StopMatcher(StopTable(["ab", "abc"]))

    assert matcher.feed("ab", is_allowed=False) is None
    assert matcher.feed("c") == StopMatch(end=1, length=3)


@pytest.mark.parametrize("stop", [["a" * 1000 + "b"], ["x"]])
def test_long_text_costs_the_same_per_character(stop: list[str]) -> None:
    """Every character is read once, also where each one could begin a stop string."""

    def seconds(length: int) -> float:
        times = []
        for _ in range(5):
            matcher, text = StopMatcher(StopTable(stop)), "a" * length
            start = time.process_time()
            matcher.feed(text)
            times.append(time.process_time() - start)
        return min(times)

    assert seconds(200_000) < 40 * seconds(20_000) + 1e-3
