"""The fixed-shape inputs of every compiled graph, by name.

A graph takes exactly these tensors, all int32, contiguous and always present; an entry that
carries no request holds the padding named here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..bucketing import Bucket, DecodeBucket, ScoreBucket
from ..kernels.contract import PAD_BLOCK_ID, PAD_SLOT_ID, table_width

TOKEN_MASK = "token_mask"
"""Name of the input that is 1 for rows that hold a token."""


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
class GroupLayout:
    """What shapes depend on of a KV group: tokens per block, and the window of its layers."""

    block_size: int
    window: int | None = None


@dataclass(frozen=True, slots=True)
class GraphLayout:
    """What shapes depend on besides the bucket.

    Attributes:
        groups: the KV groups.
        max_num_prefill_seqs: requests of a prefill step (P).
        prefill_tile: requests start at multiples of this many tokens in a prefill step.
        fold_blocks: block table widths are multiples of this.
        has_experts: whether graphs take ``token_mask``: padding must reach no expert.
    """

    groups: tuple[GroupLayout, ...]
    max_num_prefill_seqs: int
    prefill_tile: int
    fold_blocks: int
    has_experts: bool = False

    def table_width(self, group: int, bucket: Bucket) -> int:
        """Columns of a group's block table in a bucket's graph."""
        return table_width(
            bucket.context_len,
            block_size=self.groups[group].block_size,
            fold_blocks=self.fold_blocks,
            window=self.groups[group].window,
            query_len=bucket.query_len,
        )


def slot_mapping_name(group: int) -> str:
    """Name of the slot mapping of a KV group."""
    return f"slot_mapping_{group}"


def block_table_name(group: int) -> str:
    """Name of the block table of a KV group."""
    return f"block_table_{group}"


def block_offset_name(group: int) -> str:
    """Name of the blocks before the table of a KV group that has a window."""
    return f"block_offset_{group}"


def graph_spec(bucket: Bucket, layout: GraphLayout) -> Sequence[GraphInput]:
    """Return the inputs of the bucket's graph, in order: the base ones, then extensions."""
    if isinstance(bucket, DecodeBucket):
        base = _decode_inputs(bucket)
    else:
        base = _prefill_inputs(bucket, layout)
    return (*base, *_kv_inputs(bucket, layout), *_expert_inputs(bucket, layout))


def num_seqs_rows(bucket: Bucket, layout: GraphLayout) -> int:
    """Rows of block tables and lengths: the requests that the bucket's graph can hold."""
    return bucket.num_seqs if isinstance(bucket, DecodeBucket) else layout.max_num_prefill_seqs


def num_logits_rows(bucket: Bucket, layout: GraphLayout) -> int:
    """Rows of logits that the bucket's graph returns.

    One per request it can hold and query, of a graph that scores one per token.
    """
    every_row = isinstance(bucket, DecodeBucket | ScoreBucket)
    return bucket.num_rows if every_row else layout.max_num_prefill_seqs


def _prefill_inputs(bucket: Bucket, layout: GraphLayout) -> Sequence[GraphInput]:
    tokens, seqs = bucket.num_rows, layout.max_num_prefill_seqs
    return (
        GraphInput("input_ids", (tokens,)),
        GraphInput("positions", (tokens,)),
        GraphInput("query_start_loc", (seqs + 1,)),
        GraphInput("tile_request", (tokens // layout.prefill_tile,), pad=-1),
        GraphInput("context_lens", (seqs,)),
        GraphInput("query_lens", (seqs,)),
        GraphInput("logits_positions", (num_logits_rows(bucket, layout),)),
    )


def _decode_inputs(bucket: DecodeBucket) -> Sequence[GraphInput]:
    rows, seqs = bucket.num_rows, bucket.num_seqs
    return (
        GraphInput("input_ids", (rows,)),
        GraphInput("positions", (rows,)),
        GraphInput("context_lens", (seqs,)),
        GraphInput("query_lens", (seqs,)),
        GraphInput("logits_positions", (rows,)),
    )


def _kv_inputs(bucket: Bucket, layout: GraphLayout) -> Sequence[GraphInput]:
    rows, seqs = bucket.num_rows, num_seqs_rows(bucket, layout)
    slots, tables, offsets = [], [], []
    for group, kv in enumerate(layout.groups):
        width = layout.table_width(group, bucket)
        slots.append(GraphInput(slot_mapping_name(group), (rows,), pad=PAD_SLOT_ID))
        tables.append(GraphInput(block_table_name(group), (seqs, width), pad=PAD_BLOCK_ID))
        if kv.window is not None:
            offsets.append(GraphInput(block_offset_name(group), (seqs,)))
    return (*slots, *tables, *offsets)


def _expert_inputs(bucket: Bucket, layout: GraphLayout) -> Sequence[GraphInput]:
    return (GraphInput(TOKEN_MASK, (bucket.num_rows,)),) if layout.has_experts else ()
