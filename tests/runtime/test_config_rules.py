"""Settings that are right one by one and impossible together: B06, B09, B11."""

from collections.abc import Callable

import pytest

from noria.runtime.config import Config, parse_config
from noria.runtime.errors import ConfigError
from noria.runtime.yaml_reader import parse_yaml

ARCHITECTURE = (
    "vocab_size: 61, hidden_size: 32, intermediate_size: 48, "
    "num_hidden_layers: 1, num_attention_heads: 4"
)

REFUSED = {
    "num_seqs_buckets: [1, 2, 4]": (  # B06
        "num_seqs_buckets: ends with 4; the last must be max_num_seqs = 8"
    ),
    "num_seqs_buckets: [1, 8, 16]": (  # B11
        "num_seqs_buckets: lists 16, which no step can fill; the last must be max_num_seqs = 8"
    ),
    "max_num_seqs: 33\nnum_seqs_buckets: [1, 34]": (  # B11
        "num_seqs_buckets: lists 34, which no step can fill; the last must be max_num_seqs = 33"
    ),
    "max_model_len: 512\nmax_num_batched_tokens: 2048\nnum_batched_tokens_buckets: [512, 2048]": (
        "num_batched_tokens_buckets: lists 2048, which no step can fill; "  # B06
        "the last must be min(max_num_batched_tokens, max_model_len) = 512"
    ),
    "max_num_batched_tokens: 256\nnum_batched_tokens_buckets: [128]": (  # B06
        "num_batched_tokens_buckets: ends with 128; "
        "the last must be min(max_num_batched_tokens, max_model_len) = 256"
    ),
    "max_num_batched_tokens: 1000\nnum_batched_tokens_buckets: [1024]": (  # B11
        "num_batched_tokens_buckets: lists 1024, which no step can fill; "
        "the last must be min(max_num_batched_tokens, max_model_len) = 1000"
    ),
    "decode_context_length_buckets: [512, 2048]": (
        "decode_context_length_buckets: lists 2048; "
        "must be below max_model_len = 2048, which is always a bucket"
    ),
    "prefill_context_length_buckets: [512, 4096]": (
        "prefill_context_length_buckets: lists 4096; "
        "must be below max_model_len = 2048, which is always a bucket"
    ),
    "decode_context_length_buckets: [1, 512]": (
        "decode_context_length_buckets: lists 1, which no step can need; "
        "must be at least 2: a decode step has a prompt token and a new one"
    ),
    "buckets: linear\nmax_num_seqs: 2147483647": (
        "num_seqs_buckets: with buckets: linear, 268435457 sizes from 1 to 2147483647 in steps of "
        "8 are more than 4096; a plan has at most 4096 graphs: write the list, or set buckets to "
        "exponential or powers_of_two"
    ),
    "buckets: linear\nmax_num_batched_tokens: 2000000\nmax_model_len: 2000000": (
        "num_batched_tokens_buckets: with buckets: linear, 7814 sizes from 128 to 2000000 in steps "
        "of 256 are more than 4096; a plan has at most 4096 graphs: write the list, or set buckets "
        "to exponential or powers_of_two"
    ),
    f"max_num_seqs: 4096\nnum_seqs_buckets: {list(range(1, 4097))}": (
        "num_seqs_buckets: 4096 sizes and 1 of decode_context_length_buckets make 4096 decode "
        "graphs; a plan has at most 4096 graphs"
    ),
    f"prefill_context_length_buckets: {list(range(1, 900))}": (
        "prefill_context_length_buckets: 900 sizes and 5 of num_batched_tokens_buckets make 4500 "
        "prefill graphs; a plan has at most 4096 graphs"
    ),
    "max_num_prefill_seqs: 9": ("max_num_prefill_seqs: is 9; must be at most max_num_seqs = 8"),
    "tensor_parallel_size: 2": "tensor_parallel_size: is 2, which is not built yet; must be 1",
    "target: trn2": (
        "target: is trn2, but backend cpu has no targets; "
        "leave it out, or set backend to one of neuron-sim, neuron"
    ),
    "dtype: float64": (
        "dtype: is float64, but backend is cpu; "
        "must be bfloat16 or float32, or set backend to reference"
    ),
    "num_blocks: 100\nkv_cache_memory: 1GiB": (
        "kv_cache_memory: is set, and num_blocks is 100; set only one of them"
    ),
    "num_blocks: 100000000": (
        "num_blocks: is 100000000, which makes 3200000000 slots; "
        "num_blocks * block_size must be at most 2147483647, the largest int32"
    ),
    "sampler_features: [greedy]": (
        "sampling.temperature: is 1.0, which needs top_k_top_p; "
        "add top_k_top_p to sampler_features, or set it to 0"
    ),
    "sampling: {frequency_penalty: 0.5}": (
        "sampling.frequency_penalty: is 0.5, which needs penalties; "
        "add penalties to sampler_features, or set it to 0"
    ),
    "sampling: {logit_bias: {5: 1}}": (
        "sampling.logit_bias: is {5: 1.0}, which needs logit_bias; "
        "add logit_bias to sampler_features, or set it to null"
    ),
    "sampler_features: [greedy, top_k_top_p, logprobs]\nsampling: {logprobs: 21}": (
        "sampling.logprobs: is 21; must be at most max_logprobs = 20"
    ),
    "sampler_features: [top_k_top_p]": (
        "sampler_features: lacks greedy; must hold greedy, which padded rows use"
    ),
    "sampler_features: [greedy, top_k_top_p, greedy]": (
        "sampler_features: lists a name twice: greedy, top_k_top_p, greedy; list each once"
    ),
    'tokenizer: ""': "tokenizer: is empty (''); must name something",
}

