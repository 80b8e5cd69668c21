from __future__ import annotations

import doctest

import pytest

from noria.runtime.cli import tables
from noria.runtime.cli.progress import show_progress


def test_few_steps_are_a_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    with show_progress("compile") as progress:
        for index, label in enumerate(("a", "b", "done")):
            progress(label, index, 2)

    assert capsys.readouterr().err == "compile: 0/2 a\ncompile: 1/2 b\ncompile: 2/2 done\n"


def test_many_steps_are_about_twenty_lines_with_first_and_last(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with show_progress("generate") as progress:
        for index in range(1234):
            progress("", index, 1233)

    lines = capsys.readouterr().err.splitlines()
    assert (lines[0], lines[-1]) == ("generate: 0/1233", "generate: 1233/1233")
    assert 20 <= len(lines) <= 22


def test_an_unknown_total_is_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with show_progress("fetch") as progress:
        progress("downloading", 0, 0)
        progress("verifying", 0, 0)

    assert capsys.readouterr().err == "fetch: downloading\nfetch: verifying\n"


def test_documented_examples_of_tables_give_what_they_show() -> None:
    result = doctest.testmod(tables)

    assert result.attempted >= 3
    assert result.failed == 0
