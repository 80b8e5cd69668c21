"""Which graphs there are when an engine begins to serve, and how they are made."""

from __future__ import annotations

from ..bucketing import BucketPlan
from .compiled_set.local_set import LocalSet
from .compiled_set.set_source import FromLocalSet
from .errors import SetError
from .graph_source import GraphSource
from .graphs import CompiledGraphs, Progress

NUM_SHOWN = 5
"""Missing graphs that an error names."""
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

    def compile(self, graphs: CompiledGraphs, plan: BucketPlan, progress: Progress) -> None:
        """Make the graphs of a plan.

        Raises:
            BackendError: a graph does not compile.
            SetError: one is missing, and nothing may be compiled.
        """
        graphs.compile(plan, progress)


class FinishedStart(GraphStart):
    """All graphs are in a local set already: nothing may be compiled."""

    def __init__(self, source: FromLocalSet) -> None:
        """Take graphs from this set, and compile none."""
        super().__init__(source)
        self._from_set = source
        source.may_compile = False

    def compile(self, graphs: CompiledGraphs, plan: BucketPlan, progress: Progress) -> None:
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
        super().compile(graphs, plan, progress)


class FillingStart(GraphStart):
    """What the local set lacks is compiled, and kept there."""

    def __init__(self, source: FromLocalSet, local_set: LocalSet) -> None:
        """Take graphs from this set."""
        super().__init__(source)
        self.local_set = local_set
