"""Other engines that can use a plan: what their graphs may be, as data, and their configuration.

Names and rules are of the versions that ``source`` states; later ones may differ.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from ..plan import PlanLimits

if TYPE_CHECKING:  # commands list the targets, and start without numpy
    from .settings import DecodeShape


@dataclass(frozen=True, slots=True)
class GraphSets:
    """Graphs for another engine.

    Attributes:
        limits: of the plan.
        prefill: sizes, ascending; the last is ``max_prefill_tokens``. Empty: prompts
            run without graphs.
        decode: (num_seqs, context_len), ascending.
        has_prefix_graphs: whether chunks behind cached tokens have graphs of their own.
    """

    limits: PlanLimits
    prefill: tuple[int, ...]
    decode: tuple[tuple[int, int], ...]
    has_prefix_graphs: bool = False

    @property
    def prompts(self) -> list[tuple[int, int]]:
        """Prefill graphs: their size, and the cached blocks that they have room for."""
        room = {size: self.limits.max_model_len - size for size in self.prefill}
        blocks = {size: left // self.limits.block_size for size, left in room.items()}
        behind = [(size, cached) for size, cached in blocks.items() if cached]
        plain = [(size, 0) for size in self.prefill]
        return sorted([*plain, *behind]) if self.has_prefix_graphs else plain

    @property
    def num_seqs(self) -> list[int]:
        """Numbers of requests of decode graphs, ascending."""
        return sorted({num_seqs for num_seqs, _ in self.decode})

    @property
    def contexts(self) -> list[int]:
        """Contexts of decode graphs, ascending."""
        return sorted({context for _, context in self.decode})


@dataclass(frozen=True, slots=True)
class Note:
    """What an engine does otherwise, for which there is no price.

    Attributes:
        text: may name limits, in braces.
        holds: whether it matters for a plan of these limits.
    """

    text: str
    holds: Callable[[PlanLimits], bool] = lambda limits: True


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What another engine takes.

    Attributes:
        title: its name.
        source: where its names and rules were read.
        usage: how to start it with the configuration; may name limits, in braces.
        write: makes the configuration.
        decode: ``ragged``: any graphs; ``product``: all pairs of two lists; ``list``: numbers of
            requests, for any context.
        reads_live: whether a decode graph reads no more than what its requests have cached.
        has_prompt_graphs: whether prompts run in graphs of fixed sizes.
        has_prefix_graphs: whether chunks behind cached tokens need graphs of their own.
        token_unit: that prefill sizes are multiples of; None: a block.
        chunk_sizes: the only prefill sizes where prompts run in chunks; empty: any.
        context_unit: that contexts of decode graphs are multiples of.
        takes_smallest: whether a step takes the graph of fewest requests, then of the shortest
            context, instead of the cheapest.
        fits_exactly: whether a prompt of a graph's size runs in it, not in the next larger.
        notes: what else differs.
    """

    title: str
    source: str
    usage: str
    write: Callable[[GraphSets], str]
    decode: DecodeShape = "ragged"
    reads_live: bool = False
    has_prompt_graphs: bool = True
    has_prefix_graphs: bool = False
    token_unit: int | None = 1
    chunk_sizes: tuple[int, ...] = ()
    context_unit: int = 1
    takes_smallest: bool = False
    fits_exactly: bool = True
    notes: tuple[Note, ...] = ()


def runs_chunks(limits: PlanLimits) -> bool:
    """Tell whether some prompts take several steps."""
    return limits.max_prefill_tokens < limits.max_model_len


def _vllm_neuron(sets: GraphSets) -> str:
    config: dict[str, object] = {
        "num_batched_tokens_buckets": list(sets.prefill),
        "num_seqs_buckets": sets.num_seqs,
    }
    if runs_chunks(sets.limits):
        config["kv_segment_size_buckets"] = list(sets.prefill)
    if len(sets.contexts) > 1:  # max_model_len is always there
        config["decode_context_length_buckets"] = sets.contexts[:-1]
    return json.dumps({"neuron_config": config})


