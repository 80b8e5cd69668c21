"""No command writes a file that is called ``-``: it is stdout, or refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from noria.runtime.cli import main
from noria.runtime.cli.output_paths import OutputPath

READ = {
    "config": None,
    "plan": None,
    "compiled": None,
    "costs": None,
    "prompts": None,
    "trace": None,
    "traces": None,
    "counters": ("drift",),
    "file": ("unbundle",),
    "folder": ("bundle", "verify"),
}
"""Names of paths that are read, by all commands or by these."""
STREAMED = {("generate", "output")}


def commands(group: click.Command, names: tuple[str, ...] = ()) -> Iterator[list[str]]:
    """Yield the names of every command."""
    if not isinstance(group, click.Group):
        yield list(names)
        return
    for name, command in group.commands.items():
        yield from commands(command, (*names, name))


def command_of(names: list[str]) -> click.Command:
    found: click.Command = main
    for name in names:
        assert isinstance(found, click.Group)
        found = found.commands[name]
    return found


def is_read(command: str, param: click.Parameter) -> bool:
    only = READ.get(str(param.name), ())
    return only is None or command in only


PATHS = [
    (names, param)
    for names in commands(main)
    for param in command_of(names).params
    if isinstance(param.type, click.Path)
]
WRITTEN = [(names, param) for names, param in PATHS if isinstance(param.type, OutputPath)]


def test_every_path_is_read_or_refuses_what_is_no_name() -> None:
    others = {
        (names[-1], param.name)
        for names, param in PATHS
        if not isinstance(param.type, OutputPath) and not is_read(names[-1], param)
    }

    assert others == STREAMED
    assert len(WRITTEN) >= 11


@pytest.mark.parametrize(
    ("names", "param"), WRITTEN, ids=[f"{'-'.join(names)}-{param.name}" for names, param in WRITTEN]
)
def test_a_dash_is_refused_before_anything_is_done(
    names: list[str], param: click.Parameter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    needed = [one for one in command_of(names).params if one.required and one is not param]
    args = [text for one in needed for text in arguments(one, ".")]

    found = CliRunner().invoke(main, [*names, *args, *arguments(param, "-")])

    assert (found.exit_code, found.stdout) == (2, "")
    assert found.stderr.endswith(
        ": is '-', which is no name of a file here; name one, or write ./- for it\n"
    )
    assert list(tmp_path.iterdir()) == []


def arguments(param: click.Parameter, value: str) -> list[str]:
    return [param.opts[-1], value] if isinstance(param, click.Option) else [value]


def test_a_file_of_that_name_may_be_meant(tmp_path: Path) -> None:
    assert OutputPath().convert("./-", None, None) == Path("-")
