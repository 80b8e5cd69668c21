import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from noria.runtime.config import Config, config_rows, load_config, parse_config
from noria.runtime.errors import ConfigError
from noria.runtime.sampling_params import SamplingParams
from noria.runtime.schema import SettingRow

INLINE = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "max_position_embeddings": 4096,
    "seed": 3,
}
FEATURES = [
    "greedy",
    "top_k_top_p",
    "penalties",
    "logit_bias",
    "structured_output",
    "logprobs",
    "prompt_logprobs",
]
SAMPLING = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.floats(0, 10),
        "top_k": st.none() | st.integers(-1, 10**7),
        "top_p": st.floats(0, 1, exclude_min=True),
        "min_p": st.floats(0, 1),
        "n": st.integers(1, 16384),
        "repetition_penalty": st.floats(0.5, 2),
        "presence_penalty": st.floats(-2, 2),
        "frequency_penalty": st.floats(-2, 2),
        "logit_bias": st.none()
        | st.dictionaries(st.integers(0, 60) | st.just("61"), st.floats(-100, 100), max_size=3),
        "min_tokens": st.just(0) | st.just(1),
        "stop": st.text(min_size=1) | st.lists(st.text(min_size=1), max_size=2),
        "include_stop_str_in_output": st.booleans(),
        "bad_words": st.lists(st.text(min_size=1), max_size=2),
        "bad_word_ids": st.lists(st.lists(st.integers(0, 60), min_size=1), max_size=2),
        "skip_special_tokens": st.booleans(),
        "logprobs": st.none() | st.integers(0, 20),
        "prompt_logprobs": st.none() | st.integers(0, 20),
        "structured_output": st.none() | st.sampled_from([{"regex": "a"}, {"choice": ["a"]}]),
        "max_tokens": st.none() | st.integers(1, 4096),
        "seed": st.none() | st.integers(0, 2**64 - 1),
        "stop_token_ids": st.lists(st.integers(0, 60), max_size=4),
        "ignore_eos": st.booleans(),
    },
)
PLAIN = {
    "tokenizer": st.none() | st.just("tokenizer.json"),
    "dtype": st.sampled_from(["auto", "bfloat16", "float32"]),
    "backend": st.sampled_from(["cpu", "reference"]),
    "block_size": st.integers(1, 128),
    "buckets": st.sampled_from(["powers_of_two", "exponential", "linear"]),
    "tensor_parallel_size": st.just(1),
    "num_threads": st.none() | st.integers(1, 64),
    "sampling": SAMPLING,
    "sampler_features": st.permutations(FEATURES),
    "seed": st.integers(0, 2**64 - 1),
}


def ascending(draw: st.DrawFn, high: int, low: int = 1) -> list[int]:
    return sorted(draw(st.sets(st.integers(low, high), min_size=1, max_size=5)))


@st.composite
def valid_settings(draw: st.DrawFn) -> dict[str, Any]:
    """Any subset of the settings, with values that fit each other and the defaults."""
    found: dict[str, Any] = {"model": draw(st.sampled_from(["smollm2-135m", INLINE]))}
    found |= draw(st.fixed_dictionaries({}, optional=PLAIN))
    if "sampling" in found:
        found["sampler_features"] = draw(st.permutations(FEATURES))
    limits = {"max_model_len": (4, 4096), "max_num_seqs": (1, 64)}
    limits["max_num_batched_tokens"] = (1, 8192)
    for key, (low, high) in limits.items():
        if draw(st.booleans()):
            found[key] = draw(st.integers(low, high))
    max_model_len, max_num_seqs = found.get("max_model_len", 2048), found.get("max_num_seqs", 8)
    max_tokens = min(max_model_len, found.get("max_num_batched_tokens", 2048))
    lists = {
        "max_num_prefill_seqs": lambda: draw(st.integers(1, max_num_seqs)),
        "num_batched_tokens_buckets": lambda: sorted({*ascending(draw, max_tokens), max_tokens}),
        "num_seqs_buckets": lambda: sorted({*ascending(draw, max_num_seqs), max_num_seqs}),
        "prefill_context_length_buckets": lambda: ascending(draw, max_model_len - 1),
        "decode_context_length_buckets": lambda: ascending(draw, max_model_len - 1, low=2),
    }
    found |= {key: make() for key, make in lists.items() if draw(st.booleans())}
    pool = draw(st.sampled_from([{}, {"num_blocks": 64}, {"kv_cache_memory": "512MiB"}]))
    return found | pool


@hypothesis_settings(deadline=None, max_examples=50)
@given(valid_settings())
def test_any_subset_of_valid_settings_round_trips(settings: dict[str, Any]) -> None:
    config = parse_config(settings)
    mapping = config.to_mapping()

    assert parse_config(mapping) == config
    assert parse_config(yaml.safe_load(yaml.safe_dump(mapping))) == config


