"""Attention steps built from requests, for any KernelSet, with what the cache must hold after.

A request's queries, keys and values depend on its own seed only: the same request can be laid out
in another bucket, another row or other blocks, and must give the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from attention_heads import FP8, Heads, same_bits
from torch import Tensor

from noria.kernels.contract import (
    PAD_BLOCK_ID,
    PAD_SLOT_ID,
    compute_slots,
    num_blocks_for,
    table_width,
)
from noria.kernels.kernel_set import KernelSet

__all__ = [
    "FP8",
    "Heads",
    "Layout",
    "Request",
    "Step",
    "make_decode",
    "make_prefill",
    "same_bits",
    "single_steps",
]


@dataclass(frozen=True)
class Request:
    """A request with ``context_len`` cached tokens and ``query_len`` new ones."""

    context_len: int
    query_len: int
    seed: int = 0

    @property
    def num_tokens(self) -> int:
        return self.context_len + self.query_len

    def tensors(self, heads: Heads) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of every position, cached ones included.

        Drawn position by position, so a longer request starts like a shorter one of its seed.
        """
        generator = torch.Generator().manual_seed(self.seed)
        sizes = (
            (heads.num_kv_heads * heads.group, heads.k_dim),
            (heads.num_kv_heads, heads.k_dim),
            (heads.num_kv_heads, heads.v_dim),
        )
        width = sum(a * b for a, b in sizes)
        draws = torch.randn(self.num_tokens, width, generator=generator, dtype=torch.float64)
        parts = draws.to(heads.dtype).split([a * b for a, b in sizes], dim=1)
        q, k, v = (p.reshape(-1, *size) for p, size in zip(parts, sizes, strict=True))
        return q, k, v


@dataclass(frozen=True)
class Layout:
    """How a step is laid out; nothing here may change a bit of a real row.

    ``num_rows`` and ``num_requests`` are the bucket's, None for the tightest; ``filler`` is the
    content of every slot that no request owns, the null block's included.

    With ``dropped``, blocks before a request's window are freed (they hold the filler), and that
    share of them lies before the table. The rest are entries of -1, or stale with ``stale``.
    """

    num_rows: int | None = None
    num_requests: int | None = None
    extra_columns: int = 0
    free_blocks: int = 2
    block_seed: int = 0
    tile: int = 1
    query_len: int | None = None
    filler: float = 0.0
    padding: float = 0.0
    dropped: float | None = None
    stale: bool = False

    def freed_blocks(self, request: Request, heads: Heads) -> int:
        """Blocks of the request that were freed."""
        if self.dropped is None:
            return 0
        return heads.first_seen(request.context_len) // heads.block_size

    def block_offset(self, request: Request, heads: Heads) -> int:
        """Blocks of the request before its table."""
        return int(self.freed_blocks(request, heads) * (self.dropped or 0))


@dataclass(frozen=True)
class Step:
    """One laid out step: kernel arguments, and the expected caches."""

    heads: Heads
    requests: Sequence[Request]
    is_prefill: bool
    starts: list[int]
    args: list[Tensor]
    named: dict[str, Tensor]
    expected_caches: tuple[Tensor, Tensor]
    blocks: list[Tensor] = field(default_factory=list)

    def run(self, kernels: KernelSet) -> tuple[Tensor, Tensor, Tensor]:
        """Return the output rows and both caches; the step itself stays as it is."""
        args = [tensor.clone() for tensor in self.args]
        attend = kernels.attend_prefill if self.is_prefill else kernels.attend_decode
        output = attend(*args, **self.named, spec=self.heads.spec)
        return output, args[3], args[4]

    def request_rows(self, output: Tensor) -> list[Tensor]:
        """Cut the real rows of each request out of the output."""
        lens = [request.query_len for request in self.requests]
        return [output[s : s + n] for s, n in zip(self.starts, lens, strict=True)]

    def is_padding(self) -> Tensor:
        """True at rows of no request."""
        is_padding = torch.ones(self.args[0].shape[0], dtype=torch.bool)
        for start, request in zip(self.starts, self.requests, strict=True):
            is_padding[start : start + request.query_len] = False
        return is_padding

    def with_named(self, **named: Tensor) -> Step:
        """Return the step with some inputs replaced."""
        return replace(self, named={**self.named, **named})


