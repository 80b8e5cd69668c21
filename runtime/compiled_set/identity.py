"""What a compiled set and its graphs are for: every fact that may change one, as a key.

One key holds what all graphs of a set share, one more what tells each graph from the others.
Nothing of a process, a folder, a user or a point in time is in them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path

import torch

from ...bucketing import Bucket
from ...kernels.contract import KVGroup
from ...kernels.kernel_set import KernelSet
from ...kernels.source_digest import source_digest
from ..config import Config
from ..graph_spec import GraphLayout, graph_spec, num_logits_rows
from ..models.architecture import Architecture
from ..models.kv_scales import KVScales
from ..planning import graph_layout
from ..sampler_stages import SamplerShape
from .key import Key

RUNTIME = Path(__file__).parent.parent
GRAPH_SOURCES = (
    "assembly.py",
    "block_copies.py",
    "constraint.py",
    "graph_spec.py",
    "graphs.py",
    "kv_cache.py",
    "model_graphs.py",
    "models/architecture.py",
    "models/decoder.py",
    "models/decoder_parts.py",
    "models/rope.py",
    "models/rope_scaling.py",
    "models/tensor_names.py",
    "models/weights.py",
    "sampler.py",
    "sampler_features.py",
    "sampler_stages.py",
    "sampling_state.py",
)
"""Modules of the runtime that say what a graph computes and which shapes it has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetIdentity:
    """What all graphs of a set depend on besides the target's code and this machine.

    Attributes:
        dtype: of weights and activations, by its name in torch.
        groups: the KV groups with their numbers of blocks.
        kv_scales: of each layer's cache; None is 1 for all.
        max_model_len: rows of the rope tables.
        backend: what runs the graphs; ``target`` its generation, where it has several.
        rank: which of the ``tensor_parallel_size`` devices the graphs are for.
    """

    architecture: Architecture
    dtype: str
    groups: tuple[KVGroup, ...]
    kv_scales: tuple[KVScales, ...] | None
    layout: GraphLayout
    max_model_len: int
    sampler_features: tuple[str, ...]
    max_logprobs: int
    backend: str
    target: str | None = None
    tensor_parallel_size: int = 1
    rank: int = 0


def set_identity(
    config: Config,
    kernels: KernelSet,
    *,
    architecture: Architecture,
    groups: Sequence[KVGroup],
    kv_scales: Sequence[KVScales] | None = None,
    rank: int = 0,
) -> SetIdentity:
    """Return the identity of a configuration's set; ``groups`` have their numbers of blocks."""
    return SetIdentity(
        architecture=architecture,
        dtype=config.dtype,
        groups=tuple(groups),
        kv_scales=None if kv_scales is None else tuple(kv_scales),
        layout=graph_layout(config, kernels, groups, has_experts=architecture.has_experts),
        max_model_len=config.max_model_len,
        sampler_features=config.sampler_features,
        max_logprobs=config.max_logprobs,
        backend=config.backend,
        target=config.target,
        tensor_parallel_size=config.tensor_parallel_size,
        rank=rank,
    )


def set_key(identity: SetIdentity, kernels: KernelSet) -> Key:
    """Return the key that all graphs of a set share."""
    key: Key = {one.name: _plain(getattr(identity, one.name)) for one in fields(identity)}
    scales = identity.kv_scales or (KVScales(),) * identity.architecture.num_layers
    return key | {
        "groups": [_group(one, kernels) for one in identity.groups],
        "kv_scales": _plain(scales),
        "sampler_features": sorted(set(identity.sampler_features)),
        **code_key(kernels),
    }


def code_key(kernels: KernelSet) -> Key:
    """Return the part of ``set_key`` that the code and this machine make, not a configuration."""
    return {
        "kernels": {"name": kernels.name, **kernels.fingerprint},
        "torch": str(torch.__version__),
        "runtime_sources": source_digest(*GRAPH_SOURCES, folder=RUNTIME),
    }


def graph_key(bucket: Bucket, layout: GraphLayout) -> Key:
    """Return the key of the model graph of a bucket: its sizes, inputs and rows of logits."""
    return {
        "kind": bucket.phase,
        "bucket": _plain(bucket),
        "inputs": {one.name: _plain(one) for one in graph_spec(bucket, layout)},
        "logits_rows": num_logits_rows(bucket, layout),
    }


def sampler_key(shape: SamplerShape, features: Collection[str]) -> Key:
    """Return the key of the sampler with these features."""
    return {"kind": "sampler", "shape": _plain(shape), "features": sorted(features)}


def scorer_key(shape: SamplerShape) -> Key:
    """Return the key of the graph that reads logprobs of given tokens."""
    return {"kind": "scorer", "shape": _plain(shape)}


def copy_key(group: int, num_copies: int) -> Key:
    """Return the key of the graph that copies up to so many blocks of a KV group."""
    return {"kind": "copy_blocks", "group": group, "num_copies": num_copies}


def _group(group: KVGroup, kernels: KernelSet) -> object:
    """Return a KV group; its number of blocks is left out where no trace depends on it."""
    plain = _plain(group)
    assert isinstance(plain, dict)
    if not kernels.fixes_num_blocks:
        del plain["num_blocks"]
    return plain


def _plain(value: object) -> object:
    """Return a value as JSON values; those of a dataclass with the name of its class.

    Raises:
        TypeError: a value has no text that is the same in every process.
    """
    if is_dataclass(value) and not isinstance(value, type):
        names = [one.name for one in fields(value)]
        return {"type": type(value).__name__} | {n: _plain(getattr(value, n)) for n in names}
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    if isinstance(value, tuple | list):
        return [_plain(one) for one in value]
    if value is None or isinstance(value, str | int):  # bool is an int
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    raise TypeError(f"{value!r} has no place in the key of a compiled set")
