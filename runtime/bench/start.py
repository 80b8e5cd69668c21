"""How long an engine takes to start: cold, all graphs compiled, and warm, from a compiled set."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from ..config import Config, load_config
from ..errors import ConfigError
from ..models.locations import model_name
from ..process_limits import usable_cpus
from .machine import cpu_name
from .offline import Progress
from .peers import worker_environment
from .processes import CpuWatch
from .start_worker import StartReply, StartRequest, StepPair

COLD, WARM = "cold", "warm"
NOT_COUNTED = ("imports", "weights")
"""Parts that compiled graphs cannot change: left out of ``Start.counted``."""
TIMEOUT_S = 1800


@dataclass(frozen=True, slots=True)
class Start:
    """One start: ``COLD`` or ``WARM``, and the CPU share of others meanwhile (None: not known)."""

    kind: str
    reply: StartReply
    others_share: float | None

    @property
    def seconds(self) -> float:
        """From the start of the process until the engine is ready."""
        return sum(self.reply.seconds.values())

    @property
    def counted(self) -> float:
        """Seconds without imports, and without reading and packing weights."""
        return self.seconds - sum(self.reply.seconds.get(part, 0.0) for part in NOT_COUNTED)


@dataclass(frozen=True, slots=True)
class StartReport:
    """All starts, in order, and what was found about graphs in one that does not count.

    Attributes:
        model: what the model is called.
        cpu: what the processor calls itself.
        num_threads: of every engine.
        set_seconds: that compiling the set took.
        set_bytes: size of its graphs.
        starts: the measured ones.
        graph_bytes: memory of one model graph of the set; None: not known.
        steps: step times of graphs from the set and of graphs compiled in the same process.
    """

    model: str
    cpu: str
    num_threads: int
    set_seconds: float
    set_bytes: int
    starts: tuple[Start, ...]
    graph_bytes: float | None
    steps: tuple[StepPair, ...]

    def of_kind(self, kind: str) -> list[Start]:
        """Return the cold or the warm starts."""
        return [start for start in self.starts if start.kind == kind]

    def to_mapping(self) -> dict[str, object]:
        """Return everything as plain data, seconds and bytes unrounded."""
        return asdict(self)


def bench_start(
    path: str | Path,
    *,
    num_rounds: int = 3,
    num_threads: int | None = None,
    progress: Progress = lambda what, num_done, total: None,
) -> StartReport:
    """Compile a set, then start engines in turn without it and from it, each in a new process.

    Args:
        path: a configuration file.
        num_rounds: starts of each kind.
        num_threads: of every engine; None: the configuration's, or else all CPUs.
        progress: called with what is worked on, how many starts are done and how many there are.

    Raises:
        NoriaError: the configuration does not fit, or an engine does not start.
    """
    config = load_config(path)
    if num_rounds < 1:
        raise ConfigError(f"num_rounds is {num_rounds}; it must be at least 1")
    threads = num_threads or config.num_threads or usable_cpus()
    with tempfile.TemporaryDirectory(prefix="noria-bench-") as folder:
        settings = {**config.to_mapping(), "num_threads": threads}
        kinds = {
            COLD: {**settings, "compiled": None, "compile": "auto"},
            WARM: {**settings, "compiled": f"{folder}/set", "compile": "never"},
        }
        total = 2 * num_rounds + 1
        progress("set", 0, total)
        set_seconds, set_bytes = _compile_set(config, Path(folder) / "set")
        # The first start reads files for all others, so that it does not count.
        found = _start(WARM, kinds[WARM], threads, inspects=True).reply
        starts: list[Start] = []
        for kind in (COLD, WARM) * num_rounds:
            progress(kind, len(starts) + 1, total)
            starts.append(_start(kind, kinds[kind], threads))
        progress("done", total, total)
    return StartReport(
        model_name(config.model),
        cpu_name(),
        threads,
        set_seconds,
        set_bytes,
        tuple(starts),
        found.graph_bytes,
        found.steps,
    )


def start_lines(report: StartReport) -> list[tuple[str, ...]]:
    """Return rows of part, and of cold and warm starts the median, least and most seconds."""
    kinds = [report.of_kind(kind) for kind in (COLD, WARM)]
    parts = dict.fromkeys(part for start in report.starts for part in start.reply.seconds)
    rows = [
        (part, *_spans([[s.reply.seconds.get(part, 0.0) for s in starts] for starts in kinds]))
        for part in parts
    ]
    whole = ("all", *_spans([[s.seconds for s in starts] for starts in kinds]))
    counted = [[s.counted for s in starts] for starts in kinds]
    return [*rows, whole, (f"all but {' and '.join(NOT_COUNTED)}", *_spans(counted))]


def _spans(kinds: Sequence[Sequence[float]]) -> list[str]:
    cells = []
    for seconds in kinds:
        cells += [f"{median(seconds):.2f}", f"{min(seconds):.2f} .. {max(seconds):.2f}"]
    return cells


def _compile_set(config: Config, path: Path) -> tuple[float, int]:
    """Compile the set; return seconds and the bytes of its graphs."""
    from ..compiled_set.compiling import compile_set

    begun = time.perf_counter()
    compiled = compile_set(config, path)
    if compiled.failed:
        raise ConfigError(f"{compiled.failed[0].name} does not compile: noria compile says why")
    graphs = compiled.folder.manifest.graphs.values()
    return time.perf_counter() - begun, sum(graph.file.size for graph in graphs)


def _start(
    kind: str, settings: Mapping[str, object], num_threads: int, *, inspects: bool = False
) -> Start:
    """Start one engine in a process of its own."""
    environment = worker_environment(num_threads, sys.executable) | {"NORIA_SETS": ""}
    command = (sys.executable, "-P", "-m", f"{__package__}.start_worker")
    watch = CpuWatch(os.getpid())
    request = StartRequest(settings, time.monotonic(), inspects)
    done = subprocess.run(
        command,
        input=json.dumps(asdict(request)),
        capture_output=True,
        text=True,
        env=environment,
        timeout=TIMEOUT_S,
    )
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
        raise ConfigError(f"a {kind} start failed: {lines[-1]}")
    return Start(kind, _reply(json.loads(done.stdout)), watch.others_share())


def _reply(values: dict[str, object]) -> StartReply:
    steps = values.pop("steps")
    assert isinstance(steps, list)
    return StartReply(**values, steps=tuple(StepPair(**one) for one in steps))  # type: ignore[arg-type]