@hypothesis_settings(deadline=None, max_examples=50)
@given(valid_settings())
def test_written_settings_are_kept_and_lists_end_with_their_limits(
    settings: dict[str, Any],
) -> None:
    config = parse_config(settings)

    mapping = config.to_mapping()
    for key in settings.keys() - {"dtype", "kv_cache_memory", "sampling"}:
        assert mapping[key] == settings[key]
    assert config.sampling == SamplingParams(**settings.get("sampling", {}))
    max_step_tokens = min(config.max_num_batched_tokens, config.max_model_len)
    assert config.num_batched_tokens_buckets[-1] == max_step_tokens
    assert config.num_seqs_buckets[-1] == config.max_num_seqs
    assert config.prefill_context_length_buckets[-1] == config.max_model_len
    assert config.decode_context_length_buckets[-1] == config.max_model_len


def test_one_setting_is_enough_and_all_others_are_resolved() -> None:
    assert parse_config({"model": "x"}) == Config(
        model="x",
        tokenizer=None,
        backend="cpu",
        target=None,
        dtype="bfloat16",
        kv_cache_dtype="auto",
        max_model_len=2048,
        max_num_seqs=8,
        max_num_batched_tokens=2048,
        max_num_prefill_seqs=8,
        block_size=32,
        num_blocks="auto",
        kv_cache_memory_bytes=None,
        buckets="powers_of_two",
        num_batched_tokens_buckets=(128, 256, 512, 1024, 2048),
        num_seqs_buckets=(1, 2, 4, 8),
        prefill_context_length_buckets=(2048,),
        decode_context_length_buckets=(2048,),
        tensor_parallel_size=1,
        scheduling_policy="fcfs",
        compiled=None,
        compile="auto",
        num_threads=None,
        sampler_features=("greedy", "top_k_top_p"),
        max_logprobs=20,
        sampling=SamplingParams(),
        seed=0,
    )


@pytest.mark.parametrize(
    ("backend", "dtype", "target"),
    [
        ("cpu", "bfloat16", None),
        ("reference", "float32", None),
        ("neuron-sim", "bfloat16", "trn2"),
        ("neuron", "bfloat16", "trn2"),
    ],
)
def test_dtype_and_target_follow_from_the_backend(
    backend: str, dtype: str, target: str | None
) -> None:
    config = parse_config({"model": "x", "backend": backend, "dtype": "auto"})

    assert (config.dtype, config.target) == (dtype, target)


@pytest.mark.parametrize(
    ("policy", "tokens", "seqs"),
    [
        ("powers_of_two", (128, 256, 512, 600), (1, 2, 4, 8, 12)),
        ("exponential", (128, 256, 384, 600), (1, 4, 8, 12)),
        ("linear", (128, 256, 512, 600), (1, 8, 12)),
    ],
)
def test_lists_that_are_not_written_follow_the_spacing_rule(
    policy: str, tokens: tuple[int, ...], seqs: tuple[int, ...]
) -> None:
    limits = {"max_model_len": 600, "max_num_seqs": 12}

    config = parse_config({"model": "x", "buckets": policy, **limits})

    assert config.num_batched_tokens_buckets == tokens
    assert config.num_seqs_buckets == seqs


@pytest.mark.parametrize(("max_num_seqs", "expected"), [(4, 4), (8, 8), (64, 8)])
def test_a_prefill_step_packs_up_to_eight_requests(max_num_seqs: int, expected: int) -> None:
    config = parse_config({"model": "x", "max_num_seqs": max_num_seqs})

    assert config.max_num_prefill_seqs == expected


def test_later_changes_of_the_given_mapping_do_not_reach_the_config() -> None:
    model: dict[str, object] = dict(INLINE)
    config = parse_config({"model": model})

    model["hidden_size"] = 7

    assert config.model == INLINE


def test_a_file_is_named_in_its_errors(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text("model: x\nmax_num_seqs: on\n")

    with pytest.raises(ConfigError) as caught:
        load_config(path)

    assert str(caught.value).startswith(f"{path}: max_num_seqs: is true (a boolean); must be ")


def test_a_file_is_read_like_its_mapping(tmp_path: Path) -> None:
    path = tmp_path / "good.yaml"
    path.write_text("model: x\nmax_num_seqs: 4\n")

    assert load_config(path) == parse_config({"model": "x", "max_num_seqs": 4})


def test_checking_a_configuration_imports_no_torch() -> None:
    program = (
        "import sys\n"
        "from noria.runtime.config import parse_config\n"
        f"parse_config({{'model': {INLINE!r}}})\n"
        "print('torch' in sys.modules, 'numpy' in sys.modules)\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert done.stdout == "False False\n"


def test_the_table_of_settings_covers_every_key_in_order() -> None:
    rows = config_rows()
    mapping = parse_config({"model": "x"}).to_mapping()

    assert [row.key for row in rows if "." not in row.key] == list(mapping)
    assert [row.key for row in rows if "." in row.key] == [
        f"sampling.{field.name}" for field in fields(SamplingParams)
    ]
    assert all(row.kind and row.default and row.meaning for row in rows)


def test_a_row_says_type_default_and_meaning() -> None:
    rows = {row.key: row for row in config_rows()}

    assert rows["block_size"] == SettingRow(
        "block_size", "an integer from 1 to 128", "32", "tokens of a KV block"
    )
    assert rows["sampling.top_p"].default == "1.0"
    assert rows["sampling.ignore_eos"].default == "false"
    assert rows["sampler_features"].default == "[greedy, top_k_top_p]"
    assert rows["num_blocks"].kind == "an integer from 2 to 2**31 - 1 or auto"
