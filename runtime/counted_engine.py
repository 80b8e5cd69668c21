"""The engine of a configuration, as its counters and its plans say which one they are of.

Needs no torch: plans are made on machines that have none.
"""

from __future__ import annotations

from ..bucketing import PlanFile
from ..bucketing.traces.counted_engine import KEY_DIGITS, CountedEngine, plan_key
from .compiled_set.key import key_digest
from .config import Config
from .errors import ModelError
from .models.architecture import Architecture, LayerKind
from .models.locations import model_name
from .models.sizes import read_sizes_of
from .planning import bucket_plan, planned_limits


def engine_of(config: Config, architecture: Architecture | None) -> CountedEngine:
    """Return the engine of a configuration.

    Args:
        config: with the graphs that it runs.
        architecture: of its model; None: not known.
    """
    limits = planned_limits(config)
    planned = config.buckets if isinstance(config.buckets, PlanFile) else None
    graphs = bucket_plan(config, limits)
    labels = [bucket.label for bucket in graphs.buckets if bucket.phase != "score"]
    return CountedEngine(
        limits=limits,
        backend=config.backend,
        model=model_name(config.model),
        model_key=None if architecture is None else architecture_key(architecture),
        policy="fill" if planned is None else planned.policy,
        plan_key=plan_key(labels, () if planned is None else planned.chunks),
    )


def engine_without_weights(config: Config) -> CountedEngine:
    """Return the same where only the model's ``config.json`` is read, if it is there."""
    try:
        return engine_of(config, read_sizes_of(config.model))
    except ModelError:
        return engine_of(config, None)


def architecture_key(architecture: Architecture) -> str:
    """Return a digest of the sizes on which the work of a step depends."""
    names = (
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_heads",
        "num_kv_heads",
        "head_dim",
    )
    sizes: dict[str, object] = {name: getattr(architecture, name) for name in names}
    sizes["layers"] = [_layer_sizes(kind) for kind in architecture.layers]
    return key_digest(sizes)[:KEY_DIGITS]


def _layer_sizes(kind: LayerKind) -> list[object]:
    experts = kind.experts
    if experts is None:
        return [kind.window]
    return [kind.window, experts.num, experts.num_per_token, experts.intermediate_size]