def make_prefill(
    requests: Sequence[Request], heads: Heads | None = None, layout: Layout | None = None
) -> Step:
    """Lay out a packed prefill step."""
    heads, layout = heads or Heads(), layout or Layout()
    tile = layout.tile
    extents = [-(-request.query_len // tile) * tile for request in requests]
    starts = [sum(extents[:i]) for i in range(len(extents) + 1)]
    num_rows = layout.num_rows or starts[-1]
    num_requests = layout.num_requests or len(requests)
    owners = [i for i, extent in enumerate(extents) for _ in range(extent // tile)]
    step = _lay_out(requests, heads, layout, starts[:-1], num_rows)
    step.named.update(
        slot_mapping_T=step.named.pop("slots"),
        block_table_PW=step.named.pop("table"),
        query_start_loc=_int32(starts, num_requests + 1, starts[-1]),
        tile_request=_int32(owners, num_rows // tile, -1),
        context_lens_P=_int32([r.context_len for r in requests], num_requests, 0),
        query_lens_P=_int32([r.query_len for r in requests], num_requests, 0),
    )
    return replace(step, is_prefill=True)


def make_decode(
    requests: Sequence[Request], heads: Heads | None = None, layout: Layout | None = None
) -> Step:
    """Lay out a decode step of Q = ``layout.query_len`` (default: the longest query) rows each."""
    heads, layout = heads or Heads(), layout or Layout()
    query_len = layout.query_len or max(request.query_len for request in requests)
    num_requests = layout.num_requests or len(requests)
    starts = [i * query_len for i in range(len(requests))]
    step = _lay_out(requests, heads, layout, starts, num_requests * query_len)
    step.named.update(
        slot_mapping_R=step.named.pop("slots"),
        block_table_SW=step.named.pop("table"),
        context_lens_S=_int32([r.context_len for r in requests], num_requests, 0),
        query_lens_S=_int32([r.query_len for r in requests], num_requests, 0),
    )
    return step


def _lay_out(
    requests: Sequence[Request], heads: Heads, layout: Layout, starts: list[int], num_rows: int
) -> Step:
    needs = [num_blocks_for(request.num_tokens, heads.block_size) for request in requests]
    num_blocks = 1 + sum(needs) + layout.free_blocks
    generator = torch.Generator().manual_seed(layout.block_seed)
    order = torch.randperm(num_blocks - 1, generator=generator).to(torch.int32) + 1
    blocks = list(order[: sum(needs)].split(needs))
    ends = [r.num_tokens - layout.block_offset(r, heads) * heads.block_size for r in requests]
    width = table_width(max(ends), block_size=heads.block_size)
    offsets = [layout.block_offset(request, heads) for request in requests]
    table = torch.full(
        (layout.num_requests or len(requests), width + layout.extra_columns),
        PAD_BLOCK_ID,
        dtype=torch.int32,
    )
    slots = torch.full((num_rows,), PAD_SLOT_ID, dtype=torch.int32)
    rows = [torch.full((num_rows, *s), layout.padding, dtype=heads.dtype) for s in _sizes(heads)]
    caches = [
        torch.full((num_blocks, heads.block_size, *s), layout.filler).to(
            heads.cache_dtype or heads.dtype
        )
        for s in _sizes(heads)[1:]
    ]
    expected = [cache.clone() for cache in caches]
    for index, (request, start) in enumerate(zip(requests, starts, strict=True)):
        freed, offset = layout.freed_blocks(request, heads), offsets[index]
        first = offset if layout.stale else freed
        table[index, first - offset : needs[index] - offset] = blocks[index][first:]
        every = compute_slots(
            blocks[index], torch.arange(request.num_tokens, dtype=torch.int32), heads.block_size
        )
        new = slice(start, start + request.query_len)
        slots[new] = every[request.context_len :]
        tensors = request.tensors(heads)
        for padded, real in zip(rows, tensors, strict=True):
            padded[new] = real[request.context_len :]
        stored = [heads.stored(tensors[1], heads.k_scale), heads.stored(tensors[2], heads.v_scale)]
        kept = freed * heads.block_size
        for cache, after, real in zip(caches, expected, stored, strict=True):
            after.flatten(0, 1)[every[kept:]] = real[kept:]
            context = slice(kept, request.context_len)
            cache.flatten(0, 1)[every[context]] = real[context]
    named = {"slots": slots, "table": table}
    if layout.dropped is not None:
        named["block_offset"] = _int32(offsets, table.shape[0], 0)
    return Step(
        heads=heads,
        requests=requests,
        is_prefill=False,
        starts=starts,
        args=[*rows, *caches],
        named=named,
        expected_caches=(expected[0], expected[1]),
        blocks=blocks,
    )


def _sizes(heads: Heads) -> list[tuple[int, int]]:
    return [
        (heads.num_kv_heads * heads.group, heads.k_dim),
        (heads.num_kv_heads, heads.k_dim),
        (heads.num_kv_heads, heads.v_dim),
    ]


def _int32(values: list[int], size: int, pad: int) -> Tensor:
    return torch.tensor(values + [pad] * (size - len(values)), dtype=torch.int32)


def single_steps(request: Request) -> Iterator[Request]:
    """The same new tokens, one per step."""
    for position in range(request.context_len, request.num_tokens):
        yield replace(request, context_len=position, query_len=1)
