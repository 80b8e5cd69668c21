"""First run of every graph, which is also the check of batch invariance.

One probe request runs in every bucket, as often as the bucket holds requests. If all logits of the
probe are the same bits, a request's tokens cannot depend on which bucket or batch it ran in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..bucketing import Bucket, DecodeBucket, ScoreBucket, round_up
from ..kernels.contract import PAD_SLOT_ID, KVGroup, num_blocks_for
from .block_table import BlockTable
from .errors import ModelError
from .graph_spec import GraphLayout, slot_mapping_name
from .graphs import CompiledGraph, CompiledGraphs
from .kv_cache import KVCache
from .model_inputs import Int32Array, fill_step
from .scheduler_output import Phase, ScheduledRequest, SchedulerOutput

PROBE_LEN = 3
TIE_BOUNDS = {torch.float64: 1e-10, torch.float32: 1e-4, torch.bfloat16: 3e-2}
"""Without invariance: gap of the two largest logits, as a share of the largest, above which
tokens are still equal in every graph."""


@dataclass(frozen=True, slots=True)
class InvarianceReport:
    """Whether the probe's logits had the same bits in every row of every graph.

    ``differing`` names the graphs whose logits differ from those of the first one;
    ``tie_bound`` is what can be promised then, see TIE_BOUNDS.
    """

    num_graphs: int
    differing: tuple[str, ...]
    tie_bound: float

    @property
    def is_invariant(self) -> bool:
        """Whether no graph differs."""
        return not self.differing

    def __str__(self) -> str:
        """Say what was found, and what a request is promised."""
        if self.is_invariant:
            return (
                f"batch invariance: yes, the probe's logits are the same bits in all "
                f"{self.num_graphs} graphs"
            )
        return (
            f"batch invariance: no, the probe's logits differ in {len(self.differing)} of "
            f"{self.num_graphs} graphs ({', '.join(self.differing)}); a request gets the same "
            f"tokens in any batch only where its two largest logits differ by more than "
            f"{self.tie_bound:g} of the largest"
        )


def warm_up(
    graphs: CompiledGraphs, cache: KVCache, *, vocab_size: int, dtype: torch.dtype
) -> InvarianceReport:
    """Run every graph on the probe, as far as its rows need; leave the cache as it was.

    The first graph is the largest prefill: it writes the context that decode graphs read.

    Raises:
        ModelError: the probe's logits are not finite.
    """
    models = tuple(graphs.models.values())
    probe = _Probe(cache, _probe_len(models, cache), vocab_size)
    expected: Tensor | None = None
    differing = []
    for graph in models:
        for logits_V in probe.run(graph, graphs.layout):
            if expected is None:
                expected = logits_V.clone()
                _check_finite(expected)
            if not torch.equal(logits_V, expected):
                differing.append(graph.bucket.label)
                break
    for sampler in graphs.samplers:
        sampler.run()
    graphs.copier.warm_up()
    cache.clear_blocks(probe.block_ids)
    return InvarianceReport(len(models), tuple(differing), TIE_BOUNDS[dtype])


def _check_finite(logits_V: Tensor) -> None:
    if not logits_V.isfinite().all():
        raise ModelError(
            "the model's logits are not finite numbers: its weights hold NaN or infinite values, "
            "or are beyond the range of dtype"
        )


def _probe_len(models: Sequence[CompiledGraph], cache: KVCache) -> int:
    """Return the longest probe that fits every cache and every graph."""
    slots = min((group.num_blocks - 1) * group.block_size for group in cache.groups)
    contexts = min(graph.bucket.context_len for graph in models)
    rows = min(graph.bucket.num_rows for graph in models if graph.bucket.phase == "prefill")
    return min(PROBE_LEN, slots, contexts, rows)


@dataclass(frozen=True, slots=True)
class _Fit:
    """How the probe runs in a graph: how often, from which token on, and where its logits are.

    Its tokens are in the first ``num_rows`` rows.
    """

    phase: Phase
    num_requests: int
    num_rows: int
    start: int
    first_row: int
    row_step: int


class _Probe:
    """A short prompt on the first blocks of the pool, which nobody owns before serving."""

    def __init__(self, cache: KVCache, length: int, vocab_size: int) -> None:
        self.token_ids = [(7 * i + 1) % vocab_size for i in range(length)]
        self._groups = cache.groups
        most = max(num_blocks_for(length, group.block_size) for group in cache.groups)
        self.block_ids = tuple(range(1, 1 + most))

    def run(self, graph: CompiledGraph, layout: GraphLayout) -> Tensor:
        """Run the probe in as many rows as fit; return its logits ``[rows, V]``."""
        fit = self._fit(graph.bucket, layout)
        output = SchedulerOutput(fit.phase, (self._request(fit.start),) * fit.num_requests)
        fill_step(graph.arrays, output, graph.spec, layout)
        for group in range(len(self._groups)):
            _write_once(graph.arrays[slot_mapping_name(group)])
        graph.run_rows(fit.num_rows)
        return graph.logits_RV[fit.first_row :: fit.row_step][: fit.num_requests]

    def _fit(self, bucket: Bucket, layout: GraphLayout) -> _Fit:
        """Run the last token in a decode graph, else the whole probe."""
        length = len(self.token_ids)
        if isinstance(bucket, DecodeBucket):
            rows = bucket.num_rows
            return _Fit(Phase.DECODE, bucket.num_seqs, rows, length - 1, 0, bucket.query_len)
        aligned = round_up(length, layout.prefill_tile)
        num_requests = min(layout.max_num_prefill_seqs, bucket.num_tokens // aligned)
        rows = num_requests * aligned
        if isinstance(bucket, ScoreBucket):
            return _Fit(Phase.SCORE, num_requests, rows, 0, length - 1, aligned)
        return _Fit(Phase.PREFILL, num_requests, rows, 0, 0, 1)

    def _request(self, start: int) -> ScheduledRequest:
        return ScheduledRequest(
            request_id="warm-up",
            token_ids=self.token_ids[start:],
            num_computed_tokens=start,
            block_tables=tuple(self._table(group, start) for group in self._groups),
        )

    def _table(self, group: KVGroup, start: int) -> BlockTable:
        """Return the blocks that the tokens from ``start`` on see."""
        first = group.first_live_block(start)
        end = num_blocks_for(len(self.token_ids), group.block_size)
        return BlockTable(first, self.block_ids[first:end])


def _write_once(slots: Int32Array) -> None:
    """Let the first of equal slots write; copies of the probe then read what it wrote."""
    _, first = np.unique(slots, return_index=True)
    is_copy = np.ones(len(slots), dtype=bool)
    is_copy[first] = False
    slots[is_copy] = PAD_SLOT_ID
