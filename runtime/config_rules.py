"""What must be true of several settings together; each rule raises the one-line ConfigError."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod

from ..bucketing import MAX_NUM_GRAPHS, PlanFile
from .errors import ConfigError, ModelError
from .models.inline import INLINE_KEYS, read_inline
from .sampler_features import FEATURE_NEEDS
from .schema import entries
from .settings import MAX_INT32, NEURON_BACKENDS, Config
from .typed_reader import refuse
from .value_text import value_text

NEURON_TILE = 128
"""Rows of the on-chip memory: requests of a prefill step start at its multiples."""
NEURON_BLOCK_GROUP = 16
"""The NKI gather skips blocks only in counts that are a multiple of this."""


def check_rules(config: Config) -> None:
    """Apply every rule, in the order of the settings.

    Raises:
        ConfigError: the first rule that does not hold.
    """
    for rule in RULES:
        rule(config)
    if not isinstance(config.buckets, PlanFile):
        for rule in LIST_RULES:
            rule(config)


def _check_names(config: Config) -> None:
    for key in ("model", "tokenizer"):
        if not getattr(config, key) and getattr(config, key) is not None:
            refuse(key, f"is empty ({getattr(config, key)!r})", "must name something")


def _check_inline_model(config: Config) -> None:
    """Check an architecture that is written into the configuration, and its positions."""
    if not isinstance(config.model, Mapping):
        return
    for key in config.model:
        if key in entries(Config) and key not in INLINE_KEYS:
            refuse(f"model.{key}", "unknown key", f"it belongs at the top level: {key}")
    try:
        architecture, _ = read_inline(config.model, "model")
    except ModelError as error:
        raise ConfigError(str(error)) from None
    positions = architecture.max_len
    if config.max_model_len > positions:
        is_scaled = positions != architecture.max_position_embeddings
        what = "reach with rope scaling" if is_scaled else "max_position_embeddings"
        fits = f"must be at most the model's {what} = {positions}"
        refuse("max_model_len", f"is {config.max_model_len}", fits)


def _check_target(config: Config) -> None:
    if config.target is not None and config.backend not in NEURON_BACKENDS:
        fits = f"leave it out, or set backend to one of {', '.join(NEURON_BACKENDS)}"
        refuse("target", f"is {config.target}, but backend {config.backend} has no targets", fits)


def _check_dtype(config: Config) -> None:
    if config.dtype == "float64" and config.backend != "reference":
        fits = "must be bfloat16 or float32, or set backend to reference"
        refuse("dtype", f"is float64, but backend is {config.backend}", fits)


def _check_kv_cache_dtype(config: Config) -> None:
    if config.kv_cache_dtype != "auto" and config.dtype == "float64":
        fits = "must be auto, or set dtype to bfloat16 or float32"
        refuse("kv_cache_dtype", f"is {config.kv_cache_dtype}, but dtype is float64", fits)


def _check_prefill_seqs(config: Config) -> None:
    count, limit = config.max_num_prefill_seqs, config.max_num_seqs
    if count > limit:
        refuse("max_num_prefill_seqs", f"is {count}", f"must be at most max_num_seqs = {limit}")


def _check_pool(config: Config) -> None:
    if config.num_blocks == "auto":
        return
    if config.kv_cache_memory_bytes is not None:
        problem = f"is set, and num_blocks is {config.num_blocks}"
        refuse("kv_cache_memory", problem, "set only one of them")
    num_slots = config.num_blocks * config.block_size
    if num_slots > MAX_INT32:
        fits = f"num_blocks * block_size must be at most {MAX_INT32}, the largest int32"
        refuse("num_blocks", f"is {config.num_blocks}, which makes {num_slots} slots", fits)


def _check_token_buckets(config: Config) -> None:
    limit = min(config.max_num_batched_tokens, config.max_model_len)
    name = f"min(max_num_batched_tokens, max_model_len) = {limit}"
    _check_last("num_batched_tokens_buckets", config.num_batched_tokens_buckets, limit, name)


def _check_seq_buckets(config: Config) -> None:
    limit = config.max_num_seqs
    _check_last("num_seqs_buckets", config.num_seqs_buckets, limit, f"max_num_seqs = {limit}")


def _check_context_buckets(config: Config) -> None:
    limit = config.max_model_len
    for key in ("prefill_context_length_buckets", "decode_context_length_buckets"):
        sizes = getattr(config, key)
        largest = max(sizes[:-1], default=0)
        if largest >= limit:
            fits = f"must be below max_model_len = {limit}, which is always a bucket"
            refuse(key, f"lists {largest}", fits)
    if config.decode_context_length_buckets[0] < 2:
        fits = "must be at least 2: a decode step has a prompt token and a new one"
        refuse("decode_context_length_buckets", "lists 1, which no step can need", fits)


def _check_num_graphs(config: Config) -> None:
    """Refuse plans that nobody can compile, before they are made."""
    lists = {
        "prefill": ("num_batched_tokens_buckets", "prefill_context_length_buckets"),
        "decode": ("num_seqs_buckets", "decode_context_length_buckets"),
    }
    num_sizes = {key: len(getattr(config, key)) for keys in lists.values() for key in keys}
    num_graphs = {phase: prod(num_sizes[key] for key in keys) for phase, keys in lists.items()}
    if sum(num_graphs.values()) > MAX_NUM_GRAPHS:
        phase = max(num_graphs, key=lambda name: num_graphs[name])
        key, other = sorted(lists[phase], key=lambda name: -num_sizes[name])
        problem = f"{num_sizes[key]} sizes and {num_sizes[other]} of {other}"
        fits = f"a plan has at most {MAX_NUM_GRAPHS} graphs"
        refuse(key, f"{problem} make {num_graphs[phase]} {phase} graphs", fits)


def _check_parallel(config: Config) -> None:
    size = config.tensor_parallel_size
    if size != 1:
        refuse("tensor_parallel_size", f"is {size}, which is not built yet", "must be 1")


def _check_sampler_features(config: Config) -> None:
    features = config.sampler_features
    if len(set(features)) != len(features):
        refuse("sampler_features", f"lists a name twice: {', '.join(features)}", "list each once")
    if "greedy" not in features:
        refuse("sampler_features", "lacks greedy", "must hold greedy, which padded rows use")
    for need in FEATURE_NEEDS:
        if need.feature not in features and need.applies(config.sampling):
            value = value_text(getattr(config.sampling, need.setting))
            fits = f"add {need.feature} to sampler_features, or set it to {need.off}"
            refuse(f"sampling.{need.setting}", f"is {value}, which needs {need.feature}", fits)


def _check_logprobs(config: Config) -> None:
    for key in ("logprobs", "prompt_logprobs"):
        count = getattr(config.sampling, key) or 0
        if count > config.max_logprobs:
            fits = f"must be at most max_logprobs = {config.max_logprobs}"
            refuse(f"sampling.{key}", f"is {value_text(count)}", fits)


def _check_neuron(config: Config) -> None:
    """Apply what the NKI kernels ask of shapes, on any neuron backend."""
    if config.backend not in NEURON_BACKENDS:
        return
    backend = f"on backend {config.backend}"
    if NEURON_TILE % config.block_size:
        fits = f"must be a power of two up to {NEURON_TILE} {backend}"
        refuse("block_size", f"is {config.block_size}", fits)
    if config.num_blocks != "auto" and config.num_blocks % NEURON_BLOCK_GROUP:
        fits = f"must be a multiple of {NEURON_BLOCK_GROUP} {backend}"
        refuse("num_blocks", f"is {config.num_blocks}", fits)
    limit_key = min(("max_num_batched_tokens", "max_model_len"), key=lambda k: getattr(config, k))
    _check_tiles(limit_key, (getattr(config, limit_key),), backend)


def _check_neuron_lists(config: Config) -> None:
    if config.backend not in NEURON_BACKENDS:
        return
    backend = f"on backend {config.backend}"
    _check_tiles("num_batched_tokens_buckets", config.num_batched_tokens_buckets, backend)
    for key in ("prefill_context_length_buckets", "decode_context_length_buckets"):
        _check_tiles(key, getattr(config, key)[:-1], backend)


def _check_last(key: str, sizes: tuple[int, ...], limit: int, limit_text: str) -> None:
    """Require that the largest bucket is the limit: less leaves steps without a graph."""
    if sizes[-1] > limit:
        problem = f"lists {sizes[-1]}, which no step can fill"
        refuse(key, problem, f"the last must be {limit_text}")
    if sizes[-1] < limit:
        refuse(key, f"ends with {sizes[-1]}", f"the last must be {limit_text}")


def _check_tiles(key: str, sizes: tuple[int, ...], backend: str) -> None:
    for size in sizes:
        if size % NEURON_TILE:
            verb = "is" if len(sizes) == 1 and not key.endswith("_buckets") else "lists"
            refuse(key, f"{verb} {size}", f"must be a multiple of {NEURON_TILE} {backend}")


RULES: tuple[Callable[[Config], None], ...] = (
    _check_names,
    _check_inline_model,
    _check_target,
    _check_dtype,
    _check_kv_cache_dtype,
    _check_prefill_seqs,
    _check_pool,
    _check_parallel,
    _check_sampler_features,
    _check_logprobs,
    _check_neuron,
)
LIST_RULES: tuple[Callable[[Config], None], ...] = (
    _check_token_buckets,
    _check_seq_buckets,
    _check_context_buckets,
    _check_num_graphs,
    _check_neuron_lists,
)
"""Of bucket lists; a plan has rules of its own, see ``plan_rules``."""