def _nxdi(sets: GraphSets) -> str:
    limits = sets.limits
    config: dict[str, object] = {
        "enable_bucketing": True,
        "is_continuous_batching": True,
        "seq_len": limits.max_model_len,
        "max_context_length": limits.max_prefill_tokens,
        "batch_size": limits.max_num_seqs,
        "ctx_batch_size": 1,
        "tkg_batch_size": limits.max_num_seqs,
        "context_encoding_buckets": list(sets.prefill),
        "token_generation_buckets": sets.contexts,
    }
    if len(sets.num_seqs) > 1:  # tkg_batch_size is always there
        config["token_generation_batches"] = sets.num_seqs
    return json.dumps(config)


def _vllm_gaudi(sets: GraphSets) -> str:
    limits = sets.limits
    lines = [f"# prompts: requests, tokens, cached blocks of {limits.block_size}"]
    lines += [f"(1, {size}, {cached})" for size, cached in sets.prompts]
    lines.append("# decode: requests, 1 token, blocks of all of them")
    for num_seqs, context in sets.decode:
        lines.append(f"({num_seqs}, 1, {num_seqs * -(-context // limits.block_size)})")
    return "\n".join(lines)


def _cudagraph(sets: GraphSets) -> str:
    sizes = [num_seqs * sets.limits.query_len for num_seqs in sets.num_seqs]
    config = {"cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": sizes}
    return json.dumps(config)


ONE_BY_ONE = Note(
    "prompts run one by one there, where this plan packs up to {max_num_prefill_seqs} into a step",
    lambda limits: limits.max_num_prefill_seqs > 1,
)
TARGETS: Mapping[str, Target] = MappingProxyType(
    {
        "vllm-neuron": Target(
            title="vLLM Neuron",
            source="documentation of the Neuron SDK 2.33",
            usage="vllm serve MODEL --max-model-len {max_model_len} --max-num-seqs {max_num_seqs} "
            "--max-num-batched-tokens {max_prefill_tokens} --additional-config CONFIG",
            write=_vllm_neuron,
            decode="product",
            token_unit=128,
            chunk_sizes=(512, 1024, 2048, 4096),  # of the kernel that reads cached segments
            context_unit=128,
            takes_smallest=True,
            notes=(
                ONE_BY_ONE,
                Note("releases may take a single segment size, hence prefill size", runs_chunks),
            ),
        ),
        "nxdi": Target(
            title="NxD Inference",
            source="neuronx-distributed-inference 4bcdc54",
            usage="CONFIG are the arguments of NeuronConfig, or vLLM's override_neuron_config",
            write=_nxdi,
            decode="product",
            token_unit=128,
            takes_smallest=True,
            fits_exactly=False,
            notes=(
                ONE_BY_ONE,
                Note(
                    "token_generation_batches exclude speculation, prefix caching and chunked "
                    "prefill",
                    lambda limits: limits.max_num_seqs > 1,
                ),
                Note("prompts of more than {max_prefill_tokens} tokens are refused", runs_chunks),
            ),
        ),
        "vllm-gaudi": Target(
            title="vLLM Gaudi",
            source="vllm-gaudi 0.27 (091bbad)",
            usage="VLLM_BUCKETING_FROM_FILE=FILE VLLM_CONTIGUOUS_PA=false vllm serve MODEL "
            "--block-size {block_size} --max-model-len {max_model_len} --max-num-seqs "
            "{max_num_seqs} --max-num-batched-tokens {max_prefill_tokens}",
            write=_vllm_gaudi,
            has_prefix_graphs=True,
            token_unit=None,
            takes_smallest=True,
            notes=(
                ONE_BY_ONE,
                Note("steps take no more blocks than all their requests have, often fewer"),
                Note(
                    "the last chunk of a prompt near max_model_len may have no bucket, and "
                    "compile one when it comes",
                    runs_chunks,
                ),
            ),
        ),
        "cudagraph": Target(
            title="CUDA graphs of vLLM",
            source="documentation of vLLM 0.13 to 0.19",
            usage="vllm serve MODEL --max-model-len {max_model_len} --max-num-seqs {max_num_seqs} "
            "--compilation-config CONFIG",
            write=_cudagraph,
            decode="list",
            reads_live=True,
            has_prompt_graphs=False,
        ),
    }
)
"""By the name that ``noria export --to`` takes."""


def limit_texts(limits: PlanLimits) -> Mapping[str, int]:
    """Return what texts of a target may name in braces."""
    names = ("max_model_len", "max_num_seqs", "max_prefill_tokens", "block_size")
    return {name: getattr(limits, name) for name in (*names, "max_num_prefill_seqs")}
