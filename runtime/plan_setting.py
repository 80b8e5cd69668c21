"""The setting ``buckets``: the name of a spacing rule, or a plan, written here or in a file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from ..bucketing import SPACING, PlanFile
from .errors import ConfigError
from .typed_reader import refuse, shown
from .value_text import value_text
from .yaml_reader import read_yaml

KEY = "buckets"
FITS = f"one of {', '.join(SPACING)}, or a plan: the path of its file, or its content"
BUCKET_LISTS = (
    "num_batched_tokens_buckets",
    "num_seqs_buckets",
    "prefill_context_length_buckets",
    "decode_context_length_buckets",
)
"""Settings that say what a plan says already."""


def plan_path(settings: object) -> str | None:
    """Return the path that settings name a plan file by, as it is written; None for no path."""
    named = settings.get(KEY) if isinstance(settings, Mapping) else None
    return named if isinstance(named, str) and named not in SPACING else None


def plan_place(path: str | None) -> str:
    """Return how errors about a plan begin: with the setting, and its file if it has one."""
    return KEY if path is None else f"{KEY}: {_name(path)}"


def with_plan(settings: object, folder: Path) -> object:
    """Return settings that hold the plan that they name a file of, if they do.

    Args:
        settings: as written.
        folder: what a relative path starts from.

    Raises:
        ConfigError: the file cannot be read, or holds no plan.
    """
    path = plan_path(settings)
    if path is None:
        return settings
    assert isinstance(settings, Mapping)
    return {**settings, KEY: _read_plan(plan_place(path), _read_file(path, folder))}


def read_buckets(path: str, value: object) -> str | PlanFile:
    """Read the setting, whose plan file was read before."""
    if isinstance(value, PlanFile):
        return value
    if isinstance(value, Mapping):
        return _read_plan(path, value)
    if isinstance(value, str) and value in SPACING:
        return value
    refuse(path, shown(value), f"must be {FITS}")


def planned_lists(plan: PlanFile) -> dict[str, tuple[int, ...]]:
    """Return the sizes that the graphs of a plan have, as the bucket lists of a configuration."""
    prefill = [graph.bucket for graph in plan.prefill]
    decode = [graph.bucket for graph in plan.decode]
    sizes = (
        {bucket.size for bucket in prefill},
        {bucket.size for bucket in decode},
        {bucket.context_len for bucket in prefill},
        {bucket.context_len for bucket in decode},
    )
    return {key: tuple(sorted(found)) for key, found in zip(BUCKET_LISTS, sizes, strict=True)}


def _read_file(path: str, folder: Path) -> object:
    file = os.path.join(folder, os.path.expanduser(path))
    if not os.path.exists(file):
        refuse(plan_place(path), "no such file", f"must be {FITS}")
    try:
        return read_yaml(file, name=_name(path))
    except ConfigError as error:
        raise ConfigError(f"{KEY}: {error}") from None


def _name(path: str) -> str:
    """Return a path as errors show it: on one line, not too long."""
    return value_text(path)[1:-1]


def _read_plan(place: str, data: object) -> PlanFile:
    try:
        return PlanFile.from_mapping(data)
    except (ValueError, OverflowError) as error:  # also numbers that have no text, or are no float
        raise ConfigError(f"{place}: {' '.join(str(error).split())}") from None
