"""From a scheduled step to the padded arrays of a graph.

The only place that pads. Arrays are a graph's static input buffers: every entry is written at
every step, so nothing of an earlier step can be left behind a shorter one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain

import numpy as np
import numpy.typing as npt
import torch

from ..kernels.contract import NULL_BLOCK_ID, compute_slots, remap_null_block
from .block_table import BlockTable
from .graph_spec import (
    TOKEN_MASK,
    GraphInput,
    GraphLayout,
    block_offset_name,
    block_table_name,
    slot_mapping_name,
)
from .scheduler_output import Phase, ScheduledRequest, SchedulerOutput

Int32Array = npt.NDArray[np.int32]
Arrays = Mapping[str, Int32Array]


def fill_padding(arrays: Arrays, spec: Sequence[GraphInput]) -> None:
    """Write a step without requests: padding everywhere."""
    for graph_input in spec:
        arrays[graph_input.name].fill(graph_input.pad)


def fill_prefill(arrays: Arrays, requests: Sequence[ScheduledRequest], layout: GraphLayout) -> None:
    """Write a prefill step over padding: requests one after another, each at a tile border."""
    tile, starts, end = layout.prefill_tile, [], 0
    for row, request in enumerate(requests):
        starts.append(end)
        num_tiles = -(-len(request.token_ids) // tile)
        arrays["tile_request"][end // tile : end // tile + num_tiles] = row
        end += num_tiles * tile
    lasts = _write_requests(arrays, requests, starts, layout)
    arrays["query_start_loc"][: len(starts)] = starts
    arrays["query_start_loc"][len(starts) :] = end
    _write_padded(arrays["logits_positions"], lasts)


def fill_score(arrays: Arrays, requests: Sequence[ScheduledRequest], layout: GraphLayout) -> None:
    """Write a prefill step that returns the logits of every row."""
    fill_prefill(arrays, requests, layout)
    arrays["logits_positions"][:] = range(len(arrays["logits_positions"]))


def fill_decode(arrays: Arrays, requests: Sequence[ScheduledRequest], layout: GraphLayout) -> None:
    """Write a decode step over padding: request s owns rows ``s*Q .. s*Q + Q - 1``."""
    query_len = len(arrays["input_ids"]) // len(arrays["query_lens"])
    starts = range(0, len(requests) * query_len, query_len)
    lasts = _write_requests(arrays, requests, starts, layout)
    # Where a request has fewer than Q tokens, its last one is repeated.
    rows = np.arange(len(requests) * query_len, dtype=np.int32)
    _write_padded(arrays["logits_positions"], np.minimum(rows, lasts.repeat(query_len)))


def _write_padded(array: Int32Array, values: Int32Array) -> None:
    """Write values, the last one again where there is no request."""
    array[: len(values)] = values
    array[len(values) :] = values[-1]


_FILL = {Phase.PREFILL: fill_prefill, Phase.SCORE: fill_score, Phase.DECODE: fill_decode}


def fill_step(
    arrays: Arrays, output: SchedulerOutput, spec: Sequence[GraphInput], layout: GraphLayout
) -> None:
    """Write a step into a graph's buffers, all else padding."""
    fill_padding(arrays, spec)
    _FILL[output.phase](arrays, output.requests, layout)


def _write_requests(
    arrays: Arrays,
    requests: Sequence[ScheduledRequest],
    starts: Sequence[int],
    layout: GraphLayout,
) -> Int32Array:
    """Write all of a step but where its requests lie; return the last row of each request.

    Args:
        arrays: the graph's buffers, filled with padding.
        requests: in row order.
        starts: the first row of each.
        layout: the KV groups.
    """
    query_lens = np.array([len(request.token_ids) for request in requests])
    context_lens = np.array([request.num_computed_tokens for request in requests])
    owners = np.arange(len(requests)).repeat(query_lens)
    ends = query_lens.cumsum()
    tokens = np.arange(ends[-1]) - (ends - query_lens).repeat(query_lens)
    rows = np.array(starts)[owners] + tokens
    positions = context_lens[owners] + tokens
    ids = chain.from_iterable(request.token_ids for request in requests)
    arrays["input_ids"][rows] = np.fromiter(ids, dtype=np.int32, count=len(rows))
    arrays["positions"][rows] = positions
    arrays["context_lens"][: len(requests)] = context_lens
    arrays["query_lens"][: len(requests)] = query_lens
    if TOKEN_MASK in arrays:
        arrays[TOKEN_MASK][rows] = 1
    for group, kv in enumerate(layout.groups):
        tables = [request.block_tables[group] for request in requests]
        table = _write_block_table(arrays, group, tables)
        first_blocks = np.array([one.first_block for one in tables])
        if kv.window is not None:
            arrays[block_offset_name(group)][: len(requests)] = first_blocks
        # Positions count from the beginning of all tables, one behind the other.
        shifts = (np.arange(len(requests)) * table.shape[1] - first_blocks) * kv.block_size
        slots = compute_slots(table.ravel(), positions + shifts[owners], kv.block_size)
        assert slots.min() >= kv.block_size, "a token has no block but the null block"
        arrays[slot_mapping_name(group)][rows] = slots
    lasts: Int32Array = (np.array(starts) + query_lens - 1).astype(np.int32)
    return lasts


def _write_block_table(arrays: Arrays, group: int, tables: Sequence[BlockTable]) -> Int32Array:
    """Write the block table of a group; return it with the null block where there is none."""
    target = arrays[block_table_name(group)]
    table = np.full(target.shape, NULL_BLOCK_ID, dtype=np.int32)
    for row, one in enumerate(tables):
        table[row, : len(one.block_ids)] = one.block_ids
    # The remap is out of place: the table keeps the null block, only the graph sees -1.
    target[...] = remap_null_block(torch.from_numpy(table)).numpy()
    return table
