"""From a scheduled step to the padded arrays of a graph.

The only place that pads. Arrays are a graph's static input buffers: every entry is written at
every step, so nothing of an earlier step can be left behind a shorter one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch

from ..kernels.contract import NULL_BLOCK_ID, compute_slots, remap_null_block
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
    tile, start = layout.prefill_tile, 0
    for row, request in enumerate(requests):
        num_tokens = len(request.token_ids)
        tokens = slice(start, start + num_tokens)
        _write_tokens(arrays, tokens, request, layout)
        arrays["query_start_loc"][row] = start
        arrays["context_lens"][row] = request.num_computed_tokens
        arrays["query_lens"][row] = num_tokens
        arrays["logits_positions"][row:] = start + num_tokens - 1
        tiles = -(-num_tokens // tile)
        arrays["tile_request"][start // tile : start // tile + tiles] = row
        start += tiles * tile
        arrays["query_start_loc"][row + 1 :] = start
    _write_block_tables(arrays, requests, layout)


def fill_score(arrays: Arrays, requests: Sequence[ScheduledRequest], layout: GraphLayout) -> None:
    """Write a prefill step that returns the logits of every row."""
    fill_prefill(arrays, requests, layout)
    arrays["logits_positions"][:] = range(len(arrays["logits_positions"]))


def fill_decode(arrays: Arrays, requests: Sequence[ScheduledRequest], layout: GraphLayout) -> None:
    """Write a decode step over padding: request s owns rows ``s*Q .. s*Q + Q - 1``."""
    query_len = len(arrays["input_ids"]) // len(arrays["query_lens"])
    for row, request in enumerate(requests):
        num_tokens = len(request.token_ids)
        start = row * query_len
        _write_tokens(arrays, slice(start, start + num_tokens), request, layout)
        arrays["context_lens"][row] = request.num_computed_tokens
        arrays["query_lens"][row] = num_tokens
        arrays["logits_positions"][start : start + num_tokens] = range(start, start + num_tokens)
        arrays["logits_positions"][start + num_tokens :] = start + num_tokens - 1
    _write_block_tables(arrays, requests, layout)


_FILL = {Phase.PREFILL: fill_prefill, Phase.SCORE: fill_score, Phase.DECODE: fill_decode}


def fill_step(
    arrays: Arrays, output: SchedulerOutput, spec: Sequence[GraphInput], layout: GraphLayout
) -> None:
    """Write a step into a graph's buffers, all else padding."""
    fill_padding(arrays, spec)
    _FILL[output.phase](arrays, output.requests, layout)


def _write_tokens(
    arrays: Arrays, rows: slice, request: ScheduledRequest, layout: GraphLayout
) -> None:
    positions = np.arange(request.num_computed_tokens, request.num_context_tokens, dtype=np.int32)
    arrays["input_ids"][rows] = request.token_ids
    arrays["positions"][rows] = positions
    if TOKEN_MASK in arrays:
        arrays[TOKEN_MASK][rows] = 1
    for group, kv in enumerate(layout.groups):
        table = request.block_tables[group]
        block_ids = np.asarray(table.block_ids, dtype=np.int32)
        in_table = positions - np.int32(table.first_block * kv.block_size)
        slots = compute_slots(block_ids, in_table, kv.block_size)
        arrays[slot_mapping_name(group)][rows] = slots


def _write_block_tables(
    arrays: Arrays, requests: Sequence[ScheduledRequest], layout: GraphLayout
) -> None:
    for group, kv in enumerate(layout.groups):
        target = arrays[block_table_name(group)]
        table = np.full(target.shape, NULL_BLOCK_ID, dtype=np.int32)
        for row, request in enumerate(requests):
            block_ids = request.block_tables[group].block_ids
            table[row, : len(block_ids)] = block_ids
        if kv.window is not None:
            first_blocks = [request.block_tables[group].first_block for request in requests]
            arrays[block_offset_name(group)][: len(requests)] = first_blocks
        # The remap is out of place: the table keeps the null block, only the graph sees -1.
        target[...] = remap_null_block(torch.from_numpy(table)).numpy()
