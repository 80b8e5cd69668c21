"""One line names file, key path, the value as read and what fits: B01, B03, B04, J04, I01, I03."""

from collections.abc import Callable

import pytest

from noria.runtime.config import Config, parse_config
from noria.runtime.errors import ConfigError
from noria.runtime.yaml_reader import parse_yaml

TOKENS = "an integer from 2 to 2**31 - 1"
SEQS = "an integer from 1 to 2**31 - 1"
SIZE = "an integer of at least 1"
MODEL = "a name, a path, or a mapping in config.json keys"
MEMORY = "a whole number of bytes or a size such as 512MiB or 2GiB"

UNKNOWN_KEYS = {  # B01
    "num_seq_buckets: [4]": "num_seq_buckets: unknown setting; did you mean num_seqs_buckets?",
    "num-seqs-buckets: [4]": "num-seqs-buckets: unknown setting; write num_seqs_buckets",
    "Max_Model_Len: 4": "Max_Model_Len: unknown setting; write max_model_len",
    "temperature: 0": (
        "temperature: unknown setting; it belongs under sampling: sampling.temperature"
    ),
    "top-k: 5": "top-k: unknown setting; it belongs under sampling: sampling.top_k",
    "hidden_size: 64": "hidden_size: unknown setting; it belongs under model: model.hidden_size",
    "ignore_eoss: true": "ignore_eoss: unknown setting; did you mean sampling.ignore_eos?",
    "sampling: {max_model_len: 4}": (
        "sampling.max_model_len: unknown setting; it belongs at the top level: max_model_len"
    ),
    "sampling: {temprature: 0}": (
        "sampling.temprature: unknown setting; did you mean sampling.temperature?"
    ),
    "neuron_config: {num_seqs_buckets: [4]}": (
        "neuron_config: unknown setting; its keys (num_seqs_buckets) belong at the top level"
    ),
    '"max_model_len\\n": 4': "'max_model_len\\n': unknown setting; write max_model_len",
    '"top_k\\e[31m": 4': "'top_k\\x1b[31m': unknown setting; did you mean sampling.top_k?",
    "7: 8": "7: the key is 7 (an integer); settings have names",
    "on: 8": "True: the key is true (a boolean); settings have names",
}

BUCKET_LISTS = {  # B03
    "num_batched_tokens_buckets: 128,256": (
        "num_batched_tokens_buckets: is '128,256' (a string); "
        "must be a list of integers: write [128, 256]"
    ),
    'num_batched_tokens_buckets: ["128", "256"]': (
        f"num_batched_tokens_buckets[0]: is '128' (a string); must be {SIZE}: write 128"
    ),
    "num_batched_tokens_buckets: 128": (
        "num_batched_tokens_buckets: is 128 (an integer); must be a list of integers: write [128]"
    ),
    "num_batched_tokens_buckets: 128 256": (
        "num_batched_tokens_buckets: is '128 256' (a string); "
        "must be a list of integers, like [128, 256]"
    ),
    "num_batched_tokens_buckets: []": (
        "num_batched_tokens_buckets: is an empty list; "
        "must hold at least one size, or leave the key out"
    ),
    "num_seqs_buckets: {1: 2}": (
        "num_seqs_buckets: is {1: 2} (a mapping); must be a list of integers, like [128, 256]"
    ),
    "num_seqs_buckets: yes": (
        "num_seqs_buckets: is true (a boolean); must be a list of integers, like [128, 256]"
    ),
    "num_seqs_buckets: [1, 4, 2]": "num_seqs_buckets: lists 2 after 4; must be ascending",
    "num_seqs_buckets: [1, 4, 4]": (
        "num_seqs_buckets: lists 4 twice; must be ascending, each size once"
    ),
    "num_seqs_buckets: [0, 8]": f"num_seqs_buckets[0]: is 0; must be {SIZE}",
    "num_seqs_buckets: [1, 8.0]": (
        f"num_seqs_buckets[1]: is 8.0 (a float); must be {SIZE}: write 8"
    ),
    "num_seqs_buckets: [true, 8]": (f"num_seqs_buckets[0]: is true (a boolean); must be {SIZE}"),
}

