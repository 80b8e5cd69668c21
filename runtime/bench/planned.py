"""``noria bench plan``: the padding that a planned engine runs, beside what its plan expects.

All requests wait at the start, in the order of the trace: then the steps depend on lengths alone,
and the planner's simulation runs the very ones. The same requests also run with powers of two,
which must give the same tokens.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...bucketing import PlanFile, PlanFileError
from ...bucketing.costs.devices import CPU_FEES
from ...bucketing.planner.evaluation import PhaseUse
from ...bucketing.planner.problem import Problem, expectation
from ...bucketing.planner.saved_problem import saved_problem
from ...bucketing.traces.selection import fit_to_limits, head, scale
from ...bucketing.traces.trace import Trace, TraceError
from ..config import Config, parse_config
from ..errors import ConfigError, NoriaError
from ..llm import LLM
from ..plan_setting import BUCKET_LISTS
from ..sampling_params import SamplingParams
from .planned_report import PHASES, EngineRun, PhaseWork, PlannedReport
from .row_costs import RowCosts

NUM_REQUESTS = 256
BASELINE = "powers_of_two"
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedOptions:
    """What may be asked for.

    Attributes:
        num_requests: the first ones of the trace.
        scale: scale all lengths of the trace until its longest request fits.
        seed: other seeds draw other prompts.
        compare: run with powers of two, too.
    """

    num_requests: int = NUM_REQUESTS
    scale: bool = False
    seed: int = 0
    compare: bool = True


def run_planned(
    config: Config, trace: Trace, options: PlannedOptions, progress: Progress
) -> PlannedReport:
    """Run the first requests of a trace with a plan, and once more with powers of two.

    Raises:
        NoriaError: the configuration names no plan, or the trace cannot be run.
    """
    plan = config.buckets
    if not isinstance(plan, PlanFile):
        fits = "noria plan CONFIG --trace FILE -o plan.yaml makes one"
        raise ConfigError(f"buckets: is {plan}, which is no plan; {fits}")
    traffic = _traffic(trace, config, options)
    planned, num_blocks = _run(config, traffic, options.seed, progress, name="the plan")
    baseline = None
    if options.compare:
        baseline, _ = _run(_baseline(config), traffic, options.seed, progress, name=BASELINE)
    return PlannedReport(
        num_requests=len(traffic.prompt_lens),
        num_prompt_tokens=int(traffic.prompt_lens.sum()),
        expected=_expected(plan, traffic, num_blocks),
        planned=planned,
        baseline=baseline,
        warnings=traffic.warnings,
    )


def _traffic(trace: Trace, config: Config, options: PlannedOptions) -> Trace:
    """Return the requests that run, all of which wait from the start."""
    if trace.output_lens is None:
        raise NoriaError("the trace has no output lengths, so nobody knows when requests end")
    if trace.weights is not None and (trace.weights != 1).any():
        raise NoriaError("the trace is a histogram of lengths; single requests are needed")
    try:
        whole = scale(trace, config.max_model_len) if options.scale else trace
        first = head(fit_to_limits(whole, config.max_model_len), options.num_requests)
    except TraceError as error:
        raise NoriaError(str(error)) from None
    return replace(first, arrivals_s=None, prefix_lens=None)


def _baseline(config: Config) -> Config:
    settings = config.to_mapping() | dict.fromkeys(BUCKET_LISTS)
    return parse_config(settings | {"buckets": BASELINE, "compiled": None})


def _run(
    config: Config, traffic: Trace, seed: int, progress: Progress, *, name: str
) -> tuple[EngineRun, int | None]:
    """Run all requests on an engine of their own; return its blocks, too, if one pool holds all."""

    def load(what: str, num_done: int, total: int) -> None:
        progress(f"{name}: {what}", num_done, total)

    with LLM(config, progress=load) as llm:
        llm.wait_for_graphs()
        prompts = _prompts(traffic, llm.loaded.source.architecture.vocab_size, seed)
        start = time.perf_counter()
        token_ids = _generate(llm, prompts, traffic, lambda done: load("run", done, len(prompts)))
        run = EngineRun(
            buckets=name,
            num_graphs=len(llm.loaded.graphs.models),
            seconds=time.perf_counter() - start,
            phases={phase: _measured(llm, phase) for phase in PHASES},
            token_ids=token_ids,
        )
        groups = llm.loaded.cache.groups
        is_plain = len(groups) == 1 and groups[0].window is None
        return run, groups[0].num_blocks if is_plain else None


def _generate(
    llm: LLM, prompts: Sequence[list[int]], traffic: Trace, done: Callable[[int], None]
) -> tuple[tuple[int, ...], ...]:
    """Return the tokens of every request, each as many as in the trace."""
    assert traffic.output_lens is not None
    params = [
        SamplingParams(temperature=0, max_tokens=int(length), ignore_eos=True)
        for length in traffic.output_lens
    ]
    found: dict[int, tuple[int, ...]] = {}
    for index, output in llm.iterate(prompts, params):
        if output.error is not None:
            raise NoriaError(f"request {index + 1} of the trace: {output.error}")
        found[index] = output.token_ids
        done(len(found))
    return tuple(found[index] for index in range(len(prompts)))


def _prompts(traffic: Trace, vocab_size: int, seed: int) -> list[list[int]]:
    draws = np.random.default_rng(seed)
    return [draws.integers(vocab_size, size=length).tolist() for length in traffic.prompt_lens]


def _measured(llm: LLM, phase: str) -> PhaseWork:
    graphs = llm.loaded.runner.counters.graphs
    ran = [counts for bucket, counts in graphs.items() if bucket.phase == phase]
    return PhaseWork(
        num_steps=sum(one.num_steps for one in ran),
        real_tokens=sum(one.real_tokens for one in ran),
        padded_tokens=sum(one.padded_tokens for one in ran),
        seconds=sum(one.seconds for one in ran),
    )


def _expected(plan: PlanFile, traffic: Trace, num_blocks: int | None) -> dict[str, PhaseWork]:
    """Return what the planner expects of these requests; seconds only where the plan has costs."""
    is_timed = True
    try:
        problem = replace(saved_problem(plan), trace=traffic, steps=None, num_blocks=num_blocks)
    except PlanFileError:  # written by hand
        problem = Problem(traffic, plan.limits, RowCosts(), CPU_FEES, num_blocks=num_blocks)
        is_timed = False
    found = expectation(problem, plan)
    return {
        "prefill": _phase_work(found.prefill, is_timed=is_timed),
        "decode": _phase_work(found.decode, is_timed=is_timed),
    }


def _phase_work(use: PhaseUse, *, is_timed: bool) -> PhaseWork:
    return PhaseWork(
        num_steps=round(sum(graph.num_steps for graph in use.graphs)),
        real_tokens=round(use.num_tokens),
        padded_tokens=round(use.num_padded_tokens),
        seconds=use.seconds if is_timed else None,
    )
