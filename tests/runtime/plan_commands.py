"""``noria plan`` in a folder with a configuration, its costs and a trace."""

from __future__ import annotations

from pathlib import Path

import yaml
from click.testing import CliRunner, Result
from planned_traffic import SETTINGS, make_config, measured, traffic, write_trace

from noria.runtime.cli import main
from noria.runtime.step_costs import write_costs


def write_inputs(folder: Path) -> None:
    """Write ``config.yaml``, ``costs.json`` and ``trace.csv``."""
    (folder / "config.yaml").write_text(yaml.safe_dump(SETTINGS))
    write_costs(measured(make_config()), folder / "costs.json")
    write_trace(folder / "trace.csv", traffic())


def run(*args: object) -> Result:
    """Run ``noria`` in this process."""
    return CliRunner().invoke(main, [str(arg) for arg in args])


def make_plan(*args: object) -> Result:
    """Make a plan in the current folder from measured costs."""
    found = run("plan", "config.yaml", "--costs", "costs.json", "-o", "plan.yaml", *args)
    assert found.exit_code == 0, found.output
    return found
