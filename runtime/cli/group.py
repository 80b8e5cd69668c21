"""The command group: which commands there are, and what their failures look like."""

from __future__ import annotations

from platform import python_version

import click

from ...bucketing import NoBucketError
from ..errors import NoriaError
from .bench import bench
from .check import check
from .compile import compile_graphs
from .doctor import doctor
from .drift import drift
from .export import export
from .failures import EXIT_STATUSES, INTERRUPTED, UserMistake, plain_warnings, user_stdout
from .fetch import fetch
from .generate import generate
from .kernels import kernels
from .plan import plan
from .set_commands import bundle, cache, unbundle, verify
from .whatif import whatif


class Commands(click.Group):
    """Commands whose users' mistakes become one line and exit status 2, without a traceback."""

    def invoke(self, ctx: click.Context) -> object:
        """Run the command that was named."""
        with plain_warnings(), user_stdout():
            try:
                return super().invoke(ctx)
            except (NoriaError, NoBucketError) as error:
                raise UserMistake(str(error)) from error
            except KeyboardInterrupt:
                click.echo("Interrupted", err=True)
                ctx.exit(INTERRUPTED)


@click.group(cls=Commands, epilog=EXIT_STATUSES, context_settings={"max_content_width": 100})
def main() -> None:
    """Run language models on fixed-shape graphs, all compiled before the first request."""


@main.command("version")
def show_version() -> None:
    """Print the versions of noria, python and torch."""
    from importlib.metadata import PackageNotFoundError, version

    from .. import __version__

    click.echo(f"noria {__version__}")
    click.echo(f"python {python_version()}")
    try:
        click.echo(f"torch {version('torch')}")
    except PackageNotFoundError:
        click.echo("torch is not installed")


COMMANDS = (
    *(doctor, check, plan, whatif, drift, export, fetch, compile_graphs, generate, bench, kernels),
    *(verify, bundle, unbundle, cache),
)
for command in COMMANDS:
    main.add_command(command)
