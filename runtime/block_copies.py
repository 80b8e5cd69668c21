"""Copying blocks before a step: one small graph per KV group, over the caches of its layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from ..kernels.contract import PAD_BLOCK_ID
from ..kernels.kernel_set import KernelSet
from .block_table import BlockCopy
from .compiled_set.identity import copy_key
from .graph_source import EngineGraph, GraphSource
from .kv_cache import KVCache
from .model_inputs import Int32Array


class CopyBlocks(nn.Module):
    """Copies some blocks to others, in every layer of a group."""

    def __init__(self, kernels: KernelSet) -> None:
        """Use this target's kernels."""
        super().__init__()
        self.kernels = kernels

    def forward(
        self,
        k_caches: Sequence[Tensor],
        v_caches: Sequence[Tensor],
        sources_M: Tensor,
        destinations_M: Tensor,
    ) -> None:
        """Change the caches in place; entries of -1 are skipped."""
        for k_cache, v_cache in zip(k_caches, v_caches, strict=True):
            self.kernels.copy_blocks(k_cache, v_cache, sources_M, destinations_M)


@dataclass(frozen=True, slots=True)
class CopyGraph:
    """A compiled copy with its static inputs."""

    sources: Int32Array
    destinations: Int32Array
    run: Callable[[], None]


class BlockCopier:
    """The copy graphs of all groups. A step copies at most one block per request and group."""

    def __init__(
        self, cache: KVCache, kernels: KernelSet, source: GraphSource, *, max_num_seqs: int
    ) -> None:
        """Compile one graph per group."""
        self._graphs = [
            _compile(cache, kernels, source, group=group, size=max_num_seqs)
            for group in range(len(cache.groups))
        ]

    def run(self, copies: Sequence[BlockCopy]) -> None:
        """Copy these blocks; none costs nothing."""
        if not copies:
            return
        for group, graph in enumerate(self._graphs):
            own = [copy for copy in copies if copy.group == group]
            for array, ids in (
                (graph.sources, [copy.source for copy in own]),
                (graph.destinations, [copy.destination for copy in own]),
            ):
                array.fill(PAD_BLOCK_ID)
                array[: len(ids)] = ids
            graph.run()

    def warm_up(self) -> None:
        """Run every graph on padding."""
        for graph in self._graphs:
            graph.run()


def copy_name(group: int, num_copies: int) -> str:
    """Return what the graph that copies up to so many blocks of a KV group is called."""
    return f"copy_blocks_g{group}_s{num_copies}"


def _compile(
    cache: KVCache, kernels: KernelSet, source: GraphSource, *, group: int, size: int
) -> CopyGraph:
    sources, destinations = (torch.full((size,), PAD_BLOCK_ID, dtype=torch.int32) for _ in range(2))
    layers = cache.groups[group].layers
    caches = [[caches[layer] for layer in layers] for caches in (cache.keys, cache.values)]
    inputs = [*caches, sources, destinations]
    name = copy_name(group, size)
    graph = EngineGraph(name, copy_key(group, size), CopyBlocks(kernels), inputs, [])
    run = source.get(graph)
    return CopyGraph(_array(sources), _array(destinations), run)


def _array(tensor: Tensor) -> Int32Array:
    array: Int32Array = tensor.numpy()
    assert array.dtype == np.int32
    return array
