"""The fixed-shape inputs of every compiled graph, by name.

A graph takes exactly these tensors, all int32, contiguous and always present; an entry that
carries no request holds the padding named here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..bucketing import DecodeBucket, PrefillBucket
from ..kernels.contract import PAD_BLOCK_ID, PAD_SLOT_ID, table_width


@dataclass(frozen=True, slots=True)
class GraphInput:
    """One int32 input: name, shape and the value of padded entries where no request is.

    Behind the last request ``query_start_loc`` and ``logits_positions`` repeat what names
    something that exists: see ``model_inputs``.
    """

    name: str
    shape: tuple[int, ...]
    pad: int = 0


@dataclass(frozen=True, slots=True)
class GraphLayout:
    """What shapes depend on besides the bucket.

    Attributes:
        block_sizes: tokens per block, per KV group.
        max_num_prefill_seqs: requests of a prefill step (P).
        prefill_tile: requests start at multiples of this many tokens in a prefill step.
        fold_blocks: block table widths are multiples of this.
    """

    block_sizes: tuple[int, ...]
    max_num_prefill_seqs: int
    prefill_tile: int
    fold_blocks: int

    def table_width(self, group: int, context_len: int) -> int:
        """Columns of a group's block table in a graph for this context length."""
        block_size = self.block_sizes[group]
        return table_width(context_len, block_size=block_size, fold_blocks=self.fold_blocks)


def slot_mapping_name(group: int) -> str:
    """Name of the slot mapping of a KV group."""
    return f"slot_mapping_{group}"


def block_table_name(group: int) -> str:
    """Name of the block table of a KV group."""
    return f"block_table_{group}"


def graph_spec(bucket: PrefillBucket | DecodeBucket, layout: GraphLayout) -> Sequence[GraphInput]:
    """Return the inputs of the bucket's graph, in order."""
    if isinstance(bucket, PrefillBucket):
        return _prefill_spec(bucket, layout)
    return _decode_spec(bucket, layout)


def num_logits_rows(bucket: PrefillBucket | DecodeBucket, layout: GraphLayout) -> int:
    """Rows of logits that the bucket's graph returns: one per request it can hold and query."""
    if isinstance(bucket, PrefillBucket):
        return layout.max_num_prefill_seqs
    return bucket.num_rows


def _prefill_spec(bucket: PrefillBucket, layout: GraphLayout) -> Sequence[GraphInput]:
    tokens, seqs = bucket.num_tokens, layout.max_num_prefill_seqs
    return (
        GraphInput("input_ids", (tokens,)),
        GraphInput("positions", (tokens,)),
        GraphInput("query_start_loc", (seqs + 1,)),
        GraphInput("tile_request", (tokens // layout.prefill_tile,), pad=-1),
        GraphInput("context_lens", (seqs,)),
        GraphInput("query_lens", (seqs,)),
        GraphInput("logits_positions", (seqs,)),
        *_kv_inputs(tokens, seqs, bucket.context_len, layout),
    )


def _decode_spec(bucket: DecodeBucket, layout: GraphLayout) -> Sequence[GraphInput]:
    rows, seqs = bucket.num_rows, bucket.num_seqs
    return (
        GraphInput("input_ids", (rows,)),
        GraphInput("positions", (rows,)),
        GraphInput("context_lens", (seqs,)),
        GraphInput("query_lens", (seqs,)),
        GraphInput("logits_positions", (rows,)),
        *_kv_inputs(rows, seqs, bucket.context_len, layout),
    )


def _kv_inputs(rows: int, seqs: int, context_len: int, layout: GraphLayout) -> Sequence[GraphInput]:
    slots, tables = [], []
    for group in range(len(layout.block_sizes)):
        width = layout.table_width(group, context_len)
        slots.append(GraphInput(slot_mapping_name(group), (rows,), pad=PAD_SLOT_ID))
        tables.append(GraphInput(block_table_name(group), (seqs, width), pad=PAD_BLOCK_ID))
    return (*slots, *tables)
