"""First run of every graph, which is also the check of batch invariance.

One probe request runs in every bucket, as often as the bucket holds requests. If all logits of the
probe are the same bits, a request's tokens cannot depend on which bucket or batch it ran in.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor

from ..bucketing import Bucket
from .errors import ModelError
from .graphs import CompiledGraph, CompiledGraphs
from .kv_cache import KVCache
from .probe import Probe, ProbeBlocks

LOG = logging.getLogger(__name__)
TIE_BOUNDS = {torch.float64: 1e-10, torch.float32: 1e-4, torch.bfloat16: 3e-2}
"""Without invariance: gap of the two largest logits, as a share of the largest, above which
tokens are still equal in every graph."""


@dataclass(frozen=True, slots=True)
class InvarianceReport:
    """Whether the probe's logits had the same bits in every row of every graph.

    ``differing`` names the graphs whose logits differ from those of the first one;
    ``tie_bound`` is what can be promised then, see TIE_BOUNDS. ``refused`` names those that differ
    too, and are not used.
    """

    num_graphs: int
    differing: tuple[str, ...]
    tie_bound: float
    refused: tuple[str, ...] = ()

    @property
    def is_invariant(self) -> bool:
        """Whether no graph differs."""
        return not self.differing

    def __str__(self) -> str:
        """Say what was found, and what a request is promised."""
        if self.is_invariant:
            text = (
                f"batch invariance: yes, the probe's logits are the same bits in all "
                f"{self.num_graphs} graphs"
            )
            others = f"; not used, for other bits: {', '.join(self.refused)}"
            return text + (others if self.refused else "")
        return (
            f"batch invariance: no, the probe's logits differ in {len(self.differing)} of "
            f"{self.num_graphs} graphs ({', '.join(self.differing)}); a request gets the same "
            f"tokens in any batch only where its two largest logits differ by more than "
            f"{self.tie_bound:g} of the largest"
        )


class WarmUp:
    """Runs graphs on the probe, as far as its rows need, and compares its logits bit by bit.

    Attributes:
        refused: buckets whose graphs are not used, because their bits are others.
    """

    def __init__(
        self,
        graphs: CompiledGraphs,
        cache: KVCache,
        buckets: Collection[Bucket],
        *,
        vocab_size: int,
        dtype: torch.dtype,
    ) -> None:
        """Run nothing yet.

        Args:
            graphs: to run; the first of them is a prefill, which writes what others read.
            cache: that they run over.
            buckets: of all graphs that there are ever to be.
            vocab_size: of the model.
            dtype: of the model.
        """
        self._graphs = graphs
        self._cache = cache
        self._dtype = dtype
        self._probe = Probe(cache.groups, buckets, vocab_size)
        self._expected: Tensor | None = None
        self._agrees: dict[Bucket, bool] = {}
        self.refused: list[Bucket] = []

    @property
    def report(self) -> InvarianceReport:
        """What was found in the graphs that were run, and are used."""
        differing = tuple(bucket.label for bucket, agrees in self._agrees.items() if not agrees)
        refused = tuple(bucket.label for bucket in self.refused)
        return InvarianceReport(len(self._agrees), differing, TIE_BOUNDS[self._dtype], refused)

    @property
    def num_blocks(self) -> tuple[int, ...]:
        """Blocks that the probe takes, of each KV group."""
        return self._probe.num_blocks

    def run(self) -> None:
        """Run all graphs that have not run yet, before serving; leave the cache as it was.

        Raises:
            ModelError: the probe's logits are not finite.
        """
        blocks = [range(1, 1 + num) for num in self.num_blocks]
        if self._expected is not None:
            self._write_context(blocks)  # else the first graph does
        for bucket, graph in self._graphs.models.items():
            if bucket not in self._agrees:
                self._agrees[bucket] = self._check(graph, blocks)
        for sampler in self._graphs.samplers:
            sampler.run()
        self._graphs.copier.warm_up()
        self._cache.clear_blocks(blocks)

    def admits(self, graph: CompiledGraph, blocks: ProbeBlocks) -> bool:
        """Run one more graph on blocks that are free; tell whether its logits are the expected.

        Args:
            graph: with the samplers that it needs.
            blocks: per KV group, ``num_blocks`` of them; zero afterwards.
        """
        self._write_context(blocks)
        agrees = self._check(graph, blocks)
        for sampler in self._graphs.readers(graph):
            sampler.run()
        self._cache.clear_blocks(blocks)
        if agrees:
            self._agrees[graph.bucket] = True
        return agrees

    def refuse_others(self, trusted: Collection[Bucket]) -> None:
        """Refuse the graphs that differ, if none of the ``trusted`` ones does."""
        differing = [bucket for bucket, agrees in self._agrees.items() if not agrees]
        if not set(differing) & set(trusted):
            for bucket in differing:
                self.refuse(bucket)

    def refuse(self, bucket: Bucket) -> None:
        """Use the graph of a bucket no more, which has other bits than the first one."""
        self._graphs.drop(bucket)
        self._agrees.pop(bucket, None)
        self.refused.append(bucket)
        LOG.warning(
            "graph %s is not used: the probe's logits in it are other bits than in the first one",
            bucket.label,
        )

    def _write_context(self, blocks: ProbeBlocks) -> None:
        first = next(iter(self._graphs.models.values()))
        self._probe.run(first, self._graphs.layout, blocks)

    def _check(self, graph: CompiledGraph, blocks: ProbeBlocks) -> bool:
        """Tell whether a graph gives the logits that the first one gave."""
        logits_RV = self._probe.run(graph, self._graphs.layout, blocks)
        if self._expected is None:
            self._expected = logits_RV[0].clone()
            _check_finite(self._expected)
        return all(torch.equal(logits_V, self._expected) for logits_V in logits_RV)


def _check_finite(logits_V: Tensor) -> None:
    if not logits_V.isfinite().all():
        raise ModelError(
            "the model's logits are not finite numbers: its weights hold NaN or infinite values, "
            "or are beyond the range of dtype"
        )