REFUSED_ON_NEURON = {
    "decode_context_length_buckets: [100]": (
        "decode_context_length_buckets: lists 100; must be a multiple of 128 on backend neuron"
    ),
    "prefill_context_length_buckets: [128, 200]": (
        "prefill_context_length_buckets: lists 200; must be a multiple of 128 on backend neuron"
    ),
    "num_batched_tokens_buckets: [64, 2048]": (
        "num_batched_tokens_buckets: lists 64; must be a multiple of 128 on backend neuron"
    ),
    "max_model_len: 1000": "max_model_len: is 1000; must be a multiple of 128 on backend neuron",
    "max_num_batched_tokens: 1000": (
        "max_num_batched_tokens: is 1000; must be a multiple of 128 on backend neuron"
    ),
    "block_size: 48": "block_size: is 48; must be a power of two up to 128 on backend neuron",
    "num_blocks: 100": "num_blocks: is 100; must be a multiple of 16 on backend neuron",
    "dtype: float64": (
        "dtype: is float64, but backend is neuron; "
        "must be bfloat16 or float32, or set backend to reference"
    ),
}

REFUSED_MODELS = {
    "vocab_size: 61": "model: num_attention_heads must be a positive integer, not None",
    "hiden_size: 64": "model.hiden_size: unknown key; did you mean hidden_size?",
    "max_num_seqs: 4": "model.max_num_seqs: unknown key; it belongs at the top level: max_num_seqs",
    "seed: no": "model.seed: is False; must be an integer from 0 to 2**64 - 1",
    f"{ARCHITECTURE}, num_key_value_heads: 3": (
        "model: num_attention_heads 4 is not a multiple of num_key_value_heads 3"
    ),
    f"{ARCHITECTURE}, max_position_embeddings: 512, rope_scaling: {{type: linear, factor: 2.0}}": (
        "max_model_len: is 2048; must be at most the model's reach with rope scaling = 1024"
    ),
    f"{ARCHITECTURE}, max_position_embeddings: 512": (
        "max_model_len: is 2048; must be at most the model's max_position_embeddings = 512"
    ),
    f"{ARCHITECTURE}, rms_norm_eps: tiny": (
        "model: rms_norm_eps must be a number above 0, not 'tiny'"
    ),
}


Refusal = Callable[[str], str]


def read(text: str) -> Config:
    return parse_config(parse_yaml(text, source="c.yaml"), source="c.yaml")


def refusal(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        read(text)
    return str(caught.value)


@pytest.mark.parametrize(("lines", "message"), REFUSED.items(), ids=lambda text: text[:40])
def test_settings_that_contradict_each_other_are_refused(
    refusal_by_check: Refusal, lines: str, message: str
) -> None:
    assert refusal(f"model: x\n{lines}") == f"c.yaml: {message}"
    assert refusal_by_check(f"model: x\n{lines}") == message


@pytest.mark.parametrize("size", [2, 8])
def test_k08_more_than_one_device_is_refused_whatever_the_heads(
    refusal_by_check: Refusal, size: int
) -> None:
    """Nothing is split yet, so no number of heads fits: neither 4 over 2 kv heads nor 4 over 4."""
    for num_kv_heads in (2, 4):
        model = f"model: {{{ARCHITECTURE}, num_key_value_heads: {num_kv_heads}}}"

        message = refusal_by_check(f"{model}\nmax_model_len: 64\ntensor_parallel_size: {size}")

        assert message == f"tensor_parallel_size: is {size}, which is not built yet; must be 1"


@pytest.mark.parametrize(
    ("lines", "message"), REFUSED_ON_NEURON.items(), ids=lambda text: text[:40]
)
def test_shapes_that_neuron_kernels_cannot_take_are_refused(
    refusal_by_check: Refusal, lines: str, message: str
) -> None:
    assert refusal(f"model: x\nbackend: neuron\n{lines}") == f"c.yaml: {message}"
    assert refusal_by_check(f"model: x\nbackend: neuron\n{lines}") == message


@pytest.mark.parametrize("lines", [text for text in REFUSED_ON_NEURON if "dtype" not in text])
def test_the_same_shapes_are_free_on_the_cpu(lines: str) -> None:
    assert read(f"model: x\n{lines}").backend == "cpu"


@pytest.mark.parametrize(("keys", "message"), REFUSED_MODELS.items(), ids=lambda text: text[-40:])
def test_an_inline_architecture_is_checked_without_weights(
    refusal_by_check: Refusal, keys: str, message: str
) -> None:
    assert refusal(f"model: {{{keys}}}") == f"c.yaml: {message}"
    assert refusal_by_check(f"model: {{{keys}}}") == message


def test_the_step_limit_may_exceed_the_model_limit_b06() -> None:
    text = "model: x\nmax_model_len: 512\nmax_num_batched_tokens: 2048\n"

    assert read(text).num_batched_tokens_buckets == (128, 256, 512)
    assert read(text + "num_batched_tokens_buckets: [512]").num_batched_tokens_buckets == (512,)


@pytest.mark.parametrize("target", ["trn1", "inf2", "trn2", "trn3"])
@pytest.mark.parametrize("backend", ["neuron", "neuron-sim"])
def test_every_generation_can_be_planned_for(backend: str, target: str) -> None:
    config = read(f"model: x\nbackend: {backend}\ntarget: {target}\nnum_blocks: 160")

    assert (config.backend, config.target) == (backend, target)


def test_float64_is_for_the_reference() -> None:
    assert read("model: x\nbackend: reference\ndtype: float64").dtype == "float64"
