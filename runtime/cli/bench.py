"""``noria bench WHAT``."""

from __future__ import annotations

import click


@click.group()
def bench() -> None:
    """Measure Noria, and other engines beside it."""
