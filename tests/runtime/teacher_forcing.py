"""A decoder run over one sequence of known tokens: a prefill, then decode steps of one token.

Attention sees whole block tables in shuffled order; the graphs of the engine are not involved.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from noria.kernels.contract import PAD_SLOT_ID, compute_slots
from noria.runtime.kv_cache import CacheSize, KVCache, decoder_groups, sized
from noria.runtime.models.decoder import Decoder

BLOCK_SIZE = 4


def int32(*values: int) -> Tensor:
    """Return a vector of int32."""
    return torch.tensor(values, dtype=torch.int32)


class OneSequence:
    """The step of a model that holds one request, whose rows are the next tokens of it."""

    def __init__(self, model: Decoder, max_len: int, cache_dtype: torch.dtype) -> None:
        self.model = model
        num_blocks = -(-max_len // BLOCK_SIZE)
        groups = decoder_groups(model.architecture, block_size=BLOCK_SIZE, dtype=cache_dtype)
        groups = sized(groups, CacheSize((num_blocks + 1,) * len(groups), "given"))
        self.cache = KVCache(groups, model.kernels)
        # The order is a permutation, so that a table read in another order would show.
        self.blocks = (1 + torch.arange(num_blocks).mul(7) % num_blocks).to(torch.int32)
        assert len(set(self.blocks.tolist())) == num_blocks
        self.num_computed = 0

    def run(self, token_ids: Sequence[int], padding: Sequence[int] = ()) -> Tensor:
        """Return the logits of every token; ``padding`` are the ids of rows that are none."""
        self.count = len(token_ids)
        real = torch.arange(self.count, dtype=torch.int32)
        positions = real + self.num_computed
        slots = compute_slots(self.blocks, positions, BLOCK_SIZE).to(torch.int32)
        self.token_mask = _padded(torch.ones_like(real), padding, 0)
        self.slots = _padded(slots, padding, PAD_SLOT_ID)
        with torch.no_grad():
            ids = int32(*token_ids, *padding)
            logits: Tensor = self.model(ids, _padded(positions, padding, 0), real, self)
        self.num_computed += self.count
        return logits

    def attend(self, layer: int, q_RHD: Tensor, k_RKD: Tensor, v_RKD: Tensor) -> Tensor:
        """Write and attend, as a prefill if there are several tokens."""
        caches = self.cache.keys[layer], self.cache.values[layer]
        spec, table = self.model.attention_specs[layer], self.blocks[None]
        lengths = int32(self.num_computed), int32(self.count)
        if len(q_RHD) == 1:
            return self.model.kernels.attend_decode(
                q_RHD,
                k_RKD,
                v_RKD,
                *caches,
                slot_mapping_R=self.slots,
                block_table_SW=table,
                context_lens_S=lengths[0],
                query_lens_S=lengths[1],
                spec=spec,
            )
        return self.model.kernels.attend_prefill(
            q_RHD,
            k_RKD,
            v_RKD,
            *caches,
            slot_mapping_T=self.slots,
            block_table_PW=table,
            query_start_loc=int32(0, self.count),
            tile_request=self.token_mask - 1,
            context_lens_P=lengths[0],
            query_lens_P=lengths[1],
            spec=spec,
        )


def _padded(values: Tensor, padding: Sequence[int], value: int) -> Tensor:
    return torch.cat([values, torch.full((len(padding),), value, dtype=torch.int32)])


def teacher_forced_logits(
    model: Decoder,
    token_ids: Sequence[int],
    *,
    chunks: Sequence[int],
    cache_dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Return the logits of every position: chunks of these sizes, then one token at a time."""
    sequence = OneSequence(model, len(token_ids), cache_dtype)
    logits, start = [], 0
    for size in [*chunks, *[1] * (len(token_ids) - sum(chunks))]:
        logits.append(sequence.run(token_ids[start : start + size]))
        start += size
    return torch.cat(logits)
