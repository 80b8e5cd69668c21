"""The type of stored keys and values, and the scales of an FP8 one."""

from __future__ import annotations

import logging

import torch

from .config import Config
from .errors import ModelError
from .models.kv_scales import KVScales, read_kv_scales
from .models.sources import LoadedModel

LOG = logging.getLogger(__name__)
STORED = {"fp8_e4m3": torch.float8_e4m3fn}


def cache_dtype(config: Config) -> torch.dtype:
    """Return what keys and values are stored as: the dtype of activations, or FP8."""
    dtype: torch.dtype = STORED.get(config.kv_cache_dtype) or getattr(torch, config.dtype)
    return dtype


def cache_scales(config: Config, source: LoadedModel) -> tuple[KVScales, ...] | None:
    """Return the scales of each layer of an FP8 cache, None for another.

    A model without scales gets 1.0, and a warning: what is beyond 448 is then cut off, and small
    values are coarse.

    Raises:
        ModelError: a scale of the checkpoint cannot be used.
    """
    if config.kv_cache_dtype == "auto":
        return None
    try:
        found = read_kv_scales(source.tensors, source.architecture)
    except ModelError as error:
        raise ModelError(f"kv_cache_dtype: {config.kv_cache_dtype}: {error}") from None
    missing = [index for index, scales in enumerate(found) if scales is None]
    if missing:
        where = "any layer" if len(missing) == len(found) else f"{len(missing)} layers"
        LOG.warning(
            "kv_cache_dtype: %s, but the model has no k_scale and v_scale for %s (first: layer "
            "%d); 1.0 is used there, and results may be poor",
            config.kv_cache_dtype,
            where,
            missing[0],
        )
    return tuple(scales or KVScales() for scales in found)