INTEGERS = {  # B04
    "max_model_len: 1e5": (f"max_model_len: is '1e5' (a string); must be {TOKENS}: write 100000"),
    'max_model_len: "2048"': (f"max_model_len: is '2048' (a string); must be {TOKENS}: write 2048"),
    "max_model_len: 5.0": f"max_model_len: is 5.0 (a float); must be {TOKENS}: write 5",
    "max_model_len: 5.5": f"max_model_len: is 5.5 (a float); must be {TOKENS}",
    "max_model_len: 1.0e+400": f"max_model_len: is inf (a float); must be {TOKENS}",
    "max_model_len: 1": f"max_model_len: is 1; must be {TOKENS}",
    "max_model_len: 3000000000": f"max_model_len: is 3000000000; must be {TOKENS}",
    f"max_model_len: 0x1{'0' * 4000}": (
        f"max_model_len: is a number of 16001 bits; must be {TOKENS}"
    ),
    "max_num_seqs: on": f"max_num_seqs: is true (a boolean); must be {SEQS}",
    "max_num_seqs:": f"max_num_seqs: has no value; must be {SEQS}",
    "max_num_seqs: [8]": f"max_num_seqs: is [8] (a list); must be {SEQS}",
    "block_size: 010": (
        "block_size: 010 (line 2) is a number in base 8 or 60 to YAML; "
        "write it without leading zeros or colons, or in quotes for text"
    ),
    "block_size: 129": "block_size: is 129; must be an integer from 1 to 128",
    "block_size: 1e5": "block_size: is '1e5' (a string); must be an integer from 1 to 128",
    "block_size: 2026-01-02": (
        "block_size: is 2026-01-02 (a date); must be an integer from 1 to 128"
    ),
    "num_threads: 0": f"num_threads: is 0; must be {SIZE}",
    "seed: -1": "seed: is -1; must be an integer from 0 to 2**64 - 1",
    "num_blocks: 1": f"num_blocks: is 1; must be {TOKENS} or auto",
    "num_blocks: many": f"num_blocks: is 'many' (a string); must be {TOKENS} or auto",
}

FEATURES = (
    "greedy, top_k_top_p, penalties, logit_bias, structured_output, logprobs, prompt_logprobs"
)
SAMPLING = {  # B04, I01, I03, J04
    "temperature: true": "temperature: is true (a boolean); must be a number",
    "temperature: .nan": "temperature: is nan (a float); must be a number",
    "temperature: .inf": "temperature: is inf (a float); must be a number",
    "temperature: nan": "temperature: is 'nan' (a string); must be a number",
    "temperature: hot": "temperature: is 'hot' (a string); must be a number",
    "temperature:": "temperature: has no value; must be a number",
    "temperature: -1": "temperature: is -1.0 (float); it must be a number from 0 to 3.4e38",
    "top_p: 1.1": "top_p: is 1.1 (float); it must be a number in (0, 1]",
    "top_k: -2": "top_k: is -2 (int); it must be an integer >= -1 (0 and -1: all tokens)",
    "min_p: 1.5": "min_p: is 1.5 (float); it must be a number in [0, 1]",
    "n: 0": "n: is 0 (int); it must be an integer in 1 .. 16384",
    "stop: 5": "stop: is 5 (an integer); must be a string or a list, each a string",
    "stop: ['']": "stop: is '' (str); it must hold texts that are not empty",
    "logit_bias: [5]": "logit_bias: is [5] (a list); must be a mapping",
    "logit_bias: {5: 101}": (
        "logit_bias: is 101 (int); it must be a mapping to numbers from -100 to 100"
    ),
    "bad_word_ids: [5]": ("bad_word_ids[0]: is 5 (an integer); must be a list, each an integer"),
    "structured_output: {xml: a}": (
        "structured_output: is {'xml': 'a'} (dict); "
        "it must be a mapping with exactly one of json, regex, choice, or None"
    ),
    "{min_tokens: 5, max_tokens: 4}": ("min_tokens: is 5; it must be at most max_tokens = 4"),
    "max_tokens: 0": "max_tokens: is 0 (int); it must be an integer >= 1, or None",
    "max_tokens: -1": "max_tokens: is -1 (int); it must be an integer >= 1, or None",
    'max_tokens: "5"': "max_tokens: is '5' (a string); must be an integer: write 5",
    "max_tokens: 5.0": "max_tokens: is 5.0 (a float); must be an integer: write 5",
    "stop_token_ids: 2": ("stop_token_ids: is 2 (an integer); must be a list, each an integer"),
    "stop_token_ids: [2, x]": "stop_token_ids[1]: is 'x' (a string); must be an integer",
    "stop_token_ids: [-2]": "stop_token_ids: is -2 (int); it must be token ids >= 0",
    "ignore_eos: 1": "ignore_eos: is 1 (an integer); must be true or false",
}

OTHER_TYPES = {
    "tokenizer: 5": "tokenizer: is 5 (an integer); must be a string",
    "sampling: greedy": "sampling: is 'greedy' (a string); must be a mapping of settings",
    "sampler_features: greedy": (
        f"sampler_features: is 'greedy' (a string); must be a list, each one of {FEATURES}"
    ),
    "sampler_features: [greedy, min_p]": (
        f"sampler_features[1]: is 'min_p' (a string); must be one of {FEATURES}"
    ),
    "backend: cuda": (
        "backend: is 'cuda' (a string); must be one of cpu, reference, neuron-sim, neuron"
    ),
    "dtype: bf16": ("dtype: is 'bf16' (a string); must be one of auto, bfloat16, float32, float64"),
    "buckets: pow2": (
        "buckets: pow2: no such file; must be one of powers_of_two, exponential, linear, "
        "or a plan: the path of its file, or its content"
    ),
    "target: trn9": "target: is 'trn9' (a string); must be one of trn1, inf2, trn2, trn3",
    "kv_cache_memory: 1GB": f"kv_cache_memory: is '1GB' (a string); must be {MEMORY}",
    "kv_cache_memory: 1.5": f"kv_cache_memory: is 1.5 (a float); must be {MEMORY}",
    "kv_cache_memory: 0": f"kv_cache_memory: is 0 (an integer); must be {MEMORY}",
    "kv_cache_memory: yes": f"kv_cache_memory: is true (a boolean); must be {MEMORY}",
}

