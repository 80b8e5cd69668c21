"""From a YAML file or a mapping to a validated Config; needs no model, no weights and no torch."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from ..bucketing import MAX_NUM_GRAPHS, SEQS, SPACING, TOKENS, Axis, PlanFile
from .config_rules import check_rules
from .errors import ConfigError
from .plan_rules import check_plan
from .plan_setting import BUCKET_LISTS, plan_path, plan_place, planned_lists, with_plan
from .schema import Absent, SettingRow, entries, setting_rows
from .settings import NEURON_BACKENDS, Config
from .typed_reader import read_settings, refuse
from .yaml_reader import read_yaml

__all__ = ["Config", "config_rows", "load_config", "parse_config"]

DEFAULT_MAX_NUM_PREFILL_SEQS = 8


def load_config(path: str | PathLike[str]) -> Config:
    """Read and validate a YAML file.

    Raises:
        ConfigError: one line with file, key path, problem and what fits.
    """
    return parse_config(read_yaml(path), source=fspath(path), folder=Path(path).parent)


def parse_config(mapping: object, *, source: str = "config", folder: Path = Path()) -> Config:
    """Validate settings given as plain data, and resolve every default.

    Args:
        mapping: settings by their names in a file.
        source: what the settings came from, the start of every error.
        folder: what the path of a plan starts from, if it is relative.

    Raises:
        ConfigError: one line with source, key path, problem and what fits.
    """
    try:
        config = _resolve(read_settings(Config, with_plan(mapping, folder)))
        check_rules(config)
        check_plan(config, plan_place(plan_path(mapping)))
        return config
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from None


def config_rows() -> list[SettingRow]:
    """Describe every setting, in the order of a configuration's documentation."""
    return setting_rows(Config)


def _resolve(given: Mapping[str, Any]) -> Config:
    """Fill in what was not written: fixed defaults first, then what follows from others."""
    values = dict(given)
    for entry in entries(Config).values():
        if entry.setting.default is Absent.REQUIRED and entry.name not in values:
            raise ConfigError(f"{entry.key}: is missing; set it to {entry.fits}")
        if not isinstance(entry.setting.default, Absent):
            values.setdefault(entry.name, entry.setting.default)
    _derive_target(values)
    _derive_shapes(values)
    return Config(**values)


def _derive_target(values: dict[str, Any]) -> None:
    backend = values["backend"]
    values.setdefault("target", "trn2" if backend in NEURON_BACKENDS else None)
    if values.get("dtype", "auto") == "auto":
        values["dtype"] = "float32" if backend == "reference" else "bfloat16"


def _derive_shapes(values: dict[str, Any]) -> None:
    """Fill in the shapes of graphs: a plan's, or those of lists."""
    prefill_seqs = min(DEFAULT_MAX_NUM_PREFILL_SEQS, values["max_num_seqs"])
    values.setdefault("max_num_prefill_seqs", prefill_seqs)
    if isinstance(values["buckets"], PlanFile):
        _refuse_lists(values)
        values.update(planned_lists(values["buckets"]))
    else:
        _derive_lists(values)


def _refuse_lists(values: Mapping[str, Any]) -> None:
    for key in BUCKET_LISTS:
        if key in values:
            refuse(key, "is written, and buckets is a plan", "set only one of them")


def _derive_lists(values: dict[str, Any]) -> None:
    """Fill in the bucket lists; the limit of context lists joins what was written."""
    max_num_seqs, max_model_len = values["max_num_seqs"], values["max_model_len"]
    max_tokens = min(values["max_num_batched_tokens"], max_model_len)
    for key, axis, limit in (
        ("num_batched_tokens_buckets", TOKENS, max_tokens),
        ("num_seqs_buckets", SEQS, max_num_seqs),
    ):
        if key not in values:
            values[key] = _spaced(key, axis, limit, values["buckets"])
    for key in ("prefill_context_length_buckets", "decode_context_length_buckets"):
        values[key] = (*values.get(key, ()), max_model_len)


def _spaced(key: str, axis: Axis, limit: int, buckets: str) -> tuple[int, ...]:
    try:
        return SPACING[buckets](axis, limit)
    except ValueError as error:
        fits = (
            f"a plan has at most {MAX_NUM_GRAPHS} graphs: write the list, or set buckets to "
            "exponential or powers_of_two"
        )
        refuse(key, f"with buckets: {buckets}, {error}", fits)
