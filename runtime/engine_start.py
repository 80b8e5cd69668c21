"""How an engine comes to its graphs: where they are from, and which there are when it serves.

They come from a set that the configuration names, from the local set, or from the compiler.
"""

from __future__ import annotations

from pathlib import Path

from ..bucketing import Bucket
from ..kernels.contract import KVGroup
from ..kernels.kernel_set import KernelSet
from .arrivals import Arrivals, GraphArrivals, NoArrivals
from .compiled_set.background import BackgroundCompiler
from .compiled_set.description import description
from .compiled_set.folder import SetFolder
from .compiled_set.identity import set_identity, set_key
from .compiled_set.key import Key, key_digest
from .compiled_set.local_cache import sets_folder
from .compiled_set.local_set import LocalSet
from .compiled_set.native_library import LIBRARY
from .compiled_set.set_source import FromLocalSet, choose_source
from .compiled_set.tracing import Recipe
from .compiled_set.worker_count import WORKER_BYTES
from .config import Config
from .errors import SetError
from .graph_source import CompileHere, GraphSource
from .graphs import CompiledGraphs, Progress
from .model_runner import ModelRunner
from .models.architecture import Architecture
from .models.kv_scales import KVScales
from .process_limits import free_memory_bytes
from .warmup import WarmUp

NUM_SHOWN = 5
"""Missing graphs that an error names."""
WORKER_START_S = 3.0
"""What a worker takes before it compiles its first graph."""
REMEDY = "noria compile CONFIG, without -o, fills it"


def choose_start(
    config: Config,
    architecture: Architecture,
    kernels: KernelSet,
    *,
    groups: tuple[KVGroup, ...],
    kv_scales: tuple[KVScales, ...] | None,
    folder: SetFolder | None,
) -> EngineStart:
    """Return where an engine's graphs come from, and which there are when it begins to serve.

    Without ``folder``, the set that the configuration names, they come from the local set, where
    there are local sets and these kernels make what can be kept.

    Raises:
        SetError: nothing may be compiled, and there is no set for this engine.
    """
    identity = set_identity(
        config, kernels, architecture=architecture, groups=groups, kv_scales=kv_scales
    )
    key = set_key(identity, kernels)
    may_compile = config.compile == "auto"
    if folder is not None:
        return EngineStart(choose_source(folder, key, kernels, may_compile=may_compile))
    root = sets_folder()
    if not may_compile:
        return FinishedStart(FromLocalSet(_finished_set(root, key, kernels), kernels))
    if root is None or not kernels.makes_traces:
        return EngineStart(CompileHere(kernels))
    # A set whose graphs are for any number of blocks lists none.
    num_blocks = [group.num_blocks for group in groups if kernels.fixes_num_blocks]
    store = LocalSet(root / key_digest(key), key=key, num_blocks=num_blocks)
    for path, data in description(config, kernels).items():
        store.keep_file(path, data)
    if kernels.library is not None:
        store.keep_file(LIBRARY, kernels.library.read_bytes())
    recipe = Recipe(config, architecture, kv_scales, tuple(group.num_blocks for group in groups))
    return FillingStart(FromLocalSet(store, kernels), store, recipe)


def _finished_set(root: Path | None, key: Key, kernels: KernelSet) -> SetFolder:
    """Return the local set that somebody has filled.

    Raises:
        SetError: there is none.
    """
    start = "compile is never, compiled names no set, and"
    if root is None:
        raise SetError(f"{start} there are no local sets: NORIA_SETS is empty, or there is no home")
    if not kernels.makes_traces:
        raise SetError(f"{start} backend {kernels.name} compiles nothing that a local set keeps")
    try:
        return SetFolder.open(root / key_digest(key))
    except SetError as error:
        raise SetError(f"{start} the local set is not there: {error}; {REMEDY}") from error


class EngineStart:
    """All graphs are there, whatever compiles or loads them.

    Attributes:
        source: gives them.
        local_set: where what is compiled is kept; None if it is not.
    """

    local_set: LocalSet | None = None

    def __init__(self, source: GraphSource) -> None:
        """Take graphs from this source."""
        self.source = source

    def compile(self, graphs: CompiledGraphs, warm_up: WarmUp, progress: Progress) -> None:
        """Make the graphs with which serving begins.

        Args:
            graphs: has none yet.
            warm_up: of these graphs; may be run before this ends.
            progress: is told of every graph.

        Raises:
            BackendError: a graph does not compile.
            SetError: one is missing, and nothing may be compiled.
        """
        graphs.compile(progress)

    def check(self, graphs: CompiledGraphs, warm_up: WarmUp) -> None:
        """Run once all graphs that are there and have not run yet, and compare their bits.

        Raises:
            ModelError: the probe's logits are not finite.
        """
        warm_up.run()

    def arrivals(self, graphs: CompiledGraphs, *, warm_up: WarmUp, runner: ModelRunner) -> Arrivals:
        """Return what brings the graphs of the plan that are not there."""
        return NoArrivals()