WHOLE_FILES = {
    "": "top level: has no value; must be a mapping of settings",
    "- model": "top level: is ['model'] (a list); must be a mapping of settings",
    "some text": "top level: is 'some text' (a string); must be a mapping of settings",
    "max_num_seqs: 4": f"model: is missing; set it to {MODEL}",
    "model:": f"model: has no value; must be {MODEL}",
    "model: 7": f"model: is 7 (an integer); must be {MODEL}",
    "model: no": f"model: is false (a boolean); must be {MODEL}",
    'model: ""': "model: is empty (''); must name something",
    "model: {}": "model: is empty ({}); must name something",
}


Refusal = Callable[[str], str]


def read(text: str) -> Config:
    return parse_config(parse_yaml(text, source="c.yaml"), source="c.yaml")


def refusal(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        read(text)
    return str(caught.value)


@pytest.mark.parametrize(
    ("line", "message"),
    (UNKNOWN_KEYS | BUCKET_LISTS | INTEGERS | OTHER_TYPES).items(),
    ids=lambda text: text[:40],
)
def test_a_wrong_setting_is_one_line_that_says_what_fits(
    refusal_by_check: Refusal, line: str, message: str
) -> None:
    assert refusal(f"model: x\n{line}") == f"c.yaml: {message}"
    assert refusal_by_check(f"model: x\n{line}") == message


@pytest.mark.parametrize(("line", "message"), SAMPLING.items(), ids=lambda text: text[:40])
def test_a_wrong_sampling_default_is_named_with_its_section(
    refusal_by_check: Refusal, line: str, message: str
) -> None:
    assert refusal(f"model: x\nsampling:\n  {line}") == f"c.yaml: sampling.{message}"
    assert refusal_by_check(f"model: x\nsampling:\n  {line}") == f"sampling.{message}"


@pytest.mark.parametrize(("text", "message"), WHOLE_FILES.items(), ids=lambda text: text[:40])
def test_a_file_without_settings_or_model_is_refused(
    refusal_by_check: Refusal, text: str, message: str
) -> None:
    assert refusal(text) == f"c.yaml: {message}"
    assert refusal_by_check(text) == message


def test_an_unknown_key_that_is_near_no_name_shows_all_names_b01() -> None:
    message = refusal("model: x\nfrobnicate: true")

    assert message.startswith("c.yaml: frobnicate: unknown setting; the settings are model, ")
    assert message.endswith(", sampling, seed")


def test_the_first_error_of_the_file_is_the_one_reported() -> None:
    assert "bogus_one" in refusal("model: x\nbogus_one: 1\nmax_num_seqs: on\nbogus_two: 2")


def test_a_long_value_is_shortened_in_the_message() -> None:
    message = refusal(f"model: x\nmax_num_seqs: {'9x' * 5000}")

    assert "..." in message
    assert len(message) < 200


@pytest.mark.parametrize(
    ("written", "value"),
    [("1e-5", 1e-5), ("1.0e-5", 1e-5), ("2", 2.0), ("0", 0.0), ("'0.5'", 0.5), (".5", 0.5)],
)
def test_floats_take_integers_and_strings_that_spell_a_number_b04(
    written: str, value: float
) -> None:
    temperature = read(f"model: x\nsampling: {{temperature: {written}}}").sampling.temperature

    assert type(temperature) is float
    assert temperature == value


def test_integers_take_yaml_separators_b04() -> None:
    assert read("model: x\nmax_model_len: 1_000").max_model_len == 1000


@pytest.mark.parametrize("written", ["0", "-1", "null", "1", "10000000"])
def test_every_spelling_of_top_k_is_taken_i03(written: str) -> None:
    config = read(f"model: x\nsampling: {{top_k: {written}}}")

    assert config.sampling.top_k == (None if written == "null" else int(written))


@pytest.mark.parametrize(
    ("written", "num_bytes"),
    [("1048576", 2**20), ("512KiB", 2**19), ("512MiB", 2**29), ("2 GiB", 2**31), ("1TiB", 2**40)],
)
def test_memory_is_bytes_or_a_size_with_a_binary_unit(written: str, num_bytes: int) -> None:
    assert read(f"model: x\nkv_cache_memory: {written}").kv_cache_memory_bytes == num_bytes


def test_null_leaves_a_setting_out_whose_default_follows_from_others() -> None:
    settings = "\n".join(
        f"{key}: null"
        for key in (
            "target",
            "dtype",
            "tokenizer",
            "kv_cache_memory",
            "num_threads",
            "max_num_prefill_seqs",
            "num_seqs_buckets",
            "decode_context_length_buckets",
        )
    )

    assert read(f"model: x\n{settings}") == read("model: x")
