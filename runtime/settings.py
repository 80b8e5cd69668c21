"""The settings of an engine: names, types, defaults and meanings.

The names are vLLM Neuron's. ``config`` reads these from a file and ``config_rules`` holds what
must be true of several of them together.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

from ..bucketing import PlanFile
from .models.inline import INLINE_KEYS
from .plan_setting import BUCKET_LISTS, FITS, read_buckets
from .sampling_params import MAX_SEED, SamplingParams
from .schema import Absent, Setting, entries
from .typed_reader import read_memory_size, read_sizes

NEURON_BACKENDS = ("neuron-sim", "neuron")
MAX_INT32 = 2**31 - 1
"""Positions and slots are int32 inputs of every graph."""

Backend = Literal["cpu", "reference", "neuron-sim", "neuron"]
Dtype = Literal["bfloat16", "float32", "float64"]
WrittenDtype = Literal["auto", "bfloat16", "float32", "float64"]
KVCacheDtype = Literal["auto", "fp8_e4m3"]
Target = Literal["trn1", "inf2", "trn2", "trn3"]
Spacing = Literal["powers_of_two", "exponential", "linear"]
SchedulingPolicy = Literal["fcfs", "priority"]
Compile = Literal["auto", "never"]
SamplerFeature = Literal[
    "greedy",
    "top_k_top_p",
    "penalties",
    "logit_bias",
    "structured_output",
    "logprobs",
    "prompt_logprobs",
]

SIZES_FIT = "an ascending list of positive integers"
CONTEXTS_FIT = f"{SIZES_FIT} below max_model_len"
SAMPLING_MEANINGS = {
    "n": "samples to draw for a prompt, each with a seed of its own",
    "temperature": "0 is greedy; otherwise logits are divided by it",
    "top_k": "sample among this many largest logits; 0, -1 and null mean all",
    "top_p": "sample among the most probable tokens that reach this probability, in (0, 1]",
    "min_p": "sample among tokens at least this share as probable as the most probable one",
    "repetition_penalty": "above 1, tokens of prompt and output become less likely; 1 is off",
    "presence_penalty": "taken off the logits of tokens in the output, in [-2, 2]",
    "frequency_penalty": "taken off them once for each time they came, in [-2, 2]",
    "logit_bias": "token id to what is added to its logit, in [-100, 100]",
    "max_tokens": "most new tokens; null means as many as max_model_len leaves",
    "min_tokens": "no end token and no stop string before this many new tokens",
    "seed": "the same seed gives the same tokens in any batch; null: drawn from the engine's seed",
    "stop": "a text, or texts, that end the output, which is cut before them",
    "include_stop_str_in_output": "cut behind the stop string instead",
    "stop_token_ids": "tokens that end a request, besides the model's own end tokens",
    "ignore_eos": "go on after the model's end tokens",
    "bad_words": "texts that the output never holds, as the tokenizer would write them",
    "bad_word_ids": "lists of token ids that never follow each other in the output",
    "skip_special_tokens": "leave special tokens out of the text",
    "logprobs": "logprob of each token, and of this many most probable ones; at most max_logprobs",
    "prompt_logprobs": "the same for the tokens of the prompt, but the first",
    "structured_output": "what the output must match: one of json, regex and choice",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Every setting, resolved: no default is left to fill in later.

    ``config.parse_config`` and ``config.load_config`` make it, and only they validate it.

    The bucket lists of a plan are the sizes that its graphs have, although it has not a graph of
    every pair. The largest prefill step has ``num_batched_tokens_buckets[-1]`` tokens, which is
    less than ``max_num_batched_tokens`` where ``max_model_len`` is, or where a plan covers prompts
    with several chunks. Both context lists end with ``max_model_len``. ``kv_cache_memory_bytes``
    is None where it was not set; then, and if ``num_blocks`` is "auto", the pool holds
    ``max_num_seqs`` requests of full length.
    """

    model: Annotated[
        str | Mapping[str, object],
        Setting(
            "model folder, .gguf file, fetched name or hub id; or an architecture in config.json "
            "keys, whose weights are drawn at random from its `seed` (0)",
            fits="a name, a path, or a mapping in config.json keys",
            parts=dict.fromkeys(INLINE_KEYS, ""),
        ),
    ]
    tokenizer: Annotated[
        str | None, Setting("folder or hub id of the tokenizer", None, "the model's own")
    ]
    backend: Annotated[Backend, Setting("what runs the graphs", "cpu")]
    target: Annotated[
        Target | None,
        Setting(
            "device generation, for neuron and neuron-sim only",
            Absent.DERIVED,
            "trn2 for neuron backends",
        ),
    ]
    dtype: Annotated[
        Dtype,
        Setting(
            "type of weights and activations; float64 for the reference backend only",
            Absent.DERIVED,
            "auto: bfloat16, for the reference backend float32",
            written=WrittenDtype,
        ),
    ]
    kv_cache_dtype: Annotated[
        KVCacheDtype,
        Setting(
            "type of stored keys and values; auto: dtype; fp8_e4m3 takes a byte a value, scaled by "
            "k_scale and v_scale of the checkpoint, or by 1.0 with a warning",
            "auto",
        ),
    ]
    max_model_len: Annotated[
        int, Setting("most tokens of one request, prompt and output", 2048, low=2, high=MAX_INT32)
    ]
    max_num_seqs: Annotated[int, Setting("requests that run at once", 8, low=1, high=MAX_INT32)]
    max_num_batched_tokens: Annotated[
        int,
        Setting("tokens of one prefill step", 2048, low=1, high=MAX_INT32),
    ]
    max_num_prefill_seqs: Annotated[
        int,
        Setting(
            "requests that one prefill step may pack", Absent.DERIVED, "min(8, max_num_seqs)", low=1
        ),
    ]
    block_size: Annotated[int, Setting("tokens of a KV block", 32, low=1, high=128)]
    num_blocks: Annotated[
        int | Literal["auto"],
        Setting("KV blocks, the null block included", "auto", low=2, high=MAX_INT32),
    ]
    kv_cache_memory_bytes: Annotated[
        int | None,
        Setting(
            "memory for the KV cache, where num_blocks is auto",
            None,
            "what max_num_seqs requests of max_model_len need, at most half of free memory",
            key="kv_cache_memory",
            read=read_memory_size,
            fits="bytes, or a size such as 512MiB or 2GiB",
        ),
    ]
    buckets: Annotated[
        Spacing | PlanFile,
        Setting(
            "how bucket lists that are not written are spaced; or a plan made from traffic, in "
            "place of all lists",
            "powers_of_two",
            read=read_buckets,
            fits=FITS,
        ),
    ]
    num_batched_tokens_buckets: Annotated[
        tuple[int, ...],
        Setting(
            "token counts of prefill graphs; the last is "
            "min(max_num_batched_tokens, max_model_len)",
            Absent.DERIVED,
            "spaced by buckets, from 128",
            read=read_sizes,
            fits=SIZES_FIT,
        ),
    ]
    num_seqs_buckets: Annotated[
        tuple[int, ...],
        Setting(
            "request counts of decode graphs; the last is max_num_seqs",
            Absent.DERIVED,
            "spaced by buckets, from 1",
            read=read_sizes,
            fits=SIZES_FIT,
        ),
    ]
    prefill_context_length_buckets: Annotated[
        tuple[int, ...],
        Setting(
            "context lengths of prefill graphs, besides max_model_len",
            Absent.DERIVED,
            "none",
            read=read_sizes,
            fits=CONTEXTS_FIT,
        ),
    ]
    decode_context_length_buckets: Annotated[
        tuple[int, ...],
        Setting(
            "context lengths of decode graphs, besides max_model_len",
            Absent.DERIVED,
            "none",
            read=read_sizes,
            fits=CONTEXTS_FIT,
        ),
    ]
    compiled: Annotated[
        str | None,
        Setting(
            "folder of a compiled set (noria compile -o) that graphs are loaded from; none: the "
            "local set, which fills itself",
            None,
        ),
    ]
    compile: Annotated[
        Compile,
        Setting("whether what the set lacks may be compiled: never, or auto", "auto"),
    ]
    tensor_parallel_size: Annotated[
        int, Setting("devices that share the model; only 1 works so far", 1, low=1)
    ]
    scheduling_policy: Annotated[
        SchedulingPolicy,
        Setting(
            "which request runs first: the one that came first, or the one of the smallest "
            "priority number",
            "fcfs",
        ),
    ]
    num_threads: Annotated[
        int | None, Setting("CPU threads of one graph", None, "torch's choice", low=1)
    ]
    sampler_features: Annotated[
        tuple[SamplerFeature, ...],
        Setting(
            "what samplers can do; a request that needs another feature is refused",
            ("greedy", "top_k_top_p"),
        ),
    ]
    max_logprobs: Annotated[
        int, Setting("most logprobs that a request may ask for, per token", 20, low=0, high=65536)
    ]
    sampling: Annotated[
        SamplingParams,
        Setting("defaults of requests", SamplingParams(), parts=SAMPLING_MEANINGS),
    ]
    seed: Annotated[
        int,
        Setting("base of the seeds of requests that bring none", 0, low=0, high=MAX_SEED),
    ]

    def to_mapping(self) -> dict[str, Any]:
        """Return the settings as plain data that ``parse_config`` turns into an equal Config."""
        mapping: dict[str, Any] = {}
        for key, entry in entries(Config).items():
            value = getattr(self, entry.name)
            if key in BUCKET_LISTS and isinstance(self.buckets, PlanFile):
                value = None
            elif key.endswith("_context_length_buckets"):
                value = value[:-1] or None
            mapping[key] = _plain(value)
        return mapping


def _plain(value: object) -> object:
    if isinstance(value, SamplingParams):
        return {name: _plain(part) for name, part in asdict(value).items()}
    if isinstance(value, PlanFile):
        value = value.to_mapping()
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return deepcopy(value)