class LocalStart(EngineStart):
    """Graphs come from a local set; one of other bits than the limit graphs is not used.

    Whether it arrives while others serve, is compiled before, or is there from an earlier start:
    the next start behaves the same. Where the limit graphs differ among themselves, all are used.
    """

    def __init__(self, source: FromLocalSet) -> None:
        """Take graphs from this set."""
        super().__init__(source)
        self._from_set = source

    def check(self, graphs: CompiledGraphs, warm_up: WarmUp) -> None:
        """Run them, and refuse those of other bits."""
        super().check(graphs, warm_up)
        warm_up.refuse_others(graphs.plan.limits)


class FinishedStart(LocalStart):
    """All graphs are in a local set already: nothing may be compiled."""

    def __init__(self, source: FromLocalSet) -> None:
        """Take graphs from this set, and compile none."""
        super().__init__(source)
        source.may_compile = False

    def compile(self, graphs: CompiledGraphs, warm_up: WarmUp, progress: Progress) -> None:
        """Load all graphs.

        Raises:
            SetError: some are missing or damaged; names the folder and the first of them.
        """
        listed = [graphs.copy_listing(), *map(graphs.listing, graphs.plan.buckets)]
        missing = {name: None for one in listed for name in self._from_set.lacking(one)}
        if missing:
            names = ", ".join(list(missing)[:NUM_SHOWN])
            more = len(missing) - NUM_SHOWN
            names += f" and {more} more" if more > 0 else ""
            path = self._from_set.store.path
            raise SetError(f"{path} lacks {names}; nothing may be compiled: {REMEDY}")
        super().compile(graphs, warm_up, progress)


class FillingStart(LocalStart):
    """What the local set lacks is compiled, and kept there: here, or by workers while others serve.

    Serving begins with the limit graphs, and what the set has, where compiling the others here
    would take longer than a worker takes to start, and where it cannot be seen in a request's
    tokens which graphs there are: under batch invariance.
    """

    def __init__(self, source: FromLocalSet, local_set: LocalSet, recipe: Recipe) -> None:
        """Take graphs from this set; workers compile by the recipe."""
        super().__init__(source)
        self.local_set: LocalSet = local_set
        self._recipe = recipe

    def compile(self, graphs: CompiledGraphs, warm_up: WarmUp, progress: Progress) -> None:
        """Make the graphs with which serving begins; afterwards nothing compiles here.

        Raises:
            BackendError: one does not compile.
        """
        plan = graphs.plan
        lacking = [one for one in plan.buckets if self._from_set.lacking(graphs.listing(one))]
        later = [bucket for bucket in lacking if bucket not in plan.limits]
        graphs.add_all([bucket for bucket in plan.buckets if bucket not in later], progress)
        if later:
            self.check(graphs, warm_up)
            if not warm_up.report.is_invariant or not self._is_long(graphs, later):
                graphs.add_all(later, progress)
        progress("done", len(graphs.models), len(graphs.models))
        self._from_set.may_compile = False

    def arrivals(self, graphs: CompiledGraphs, *, warm_up: WarmUp, runner: ModelRunner) -> Arrivals:
        """Return what brings the graphs that workers compile."""
        there = {*graphs.models, *warm_up.refused}
        later = [bucket for bucket in graphs.plan.buckets if bucket not in there]
        if not later:
            return NoArrivals()
        self._from_set.leave_to_others(
            {name: key for one in later for name, key in graphs.listing(one).items()}
        )
        compiling = BackgroundCompiler(self.local_set, self._recipe)
        return GraphArrivals(later, compiling, graphs=graphs, warm_up=warm_up, runner=runner)

    def _is_long(self, graphs: CompiledGraphs, later: list[Bucket]) -> bool:
        """Tell whether so many graphs, each like a limit graph, are worth a worker's start."""
        if free_memory_bytes() < WORKER_BYTES:
            return False
        limits = graphs.plan.limits
        names = {name for bucket in limits for name in graphs.listing(bucket)}
        listed = self.local_set.manifest.graphs
        seconds = sum(listed[name].seconds for name in names if name in listed)
        return len(later) * seconds / len(limits) > WORKER_START_S
