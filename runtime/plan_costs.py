"""Costs that a plan is made with: measured ones, or those of a device sheet."""

from __future__ import annotations

import os
from pathlib import Path

from ..bucketing.costs.devices import SHEETS, DeviceSheet, device_sheet, read_sheet
from ..bucketing.costs.model_shape import ModelShape
from ..bucketing.costs.saved import SavedCosts
from .config import Config
from .errors import ConfigError
from .models.sizes import read_sizes_of
from .settings import NEURON_BACKENDS
from .step_costs import CONTEXT_READS, model_shape, read_costs
from .yaml_reader import read_yaml

CPU = "cpu"


def planned_costs(
    config: Config, *, path: Path | None, fitted: bool, device: str | None
) -> tuple[SavedCosts, ModelShape, str]:
    """Return costs, the sizes of the model, and what to say of the costs.

    Args:
        config: names the model and the target.
        path: file of measured costs; None: those of a device sheet.
        fitted: take from the file what a model of a few terms says, not curves through it.
        device: name of a sheet or a file with one; None: the target of the configuration, or a cpu
            of its threads.

    Raises:
        NoriaError: a file or a name is wrong, its costs are another model's, or the model's
            sizes are not there to be read.
    """
    if path is not None:
        if device is not None:
            raise ConfigError("--device: is given, and --costs is, too; give only one of them")
        return _measured_costs(config, path, fitted=fitted)
    if fitted:
        raise ConfigError("--fitted: needs --costs, a file of measured steps to fit to")
    named = str(config.target) if config.backend in NEURON_BACKENDS else CPU
    sheet = _sheet(named if device is None else device, config.num_threads)
    shape = model_shape(config, read_sizes_of(config.model))
    try:
        costs = SavedCosts.roofline(
            shape,
            sheet,
            config.dtype,
            num_logits_rows=config.max_num_prefill_seqs,
            reads=CONTEXT_READS[config.backend].decode,
        )
    except ValueError as error:
        raise ConfigError(f"--device: {error}") from None
    return costs, shape, _nominal_note(config, sheet)


def _measured_costs(
    config: Config, path: Path, *, fitted: bool
) -> tuple[SavedCosts, ModelShape, str]:
    table = read_costs(path)
    shape = model_shape(config, read_sizes_of(config.model))
    try:
        if table.device.backend != config.backend:
            raise ValueError(
                f"costs were measured on backend {table.device.backend}, not {config.backend}"
            )
        table.check_same(table.device, model=shape, dtype=config.dtype)
        costs = SavedCosts.of_table(
            table, fitted=fitted, reads=CONTEXT_READS[config.backend].decode
        )
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from None
    error_share = costs.steps.error_share
    error_text = "" if error_share is None else f", {error_share:.1%} off on average"
    note = f"seconds are {costs.steps.source} on {table.device}{error_text}"
    return costs, shape, note


def _nominal_note(config: Config, sheet: DeviceSheet) -> str:
    """Say that seconds are not this machine's, and how to get those."""
    note = f"nothing was measured: seconds are nominal, those of a roofline of {sheet.name}"
    if sheet.name.startswith(CPU) and config.num_threads is None:
        note += ", as many as its sheet was measured with, as num_threads is not set"
    if config.backend in NEURON_BACKENDS:
        return note
    return (
        f"{note}. For those of this machine run noria bench shapes CONFIG -o costs.json, and give "
        "--costs"
    )


def _sheet(name: str, num_threads: int | None) -> DeviceSheet:
    """Return the sheet of that name, or the one in a file."""
    try:
        if name not in SHEETS and os.path.isfile(name):
            return read_sheet(read_yaml(name))
        return device_sheet(name, num_threads=num_threads)
    except ConfigError:
        raise
    except ValueError as error:
        problem = " ".join(str(error).split())
        raise ConfigError(f"--device: {problem}, or the path of a file with a sheet") from None
