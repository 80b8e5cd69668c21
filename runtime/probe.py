"""The prompt that runs in every graph at warm-up, as often as a graph holds requests."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from ..bucketing import Bucket, DecodeBucket, ScoreBucket, round_up
from ..kernels.contract import PAD_SLOT_ID, KVGroup, num_blocks_for
from .block_table import BlockTable
from .graph_spec import GraphLayout, slot_mapping_name
from .graphs import CompiledGraph
from .model_inputs import Int32Array, fill_step
from .scheduler_output import Phase, ScheduledRequest, SchedulerOutput

PROBE_LEN = 3
ProbeBlocks = Sequence[Sequence[int]]
"""Ids of the blocks that hold the probe, per KV group."""


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


class Probe:
    """A short prompt, to be run on blocks that nobody owns.

    Attributes:
        num_blocks: that it takes, of each KV group.
    """

    def __init__(
        self, groups: Sequence[KVGroup], buckets: Collection[Bucket], vocab_size: int
    ) -> None:
        """Make the longest one, up to ``PROBE_LEN``, that fits every cache and every bucket."""
        length = _probe_len(groups, buckets)
        self._token_ids = [(7 * i + 1) % vocab_size for i in range(length)]
        self._groups = groups
        self.num_blocks = tuple(num_blocks_for(length, group.block_size) for group in groups)

    def run(self, graph: CompiledGraph, layout: GraphLayout, blocks: ProbeBlocks) -> Tensor:
        """Run it in as many rows as fit; return its logits ``[rows, V]``.

        A decode graph runs its last token: the others must be in the cache.
        """
        fit = self._fit(graph.bucket, layout)
        request = self._request(fit.start, blocks)
        output = SchedulerOutput(fit.phase, (request,) * fit.num_requests)
        fill_step(graph.arrays, output, graph.spec, layout)
        for group in range(len(self._groups)):
            _write_once(graph.arrays[slot_mapping_name(group)])
        graph.run_rows(fit.num_rows)
        logits_RV = graph.logits_RV.cpu()  # on a device, taking rows would be compiled
        return logits_RV[fit.first_row :: fit.row_step][: fit.num_requests]

    def _fit(self, bucket: Bucket, layout: GraphLayout) -> _Fit:
        """Run the last token in a decode graph, else the whole probe."""
        length = len(self._token_ids)
        if isinstance(bucket, DecodeBucket):
            rows = bucket.num_rows
            return _Fit(Phase.DECODE, bucket.num_seqs, rows, length - 1, 0, bucket.query_len)
        aligned = round_up(length, layout.prefill_tile)
        num_requests = min(layout.max_num_prefill_seqs, bucket.num_tokens // aligned)
        rows = num_requests * aligned
        if isinstance(bucket, ScoreBucket):
            return _Fit(Phase.SCORE, num_requests, rows, 0, length - 1, aligned)
        return _Fit(Phase.PREFILL, num_requests, rows, 0, 0, 1)

    def _request(self, start: int, blocks: ProbeBlocks) -> ScheduledRequest:
        tables = zip(self._groups, blocks, strict=True)
        return ScheduledRequest(
            request_id="warm-up",
            token_ids=self._token_ids[start:],
            num_computed_tokens=start,
            block_tables=tuple(_table(group, start, ids) for group, ids in tables),
        )


def _probe_len(groups: Sequence[KVGroup], buckets: Collection[Bucket]) -> int:
    slots = min((group.num_blocks - 1) * group.block_size for group in groups)
    contexts = min(bucket.context_len for bucket in buckets)
    rows = min(bucket.num_rows for bucket in buckets if bucket.phase == "prefill")
    return min(PROBE_LEN, slots, contexts, rows)


def _table(group: KVGroup, start: int, block_ids: Sequence[int]) -> BlockTable:
    """Return the blocks that the tokens from ``start`` on see."""
    first = group.first_live_block(start)
    return BlockTable(first, tuple(block_ids[first:]))


def _write_once(slots: Int32Array) -> None:
    """Let the first of equal slots write; copies of the probe then read what it wrote."""
    _, first = np.unique(slots, return_index=True)
    is_copy = np.ones(len(slots), dtype=bool)
    is_copy[first] = False
    slots[is_copy] = PAD_SLOT_ID
