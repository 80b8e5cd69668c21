from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from noria.runtime.output_text import OutputText
from noria.runtime.stop_strings import StopTable


class Script:
    """Decodes token i to the i-th text, and holds ``last`` back to the end."""

    def __init__(self, texts: Sequence[str], last: str = "") -> None:
        self.texts = texts
        self.last = last

    def push(self, token_id: int) -> str:
        return self.texts[token_id]

    def flush(self) -> str:
        return self.last


def run(
    texts: Sequence[str],
    stop: Sequence[str] = (),
    *,
    include_stop: bool = False,
    min_tokens: int = 0,
    last: str = "",
) -> tuple[str, int | None, list[str]]:
    """Push all tokens up to a stop; return text, tokens at the stop, and what was taken."""
    table = StopTable(stop) if stop else None
    output = OutputText(
        Script(texts, last), table, include_stop=include_stop, min_tokens=min_tokens
    )
    taken = []
    for token_id in range(len(texts)):
        is_stop = output.push(token_id)
        taken.append(output.take())
        if is_stop:
            break
    output.finish()
    taken.append(output.take())
    assert "".join(taken) == output.text
    return output.text, output.stop_num_tokens, taken


FOX = ("qu", "ick br", "own f", "ox")


@pytest.mark.parametrize(
    ("stop", "text", "num_tokens", "stopped_by"),
    [
        (["own fox"], "quick br", 4, "own fox"),
        (["k b"], "quic", 2, "k b"),
        (["k b", "k br"], "quic", 2, "k b"),
        (["k br", "k b"], "quic", 2, "k b"),
        (["own fox", "k b"], "quic", 2, "k b"),
        (["quick"], "", 2, "quick"),
        (["br", "quick brown"], "quick ", 2, "br"),
        (["fox", "ox"], "quick brown ", 4, "fox"),
    ],
)
def test_j01_a_stop_string_over_token_borders(
    stop: list[str], text: str, num_tokens: int, stopped_by: str
) -> None:
    assert run(FOX, stop)[:2] == (text, num_tokens)
    assert run(FOX, stop, include_stop=True)[:2] == (text + stopped_by, num_tokens)


def test_j01_no_part_of_a_stop_string_is_given_out_early() -> None:
    assert run(FOX, ["own fox"])[2] == ["qu", "ick br", "", "", ""]


@pytest.mark.parametrize("last_token", [(), ("x",)])
def test_j09_text_held_back_for_a_stop_string_is_released(last_token: tuple[str, ...]) -> None:
    """An end token has no text, so the engine pushes none; a token may follow, too."""
    text, num_tokens, taken = run(["ple", "as", *last_token], ["assistant"])

    assert (text, num_tokens) == ("pleas" + "".join(last_token), None)
    assert taken[:2] == ["ple", ""]


def test_j09_what_could_have_been_a_stop_string_is_released_as_soon_as_it_cannot() -> None:
    assert run(["a", "a", "b", "b"], ["aab!"])[2] == ["", "", "", "aabb", ""]


def test_a_stop_string_in_what_the_decoder_held_back_is_found_at_the_end() -> None:
    """A character whose tokens end early, or a run of byte tokens."""
    output = OutputText(Script(["hi"], last=" END."), StopTable([" END"]))

    assert not output.push(0)
    assert output.finish()
    assert (output.text, output.take(), output.stop_num_tokens) == ("hi", "hi", 1)


def test_min_tokens_make_earlier_stop_strings_plain_text() -> None:
    """The third token is the first that may complete one."""
    texts = ["x", "x", "ax", "x"]

    assert run(texts, ["x"], min_tokens=0)[:2] == ("", 1)
    assert run(texts, ["x"], min_tokens=3)[:2] == ("xxa", 3)
    assert run(texts, ["xa"], min_tokens=3)[:2] == ("x", 3)
    assert run(texts, ["xx"], min_tokens=3)[:2] == ("xxa", 4)
    assert run(texts, ["x"], min_tokens=9)[:2] == ("xxaxx", None)


def test_no_tokens_are_an_empty_text() -> None:
    assert run([], ["x"]) == ("", None, [""])
    assert run([]) == ("", None, [""])


def test_without_stop_strings_nothing_is_held_back() -> None:
    assert run(["a", "", "bc"], last="d")[2] == ["a", "", "bc", "d"]


def test_the_end_may_be_told_more_than_once() -> None:
    output = OutputText(Script(["ab"], last=""), StopTable(["bc"]))
    output.push(0)
    output.finish()

    assert not output.finish()
    assert output.text == "ab"


PIECES = st.lists(st.text("ab ", max_size=4), max_size=12)
STOPS = st.lists(st.text("ab ", min_size=1, max_size=5), max_size=3)


@settings(max_examples=300)
@given(pieces=PIECES, stop=STOPS, include_stop=st.booleans())
def test_j01_the_text_does_not_depend_on_the_tokens(
    pieces: list[str], stop: list[str], include_stop: bool
) -> None:
    whole = "".join(pieces)

    text, num_tokens, taken = run(pieces, stop, include_stop=include_stop)

    assert text == run(list(whole), stop, include_stop=include_stop)[0]
    assert (num_tokens is None) == (not any(string in whole for string in stop))
    if num_tokens is not None:
        so_far = "".join(pieces[:num_tokens])
        assert any(string in so_far for string in stop)
        assert not any(string in "".join(pieces[: num_tokens - 1]) for string in stop)
        given = "".join(taken[:-1])
        assert include_stop or not any(string in given for string in stop)
