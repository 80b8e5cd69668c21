"""How many blocks the caches of an engine have: as configured, of its set, or what fits."""

from __future__ import annotations

from .assembly import kv_groups
from .compiled_set.folder import SetFolder
from .config import Config
from .errors import ConfigError
from .kv_cache import CacheSize, check_memory, size_cache
from .models.architecture import Architecture


def resolve_cache_size(
    config: Config, architecture: Architecture, *, reserved_bytes: int = 0
) -> CacheSize:
    """Find the numbers of blocks, once, and check that there is memory for them now.

    Args:
        config: with ``num_blocks``, or with what it follows from.
        architecture: of the model.
        reserved_bytes: memory that weights will take, where they are not read yet.

    Raises:
        ConfigError: there is too little memory.
    """
    groups = kv_groups(config, architecture)
    if config.num_blocks != "auto":
        size = CacheSize((config.num_blocks,) * len(groups), "as configured")
    else:
        _check_device_memory(config)
        size = size_cache(
            groups,
            max_num_seqs=config.max_num_seqs,
            max_model_len=config.max_model_len,
            max_query_len=config.num_batched_tokens_buckets[-1],
            memory_bytes=config.kv_cache_memory_bytes,
            reserved_bytes=reserved_bytes,
        )
    check_memory(size, groups, reserved_bytes)
    return size


def cache_size_of(
    config: Config, architecture: Architecture, folder: SetFolder | None
) -> CacheSize:
    """Return the numbers of blocks of an engine whose graphs come from a set, if from one.

    ``num_blocks: auto`` is what the set was compiled with; a number in the configuration stands.

    Raises:
        ConfigError: there is too little memory.
    """
    groups = kv_groups(config, architecture)
    is_auto = config.num_blocks == "auto"
    if folder is None or not is_auto or len(folder.manifest.num_blocks) != len(groups):
        return resolve_cache_size(config, architecture)
    size = CacheSize(folder.manifest.num_blocks, f"of the compiled set {folder.path}")
    check_memory(size, groups)
    return size


def _check_device_memory(config: Config) -> None:
    """Refuse to size a cache on a device by the memory of its host."""
    if config.backend == "neuron" and config.kv_cache_memory_bytes is None:
        raise ConfigError(
            "num_blocks: auto needs kv_cache_memory on backend neuron: the memory of a device is "
            "not measured"
        )
