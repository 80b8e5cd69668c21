"""Where the time of a step goes: each operator of its graph, and the host's work around it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Protocol, runtime_checkable

from ...bucketing import Bucket, DecodeBucket
from ...kernels.contract import num_blocks_for
from ..block_table import BlockTable
from ..config import load_config
from ..errors import ConfigError
from ..graphs import CompiledGraph
from ..llm import LLM
from ..model_inputs import fill_step
from ..process_limits import usable_cpus
from ..sampling_params import SamplingParams
from ..sampling_state import SamplerRow
from ..scheduler_output import Phase, ScheduledRequest, SchedulerOutput
from .machine import Machine, measure_machine

PROMPT_LEN, NEW_TOKENS = 64, 33
NUM_ROUNDS, NUM_PROFILES = 3, 9
PARAMS = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True)


class TimedCommand(Protocol):
    """One command of a graph that a target has timed."""

    operator: str
    flop: int
    num_bytes: int
    seconds: float


@runtime_checkable
class Profiled(Protocol):
    """A compiled graph of a target that can time its commands."""

    def profile(self) -> Sequence[TimedCommand]:
        """Run once and time each command."""


@dataclass(frozen=True, slots=True)
class OperatorTime:
    """All commands of one operator in one step: their number, work and seconds."""

    operator: str
    count: int
    flop: int
    num_bytes: int
    seconds: float

    def roof_seconds(self, *, flop_s: float, read_bytes_s: float) -> float:
        """Return the least time: at the peak of products, or of reading memory."""
        return max(self.flop / flop_s, self.num_bytes / read_bytes_s)


@dataclass(frozen=True, slots=True)
class StepProfile:
    """One bucket's step.

    Attributes:
        label: the bucket's.
        operators: of the graph, longest first.
        host: seconds of inputs, sampling and scheduling, each measured by itself.
        seconds: of whole steps of an engine, the median.
    """

    label: str
    operators: tuple[OperatorTime, ...]
    host: Mapping[str, float]
    seconds: float

    @property
    def accounted(self) -> float:
        """Sum of all parts over the whole; near 1 unless the machine was disturbed."""
        parts = sum(operator.seconds for operator in self.operators) + sum(self.host.values())
        return parts / self.seconds


def sum_by_operator(runs: Sequence[Sequence[TimedCommand]]) -> tuple[OperatorTime, ...]:
    """Take the median over runs of each command, then add up each operator's commands."""
    sums: dict[str, OperatorTime] = {}
    for commands in zip(*runs, strict=True):
        first, name = commands[0], commands[0].operator
        seconds = median(command.seconds for command in commands)
        old = sums.get(name, OperatorTime(name, 0, 0, 0, 0.0))
        sums[name] = OperatorTime(
            name,
            old.count + 1,
            old.flop + first.flop,
            old.num_bytes + first.num_bytes,
            old.seconds + seconds,
        )
    return tuple(sorted(sums.values(), key=lambda operator: -operator.seconds))


def bench_step(
    config: str | Path, *, num_threads: int | None = None
) -> tuple[Machine, list[StepProfile]]:
    """Profile every decode bucket, and the prefill buckets that full batches of prompts take.

    Args:
        config: a configuration file.
        num_threads: threads of the engine; None: the configuration's, or else all CPUs.

    Raises:
        NoriaError: the configuration does not fit, or its backend cannot time commands.
    """
    import torch

    settings = load_config(config)
    num_threads = num_threads or settings.num_threads or usable_cpus()
    machine = measure_machine([settings.dtype], num_threads)
    llm = LLM(settings)
    llm.wait_for_graphs()
    torch.set_num_threads(num_threads)
    steps = _Steps(llm)
    for bucket in llm.loaded.plan.decode:
        steps.measure(bucket.num_seqs)
    return machine, [steps.profile(bucket) for bucket in steps.buckets]


