"""``noria doctor``: what this machine is, which backends would run on it, and what is missing."""

from __future__ import annotations

import json
from pathlib import Path

import click

from ..config import Config, load_config
from ..machine.bundle import collected, write_bundle
from ..machine.facts import MachineFacts, find_facts
from ..machine.sources import Sources
from ..machine.verdicts import DEFAULT_TARGET, verdicts
from .doctor_text import report_data, report_text
from .failures import SOME_FAILED
from .output_paths import OutputPath

DEFAULT_BACKEND = "cpu"
FOUND = click.make_pass_decorator(Sources, ensure=True)


@click.command()
@click.argument("config", type=click.Path(path_type=Path), required=False)
@click.option("--json", "as_json", is_flag=True, help="Print all of it as JSON.")
@click.option(
    "--bundle", metavar="FILE", type=OutputPath(), help="Write what to send when something fails."
)
@FOUND
def doctor(sources: Sources, config: Path | None, as_json: bool, bundle: Path | None) -> None:
    """Say what this machine is, which backends would run here, and what is missing.

    For all that is missing there is the line to run next, in the order in which they make sense.
    Reads files and versions only: no model, no torch, and nothing of the vendor's is imported.
    The exit status is 1 if the backend of CONFIG, or without CONFIG the CPU, would not run.

    The file of --bundle is a .tar.gz: this report, the settings, versions, the last lines of logs.
    There are no prompts and no weights in it, and of all variables only NEURON_*, TORCH_NEURONX_*
    and NKI_*.
    """
    settings = None if config is None else load_config(config)
    facts = find_facts(sources)
    target = _target(settings, facts)
    found = verdicts(facts, sources, target)
    backend = DEFAULT_BACKEND if settings is None else settings.backend
    runs = found[backend].runs
    text = report_text(facts, found, found if settings is None else (backend,))
    text += f"\n\nbackend: {backend} would {'' if runs else 'not '}run here"
    data = {"backend": backend, "target": target, "runs": runs, **report_data(facts, found)}
    written = json.dumps(data, indent=2)
    click.echo(written if as_json else text)
    if bundle is not None:
        files = {"report.txt": text, "report.json": written, **_about(settings, sources)}
        write_bundle(bundle, files)
        click.echo(f"{bundle}: {', '.join(files)}", err=True)
    if not runs:
        click.get_current_context().exit(SOME_FAILED)


def _target(settings: Config | None, facts: MachineFacts) -> str:
    """Return the generation that neuron backends would run on."""
    written = None if settings is None else settings.target
    return written or facts.generation or DEFAULT_TARGET


def _about(settings: Config | None, sources: Sources) -> dict[str, str]:
    if settings is None:
        return collected(sources, Path())
    compiled = Path(settings.compiled) if settings.compiled else None
    config = json.dumps(settings.to_mapping(), indent=2)
    return {"settings.json": config, **collected(sources, Path(), compiled)}
