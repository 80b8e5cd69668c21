"""From a configuration, traffic and options to the problem that a planner solves.

Needs no torch and no weights: a plan is made on machines that have neither.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from ..bucketing import PlanLimits
from ..bucketing.costs.devices import CPU_FEES, SHEETS, DeviceSheet, device_sheet, read_sheet
from ..bucketing.costs.model_shape import ModelShape
from ..bucketing.costs.saved import SavedCosts
from ..bucketing.planner.budget import Budget
from ..bucketing.planner.planner import Problem
from ..bucketing.planner.settings import DecodeShape, PlanSettings, Policy
from ..bucketing.traces.selection import fit_to_limits, head, scale, take
from ..bucketing.traces.trace import Trace, TraceError
from .config import Config
from .errors import ConfigError, ModelError, NoriaError
from .models.sizes import read_sizes_of
from .planning import plan_limits
from .settings import NEURON_BACKENDS
from .step_costs import CONTEXT_READS, model_shape, read_costs
from .target_shapes import target_shapes
from .yaml_reader import read_yaml

GRANULARITY = 16
"""Prefill sizes are multiples of it on targets that have no tile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """What a user may ask of a plan besides what the configuration says.

    Attributes:
        costs: file of measured costs; None: those of a device sheet.
        fitted: take from the file what a model of a few terms says, not curves through it.
        device: name of a sheet or a file with one; None: the target of the configuration.
        budget: for all graphs.
        policy: how prompts fill steps.
        decode_shape: which sets of decode graphs may be chosen.
        max_ratio: most that neighbouring prefill sizes may differ by; None: any.
        must_have: prefill sizes that the plan has.
        search_s: seconds for the search for better decode sets.
        prove_s: seconds for a proof of the decode set; 0: none.
        scale: scale lengths until all requests fit.
        head: plan for the first requests only; None: all.
    """

    costs: Path | None = None
    fitted: bool = False
    device: str | None = None
    budget: Budget = field(default_factory=Budget)
    policy: Policy = "auto"
    decode_shape: DecodeShape = "ragged"
    max_ratio: float | None = 2.5
    must_have: tuple[int, ...] = ()
    search_s: float = 8.0
    prove_s: float = 0.0
    scale: bool = False
    head: int | None = None


@dataclass(frozen=True, slots=True)
class PlanTask:
    """A problem and where its costs come from.

    Attributes:
        problem: to be solved.
        costs: of the problem, as plain data too.
        notes: what whoever reads the plan should know, in sentences.
    """

    problem: Problem
    costs: SavedCosts
    notes: tuple[str, ...]


def plan_task(config: Config, trace: Trace, options: PlanOptions) -> PlanTask:
    """Return what is to be planned. Files of costs and the model's configuration are read here.

    Raises:
        NoriaError: in one line: a file, an option or the traffic does not fit.
    """
    limits = planned_limits(config)
    _check_must_have(options.must_have, limits)
    costs, shape, notes = planned_costs(config, options)
    num_blocks = _num_blocks(config, shape)
    try:
        fitting = _fitting(trace, limits, num_blocks, options)
    except TraceError as error:
        raise NoriaError(str(error)) from None
    policy = options.policy
    if costs.steps.source == "tokens":  # steps cost nothing besides rows: the smallest would do all
        fitting = replace(fitting, arrivals_s=None)
        policy = "fill" if policy == "auto" else policy
    settings = PlanSettings(
        policy=policy,
        prefix=CONTEXT_READS[config.backend].prefix,
        decode_shape=options.decode_shape,
        granularity=granularity(limits),
        must_have=options.must_have,
        max_ratio=options.max_ratio,
        search_s=options.search_s,
    )
    problem = Problem(
        trace=fitting,
        limits=limits,
        costs=costs.steps,
        fees=costs.fees,
        budget=options.budget,
        settings=settings,
        num_blocks=num_blocks,
    )
    return PlanTask(problem, costs, notes)


def planned_limits(config: Config) -> PlanLimits:
    """Return the limits of a configuration with the alignment of its backend."""
    shapes = target_shapes(config.backend)
    return plan_limits(config, prefill_tile=shapes.prefill_tile, fold_blocks=shapes.fold_blocks)


def granularity(limits: PlanLimits) -> int:
    """Return what prefill sizes are multiples of: the target's tile, or 16 rows."""
    return limits.prefill_tile if limits.prefill_tile > 1 else GRANULARITY