class _Steps:
    """Steps of an engine, timed by bucket, and profiles of the same buckets' graphs."""

    def __init__(self, llm: LLM) -> None:
        self._llm = llm
        self._loaded = llm.loaded
        self._times: dict[Bucket, list[tuple[float, float]]] = {}
        graph = next(iter(self._loaded.graphs.models.values()))
        if not isinstance(graph.run, Profiled):
            raise ConfigError(f"backend: {llm.config.backend} cannot time its commands")

    @property
    def buckets(self) -> list[Bucket]:
        """The decode buckets that ran, and the largest prefill bucket that did."""
        decode = [bucket for bucket in self._times if isinstance(bucket, DecodeBucket)]
        prefill = [bucket for bucket in self._times if bucket.phase == "prefill"]
        largest = sorted(prefill, key=lambda bucket: bucket.num_rows)[-1:]
        return [*sorted(decode), *largest]

    def measure(self, num_seqs: int) -> None:
        """Generate with so many prompts at once; keep seconds of steps and of their execution."""
        engine, runner = self._loaded.engine, self._loaded.runner
        for _ in range(NUM_ROUNDS):
            for index in range(num_seqs):
                engine.submit(self._prompt(index), PARAMS)
            while engine.has_unfinished:
                before, start = dict(runner.counters.seconds_by_bucket), time.perf_counter()
                engine.step()
                seconds = time.perf_counter() - start
                for bucket, total in runner.counters.seconds_by_bucket.items():
                    executed = total - before.get(bucket, 0.0)
                    if executed:
                        self._times.setdefault(bucket, []).append((seconds, executed))

    def profile(self, bucket: Bucket) -> StepProfile:
        """Profile a bucket's graph and time the host's part."""
        graphs, layout = self._loaded.graphs, self._loaded.graphs.layout
        graph, output = graphs.models[bucket], self._step(bucket)
        samplings = [request.sampling for request in output.requests]
        times = self._times[bucket]
        host = {
            "inputs": _seconds(lambda: fill_step(graph.arrays, output, graph.spec, layout)),
            "sampling": _seconds(lambda: graphs.sample(graph, samplings)),
            "scheduling": median(step - executed for step, executed in times),
        }
        operators = sum_by_operator([_profile(graph) for _ in range(NUM_PROFILES)])
        return StepProfile(bucket.label, operators, host, median(step for step, _ in times))

    def _prompt(self, index: int) -> list[int]:
        vocab_size = self._loaded.source.architecture.vocab_size
        return [(7 * index + 13 * token + 1) % vocab_size for token in range(self._prompt_len)]

    @property
    def _prompt_len(self) -> int:
        config = self._llm.config
        return min(PROMPT_LEN, config.max_model_len - NEW_TOKENS, config.max_num_batched_tokens)

    def _step(self, bucket: Bucket) -> SchedulerOutput:
        """Return a full step like those that were timed, in the middle of generation."""
        length, config = self._prompt_len, self._llm.config
        if isinstance(bucket, DecodeBucket):
            context, new, count = length + NEW_TOKENS // 2, 1, bucket.num_seqs
        else:
            context, new = 0, length
            count = min(config.max_num_prefill_seqs, bucket.num_tokens // length)
        per_request = num_blocks_for(context + new, config.block_size)
        requests = []
        for index in range(count):
            first = 1 + index * per_request
            requests.append(
                ScheduledRequest(
                    request_id=str(index),
                    token_ids=self._prompt(index)[:new],
                    num_computed_tokens=context,
                    block_tables=(BlockTable(0, tuple(range(first, first + per_request))),),
                    sampling=SamplerRow(PARAMS, seed=0, position=context + new),
                )
            )
        return SchedulerOutput(Phase(bucket.phase), tuple(requests))


def _profile(graph: CompiledGraph) -> Sequence[TimedCommand]:
    assert isinstance(graph.run, Profiled)
    return graph.run.profile()


def _seconds(work: Callable[[], object]) -> float:
    times = []
    for _ in range(NUM_PROFILES):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return median(times)


def profile_lines(
    profile: StepProfile, *, flop_s: float, read_bytes_s: float
) -> Iterable[tuple[str, ...]]:
    """Return rows of cells: part, count, ms, share of the step, GFLOP/s, GB/s, share of roof."""
    for operator in profile.operators:
        seconds = max(operator.seconds, 1e-9)
        roof = operator.roof_seconds(flop_s=flop_s, read_bytes_s=read_bytes_s)
        yield (
            operator.operator,
            str(operator.count),
            f"{1e3 * seconds:.3f}",
            f"{seconds / profile.seconds:.1%}",
            f"{operator.flop / seconds / 1e9:.1f}" if operator.flop else "-",
            f"{operator.num_bytes / seconds / 1e9:.1f}",
            f"{roof / seconds:.0%}",
        )
    for part, seconds in profile.host.items():
        share = f"{seconds / profile.seconds:.1%}"
        yield f"host: {part}", "1", f"{1e3 * seconds:.3f}", share, "-", "-", "-"
    total = f"{1e3 * profile.seconds:.3f}"
    yield "whole step", "", total, f"{profile.accounted:.1%}", "", "", ""
