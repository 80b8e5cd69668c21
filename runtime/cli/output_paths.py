"""Paths that commands write to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .failures import UserMistake

STDOUT = "-"
"""Stands for stdout where results are streamed, which only noria generate does."""


class OutputPath(click.Path):
    """A path to write to, which is no ``-``: nobody wants a file of that name."""

    def __init__(self) -> None:
        """Take any path; whether it can be written, writing tells."""
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path; refuse what stands for stdout elsewhere in one line."""
        if value == STDOUT:
            name = param.opts[-1] if isinstance(param, click.Option) else _name(param)
            raise UserMistake(
                f"{name}: is '-', which is no name of a file here; name one, or write ./- for it"
            )
        return super().convert(value, param, ctx)


def _name(param: click.Parameter | None) -> str:
    return param.human_readable_name if param else "path"
