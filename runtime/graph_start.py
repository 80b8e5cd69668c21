"""Which graphs there are when an engine begins to serve, and how they are made."""

from __future__ import annotations

from ..bucketing import Bucket, BucketPlan
from .arrivals import Arrivals, GraphArrivals, NoArrivals
from .compiled_set.background import BackgroundCompiler
from .compiled_set.local_set import LocalSet
from .compiled_set.set_source import FromLocalSet
from .compiled_set.tracing import Recipe
from .compiled_set.worker_count import WORKER_BYTES
from .errors import SetError
from .graph_source import GraphSource
from .graphs import CompiledGraphs, Progress
from .model_runner import ModelRunner
from .process_limits import free_memory_bytes
from .warmup import WarmUp

NUM_SHOWN = 5
"""Missing graphs that an error names."""
WORKER_START_S = 3.0
"""What a worker takes before it compiles its first graph."""
REMEDY = "noria compile CONFIG, without -o, fills it"


class GraphStart:
    """All graphs are there, whatever compiles or loads them.

    Attributes:
        source: gives them.
        local_set: where what is compiled is kept; None if it is not.
    """

    local_set: LocalSet | None = None

    def __init__(self, source: GraphSource) -> None:
        """Take graphs from this source."""
        self.source = source

    def compile(
        self, graphs: CompiledGraphs, plan: BucketPlan, warm_up: WarmUp, progress: Progress
    ) -> None:
        """Make the graphs of a plan with which serving begins.

        Args:
            graphs: has none yet.
            plan: of all graphs.
            warm_up: of these graphs; may be run before this ends.
            progress: is told of every graph.

        Raises:
            BackendError: a graph does not compile.
            SetError: one is missing, and nothing may be compiled.
        """
        graphs.compile(plan, progress)

    def arrivals(
        self, plan: BucketPlan, *, graphs: CompiledGraphs, warm_up: WarmUp, runner: ModelRunner
    ) -> Arrivals:
        """Return what brings the graphs of the plan that are not there."""
        return NoArrivals()


class FinishedStart(GraphStart):
    """All graphs are in a local set already: nothing may be compiled."""

    def __init__(self, source: FromLocalSet) -> None:
        """Take graphs from this set, and compile none."""
        super().__init__(source)
        self._from_set = source
        source.may_compile = False

    def compile(
        self, graphs: CompiledGraphs, plan: BucketPlan, warm_up: WarmUp, progress: Progress
    ) -> None:
        """Load the graphs of a plan.

        Raises:
            SetError: some are missing or damaged; names the folder and the first of them.
        """
        listed = [graphs.copy_listing(plan), *(graphs.listing(one, plan) for one in plan.buckets)]
        missing = {name: None for one in listed for name in self._from_set.lacking(one)}
        if missing:
            names = ", ".join(list(missing)[:NUM_SHOWN])
            more = len(missing) - NUM_SHOWN
            names += f" and {more} more" if more > 0 else ""
            path = self._from_set.store.path
            raise SetError(f"{path} lacks {names}; nothing may be compiled: {REMEDY}")
        super().compile(graphs, plan, warm_up, progress)


class FillingStart(GraphStart):
    """What the local set lacks is compiled, and kept there: here, or by workers while others serve.

    Serving begins with the limit graphs, and what the set has, where compiling the others here
    would take longer than a worker takes to start, and where it cannot be seen in a request's
    tokens which graphs there are: under batch invariance.
    """

    def __init__(self, source: FromLocalSet, local_set: LocalSet, recipe: Recipe) -> None:
        """Take graphs from this set; workers compile by the recipe."""
        super().__init__(source)
        self.local_set: LocalSet = local_set
        self._from_set = source
        self._recipe = recipe

    def compile(
        self, graphs: CompiledGraphs, plan: BucketPlan, warm_up: WarmUp, progress: Progress
    ) -> None:
        """Make the graphs with which serving begins; afterwards nothing compiles here.

        Raises:
            BackendError: one does not compile.
        """
        lacking = [one for one in plan.buckets if self._lacks(graphs, plan, one)]
        later = [bucket for bucket in lacking if bucket not in plan.limits]
        graphs.begin(plan)
        graphs.add_all([bucket for bucket in plan.buckets if bucket not in later], progress)
        if later:
            warm_up.run()
            if not warm_up.report.is_invariant or not self._is_long(graphs, plan, len(later)):
                graphs.add_all(later, progress)
        progress("done", len(graphs.models), len(graphs.models))
        self._from_set.may_compile = False

    def arrivals(
        self, plan: BucketPlan, *, graphs: CompiledGraphs, warm_up: WarmUp, runner: ModelRunner
    ) -> Arrivals:
        """Return what brings the graphs that workers compile."""
        later = [bucket for bucket in plan.buckets if bucket not in graphs.models]
        if not later:
            return NoArrivals()
        self._from_set.leave_to_others(
            {name: key for one in later for name, key in graphs.listing(one, plan).items()}
        )
        compiling = BackgroundCompiler(self.local_set, self._recipe)
        return GraphArrivals(plan, compiling, graphs=graphs, warm_up=warm_up, runner=runner)

    def _lacks(self, graphs: CompiledGraphs, plan: BucketPlan, bucket: Bucket) -> bool:
        return bool(self._from_set.lacking(graphs.listing(bucket, plan)))

    def _is_long(self, graphs: CompiledGraphs, plan: BucketPlan, num_later: int) -> bool:
        """Tell whether so many graphs, each like a limit graph, are worth a worker's start."""
        if free_memory_bytes() < WORKER_BYTES:
            return False
        names = {name for bucket in plan.limits for name in graphs.listing(bucket, plan)}
        listed = self.local_set.manifest.graphs
        seconds = sum(listed[name].seconds for name in names if name in listed)
        return num_later * seconds / len(plan.limits) > WORKER_START_S
