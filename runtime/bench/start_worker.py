"""One start of an engine in a process of its own: reads a request from stdin, answers on stdout.

Both are one JSON object; see ``StartRequest`` and ``StartReply``.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from ...bucketing import Bucket
from ..compiled_set.folder import SetFolder
from ..compiled_set.set_source import FromSet
from ..config import parse_config
from ..graph_source import CompileHere
from ..graphs import CompiledGraph
from ..loading import LoadedEngine, load_engine
from .peer_worker import claim_stdout
from .processes import own_pss_bytes

NUM_COPIES = 4
"""Of each graph, that show what one takes."""
NUM_STEPS = 9


@dataclass(frozen=True, slots=True)
class StartRequest:
    """What is started.

    Attributes:
        settings: the configuration.
        begun: when the process was asked for, of the clock ``time.monotonic``.
        inspects: whether graphs are looked at, too; the settings name a compiled set then.
    """

    settings: Mapping[str, object]
    begun: float
    inspects: bool = False


@dataclass(frozen=True, slots=True)
class StepPair:
    """Seconds of one bucket's graph, loaded from a set and compiled here, in turns: the medians."""

    label: str
    loaded: float
    compiled: float


@dataclass(frozen=True, slots=True)
class StartReply:
    """How a start went.

    Attributes:
        seconds: by part, in order.
        num_compilations: graphs that were compiled in the process.
        num_graphs: of the model.
        pss_bytes: memory after the start, of what is shared the process's part; None: not known.
        graph_bytes: what one more copy of a model graph takes, on average; None: not asked.
        steps: a decode and a prefill graph; empty: not asked.
    """

    seconds: Mapping[str, float]
    num_compilations: int
    num_graphs: int
    pss_bytes: int | None
    graph_bytes: float | None = None
    steps: tuple[StepPair, ...] = ()


def start_engine(request: StartRequest) -> StartReply:
    """Start an engine in this process. Raises NoriaError."""
    imports = time.monotonic() - request.begun
    config = parse_config(request.settings)
    loaded = load_engine(config, lambda what, num_done, total: None)
    memory, graph_bytes = own_pss_bytes(), None
    steps: tuple[StepPair, ...] = ()
    if request.inspects:
        folder = SetFolder.open(Path(str(config.compiled)))
        source = FromSet(folder, loaded.model.kernels, may_compile=False)
        graph_bytes, steps = _graph_bytes(loaded, source), _steps(loaded)
    return StartReply(
        {"imports": imports, **loaded.seconds},
        loaded.graphs.num_compilations,
        len(loaded.graphs.models),
        memory,
        graph_bytes,
        steps,
    )


def _graph_bytes(loaded: LoadedEngine, source: FromSet) -> float | None:
    """Load every graph some more times and see how the memory grows."""
    before, graphs = own_pss_bytes(), loaded.graphs
    copies = [graphs.build(b, source) for _ in range(NUM_COPIES) for b in graphs.models]
    gc.collect()
    after = own_pss_bytes()
    return None if before is None or after is None else (after - before) / len(copies)


def _steps(loaded: LoadedEngine) -> tuple[StepPair, ...]:
    """Time the largest decode graph and the smallest prefill graph."""
    prefill = min(loaded.plan.prefill, key=lambda bucket: bucket.num_rows)
    return tuple(_step(loaded, bucket) for bucket in (loaded.plan.decode[-1], prefill))


def _step(loaded: LoadedEngine, bucket: Bucket) -> StepPair:
    """Run the probe of the start, which a loaded graph still holds, in it and in one from here."""
    first = loaded.graphs.models[bucket]
    second = loaded.graphs.build(bucket, CompileHere(loaded.model.kernels))
    for name, array in first.arrays.items():
        second.arrays[name][...] = array
    times = [(_seconds(first), _seconds(second)) for _ in range(NUM_STEPS)]
    return StepPair(bucket.label, median(a for a, _ in times), median(b for _, b in times))


def _seconds(graph: CompiledGraph) -> float:
    start = time.perf_counter()
    graph.run()
    return time.perf_counter() - start


if __name__ == "__main__":
    replies = claim_stdout()
    answer = start_engine(StartRequest(**json.loads(sys.stdin.read())))
    replies.write(json.dumps(asdict(answer)))
    replies.close()
