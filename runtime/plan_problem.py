"""From a configuration, traffic and options to the problem that a planner solves.

Needs no torch and no weights: a plan is made on machines that have neither.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from ..bucketing import PlanLimits
from ..bucketing.costs.model_shape import ModelShape
from ..bucketing.costs.reads import Prefix
from ..bucketing.costs.saved import SavedCosts
from ..bucketing.planner.budget import Budget
from ..bucketing.planner.given_steps import counted_notes, counted_steps, steps_of_lengths
from ..bucketing.planner.problem import Problem
from ..bucketing.planner.settings import DecodeShape, PlanSettings, Policy
from ..bucketing.planner.simulation import Steps
from ..bucketing.traces.counted_engine import CountedEngine
from ..bucketing.traces.counters import Counters
from ..bucketing.traces.selection import fit_to_limits, head, scale, take
from ..bucketing.traces.trace import Trace, TraceError
from .config import Config
from .counted_engine import engine_without_weights
from .errors import ConfigError, NoriaError
from .plan_costs import planned_costs
from .step_costs import CONTEXT_READS

GRANULARITY = 16
"""Prefill sizes are multiples of it on targets that have no tile."""
COUNTED = "these are the steps that an engine counted; when they ran is not known"
LENGTHS_ONLY = (
    "the traffic has lengths of prompts, but no single requests with outputs: each prompt is taken "
    "to run alone, cut at the largest step, and decode graphs are powers of two"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """What a user may ask of a plan besides what the configuration says.

    Attributes:
        costs: file of measured costs; None: those of a device sheet.
        fitted: take from the file what a model of a few terms says, not curves through it.
        device: name of a sheet or a file with one; None: the target of the configuration, or a cpu
            of its threads.
        budget: for all graphs.
        policy: how prompts fill steps.
        prefix: what prefill steps pay for of cached tokens; None: what the backend's kernels do.
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
    prefix: Prefix | None = None
    decode_shape: DecodeShape = "ragged"
    max_ratio: float | None = 2.5
    must_have: tuple[int, ...] = ()
    search_s: float = 4.0
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
        engine: of the configuration.
    """

    problem: Problem
    costs: SavedCosts
    notes: tuple[str, ...]
    engine: CountedEngine


def plan_task(
    config: Config,
    trace: Trace | None,
    options: PlanOptions,
    *,
    counters: Counters | None = None,
    running: CountedEngine | None = None,
) -> PlanTask:
    """Return what is to be planned. Files of costs and the model's configuration are read here.

    Args:
        config: with the limits.
        trace: traffic; None only beside counters.
        options: what else is asked for.
        counters: of an engine, whose steps count instead of the trace.
        running: the engine that they are taken to be of; None: that of the configuration.

    Raises:
        NoriaError: in one line: a file, an option or the traffic does not fit.
    """
    engine = engine_without_weights(config)
    limits = engine.limits
    _check_must_have(options.must_have, limits)
    costs, shape, note = planned_costs(
        config, path=options.costs, fitted=options.fitted, device=options.device
    )
    notes = [note]
    num_blocks = _num_blocks(config, shape)
    steps: Steps | None
    if counters is not None:
        asked = running or engine
        trace, steps = counters.requests, _counted(counters, asked)
        notes += [COUNTED, *counted_notes(counters, asked)]
    else:
        assert trace is not None
        trace = _fitting(trace, limits, num_blocks, options)
        steps = None if is_single_requests(trace) else steps_of_lengths(trace, limits)
        notes += [] if steps is None else [LENGTHS_ONLY]
    problem = Problem(
        trace=trace,
        limits=limits,
        costs=costs.steps,
        fees=costs.fees,
        budget=options.budget,
        settings=_settings(config, options, limits),
        num_blocks=num_blocks,
        steps=steps,
    )
    return PlanTask(problem, costs, tuple(notes), engine)


def _settings(config: Config, options: PlanOptions, limits: PlanLimits) -> PlanSettings:
    return PlanSettings(
        policy=options.policy,
        prefix=options.prefix or CONTEXT_READS[config.backend].prefix,
        decode_shape=options.decode_shape,
        granularity=granularity(limits),
        must_have=options.must_have,
        max_ratio=options.max_ratio,
        search_s=options.search_s,
        prove_s=options.prove_s,
    )


def _counted(counters: Counters, asked: CountedEngine) -> Steps:
    try:
        return counted_steps(counters, asked)
    except ValueError as error:
        raise NoriaError(f"--trace: {error}") from None


def is_single_requests(trace: Trace) -> bool:
    """Tell whether the steps of a trace can be simulated."""
    return trace.output_lens is not None and (
        trace.weights is None or bool((trace.weights == 1).all())
    )


def granularity(limits: PlanLimits) -> int:
    """Return what prefill sizes are multiples of: the target's tile, or 16 rows."""
    return limits.prefill_tile if limits.prefill_tile > 1 else GRANULARITY


def _check_must_have(sizes: tuple[int, ...], limits: PlanLimits) -> None:
    unit, most = granularity(limits), limits.max_prefill_tokens
    for size in sizes:
        if not 0 < size <= most or (size % limits.prefill_tile and size != most):
            multiple = f" in multiples of {unit}" if limits.prefill_tile > 1 else ""
            raise ConfigError(f"--must-have: {size}; must be a size up to {most}{multiple}")


def _num_blocks(config: Config, shape: ModelShape) -> int | None:
    """Return the blocks of the KV cache; None where there never are too few.

    Layers with a window have blocks of their own, which the simulation does not follow.
    """
    if config.num_blocks != "auto":
        return config.num_blocks
    if config.kv_cache_memory_bytes is None:
        return None
    if shape.windows:
        return None
    block_bytes = shape.kv_token_bytes * config.block_size
    in_memory = int(config.kv_cache_memory_bytes // block_bytes)
    wanted = config.max_num_seqs * -(-config.max_model_len // config.block_size) + 1
    return in_memory if in_memory < wanted else None


def _fitting(
    trace: Trace, limits: PlanLimits, num_blocks: int | None, options: PlanOptions
) -> Trace:
    """Return the requests that an engine would run, with warnings about all others.

    Raises:
        NoriaError: there are none.
    """
    try:
        return _fitting_blocks(
            _fitting_length(trace, limits, options), limits.block_size, num_blocks
        )
    except TraceError as error:
        raise NoriaError(str(error)) from None


def _fitting_length(trace: Trace, limits: PlanLimits, options: PlanOptions) -> Trace:
    first = trace if options.head is None else head(trace, options.head)
    if options.scale:
        first = scale(first, limits.max_model_len)
    return fit_to_limits(first, limits.max_model_len)


def _fitting_blocks(fitting: Trace, block_size: int, num_blocks: int | None) -> Trace:
    if num_blocks is None or fitting.output_lens is None:
        return fitting
    blocks = -(-(fitting.prompt_lens + fitting.output_lens) // block_size)
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