def planned_costs(
    config: Config, options: PlanOptions
) -> tuple[SavedCosts, ModelShape | None, tuple[str, ...]]:
    """Return costs, the sizes of the model if they were read, and what to say of the costs.

    Raises:
        NoriaError: a file or a name is wrong, or its costs are another model's.
    """
    if options.costs is not None:
        if options.device is not None:
            raise ConfigError("--device: is given, and --costs is, too; give only one of them")
        return _measured_costs(config, options.costs, fitted=options.fitted)
    if options.fitted:
        raise ConfigError("--fitted: needs --costs, a file of measured steps to fit to")
    if options.device is None and config.backend not in NEURON_BACKENDS:
        return SavedCosts.tokens(CPU_FEES), None, (_nothing_measured(config),)
    sheet = _sheet(str(config.target) if options.device is None else options.device)
    shape = model_shape(config, read_sizes_of(config.model))
    try:
        costs = SavedCosts.roofline(
            shape, sheet, config.dtype, num_logits_rows=config.max_num_prefill_seqs
        )
    except ValueError as error:
        raise ConfigError(f"--device: {error}") from None
    note = f"nothing was measured: seconds are those of a roofline of {sheet.name}"
    return costs, shape, (note,)


def _measured_costs(
    config: Config, path: Path, *, fitted: bool
) -> tuple[SavedCosts, ModelShape, tuple[str, ...]]:
    table = read_costs(path)
    shape = model_shape(config, read_sizes_of(config.model))
    try:
        if table.device.backend != config.backend:
            raise ValueError(
                f"costs were measured on backend {table.device.backend}, not {config.backend}"
            )
        table.check_same(table.device, model=shape, dtype=config.dtype)
        costs = SavedCosts.of_table(table, fitted=fitted)
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from None
    error_share = costs.steps.error_share
    error_text = "" if error_share is None else f", {error_share:.1%} off on average"
    note = f"seconds are {costs.steps.source} on {table.device}{error_text}"
    return costs, shape, (note,)


def _nothing_measured(config: Config) -> str:
    return (
        f"nothing was measured on this {config.backend}, so a step is taken to cost its rows, "
        "whatever its context, prompts fill the largest graph, and arrivals do not count: all "
        "requests wait from the start. For a "
        "plan in seconds run noria bench shapes CONFIG -o costs.json first, and give --costs"
    )


def _sheet(name: str) -> DeviceSheet:
    """Return the sheet of that name, or the one in a file."""
    try:
        if name not in SHEETS and os.path.isfile(name):
            return read_sheet(read_yaml(name))
        return device_sheet(name)
    except ConfigError:
        raise
    except ValueError as error:
        problem = " ".join(str(error).split())
        raise ConfigError(f"--device: {problem}, or the path of a file with a sheet") from None


def _check_must_have(sizes: tuple[int, ...], limits: PlanLimits) -> None:
    unit, most = granularity(limits), limits.max_prefill_tokens
    for size in sizes:
        if not 0 < size <= most or (size % limits.prefill_tile and size != most):
            multiple = f" in multiples of {unit}" if limits.prefill_tile > 1 else ""
            raise ConfigError(f"--must-have: {size}; must be a size up to {most}{multiple}")


def _num_blocks(config: Config, shape: ModelShape | None) -> int | None:
    """Return the blocks of the KV cache; None where there never are too few, or nobody knows.

    Layers with a window have blocks of their own, which the simulation does not follow.
    """
    if config.num_blocks != "auto":
        return config.num_blocks
    if config.kv_cache_memory_bytes is None:
        return None
    if shape is None:
        shape = _shape_if_known(config)
    if shape is None or shape.windows:
        return None
    block_bytes = shape.kv_token_bytes * config.block_size
    in_memory = int(config.kv_cache_memory_bytes // block_bytes)
    wanted = config.max_num_seqs * -(-config.max_model_len // config.block_size) + 1
    return in_memory if in_memory < wanted else None


def _shape_if_known(config: Config) -> ModelShape | None:
    try:
        return model_shape(config, read_sizes_of(config.model))
    except ModelError:
        return None


def _fitting(
    trace: Trace, limits: PlanLimits, num_blocks: int | None, options: PlanOptions
) -> Trace:
    """Return the requests that an engine would run, with warnings about all others."""
    first = trace if options.head is None else head(trace, options.head)
    if options.scale:
        first = scale(first, limits.max_model_len)
    fitting = fit_to_limits(first, limits.max_model_len)
    if num_blocks is None or fitting.output_lens is None:
        return fitting
    blocks = -(-(fitting.prompt_lens + fitting.output_lens) // limits.block_size)
    is_fit = blocks <= num_blocks - 1
    if is_fit.all():
        return fitting
    if not is_fit.any():
        raise TraceError(
            f"no request of the trace fits the KV cache of {num_blocks} blocks: the smallest "
            f"needs {blocks.min()} and the null block"
        )
    largest = int(np.argmax(blocks))
    warning = (
        f"{(~is_fit).sum():,} of {len(is_fit):,} requests need more blocks than the {num_blocks} "
        f"of the KV cache and are left out; the largest is request {largest + 1:,} with "
        f"{blocks[largest]:,}"
    )
    warned = replace(fitting, warnings=(*fitting.warnings, warning))
    return take(warned, is_fit, f"num_blocks {num_blocks}")
