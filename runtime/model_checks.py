"""What is refused before a model is made: settings that the model or free memory does not allow."""

from __future__ import annotations

import math

import torch

from ..kernels.kernel_set import KernelSet
from .config import Config
from .errors import ConfigError, ModelError, RequestError
from .models.architecture import Architecture, expected_tensors
from .models.sources import LoadedModel
from .process_limits import free_memory_bytes
from .request_texts import RequestTexts
from .sampling_state import check_bias

ROPE_BYTES = 4
"""Of one value of the rope table, which is float32."""
LOGIT_BYTES = 4


def check_model_len(config: Config, architecture: Architecture) -> None:
    """Refuse a ``max_model_len`` beyond the positions that the model and its rope reach."""
    if config.max_model_len > architecture.max_len:
        raise ConfigError(
            f"max_model_len: {config.max_model_len} exceeds the {architecture.max_len} positions "
            f"of the model (max_position_embeddings {architecture.max_position_embeddings}, and "
            "what its rope scaling makes of them)"
        )


def check_weights_fit(config: Config, architecture: Architecture) -> None:
    """Refuse a model that is larger than the memory that is free now, before anything is made.

    Counted are the weights in the configured dtype and the rope table, 4 bytes a value.
    """
    itemsize = getattr(torch, config.dtype).itemsize
    weights = sum(map(math.prod, expected_tensors(architecture).values())) * itemsize
    dims = sum(rope.rotary_dim(architecture.head_dim) for rope in architecture.ropes)
    table = config.max_model_len * dims * ROPE_BYTES
    free = free_memory_bytes()
    if weights + table > free:
        raise ConfigError(
            f"model: its weights in {config.dtype} and the rope table of max_model_len "
            f"{config.max_model_len} take {weights + table:,} bytes; {free:,} bytes of memory "
            "are free"
        )


def check_logits_fit(config: Config, architecture: Architecture) -> None:
    """Refuse as many requests as have no room for one row of logits each."""
    rows = max(config.max_num_seqs, config.max_num_prefill_seqs)
    logits = rows * architecture.vocab_size * LOGIT_BYTES
    free = free_memory_bytes()
    if logits > free:
        raise ConfigError(
            f"max_num_seqs: {config.max_num_seqs} rows of {architecture.vocab_size} logits take "
            f"{logits:,} bytes; {free:,} bytes of memory are free"
        )


def check_default_sampling(config: Config, source: LoadedModel) -> None:
    """Refuse settings under ``sampling`` that no request of this model can have.

    Raises:
        ConfigError: tokens that the model lacks, texts without a tokenizer, no valid grammar.
    """
    vocab_size = source.architecture.vocab_size
    end_token_ids = frozenset(source.eos_token_ids)
    texts = RequestTexts(
        source.tokenizer, vocab_size=vocab_size, end_token_ids=source.eos_token_ids
    )
    try:
        params = texts.read_params(config.sampling)
        check_bias(params, params.end_token_ids(end_token_ids), vocab_size)
        texts.constraint_maker(params)
    except RequestError as error:
        raise ConfigError(f"sampling.{error}") from None


def check_head_dim(config: Config, architecture: Architecture, kernels: KernelSet) -> None:
    """Refuse heads of a size that the kernels do not run."""
    head_dim, multiple = architecture.head_dim, kernels.head_dim_multiple
    if head_dim % multiple:
        raise ModelError(
            f"model: head_dim is {head_dim}; backend {config.backend} runs multiples of "
            f"{multiple} only, and backend reference any even one"
        )


def check_cache_dtype(config: Config) -> None:
    """Refuse an FP8 cache on trn2, where torch has no name for the FP8 that the device has."""
    if config.backend != "neuron" or config.kv_cache_dtype == "auto" or config.target == "trn3":
        return
    raise ConfigError(
        f"kv_cache_dtype: {config.kv_cache_dtype} is not run on backend neuron with target "
        f"{config.target}: its compiler refuses torch.float8_e4m3fn (NCC_EVRF051); take target "
        f"trn3, backend neuron-sim, or kv_cache_dtype: auto"
    )
