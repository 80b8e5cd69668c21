"""Every ready-made configuration parses, plans and says what its comments say."""

from importlib.resources import files
from math import prod
from typing import get_args

import pytest

from noria.bucketing import BucketPlan
from noria.runtime.config import Config, parse_config
from noria.runtime.models.architecture import expected_tensors
from noria.runtime.models.inline import read_inline
from noria.runtime.planning import bucket_plan, plan_limits
from noria.runtime.settings import SamplerFeature
from noria.runtime.yaml_reader import parse_yaml

TEXTS = {
    resource.name: resource.read_text(encoding="utf-8")
    for resource in files("noria.configs").iterdir()
    if resource.name.endswith(".yaml")
}
NAMES = sorted(TEXTS)


def load(name: str) -> Config:
    return parse_config(parse_yaml(TEXTS[name], source=name), source=name)


def plan(name: str) -> BucketPlan:
    config = load(name)
    prefill_tile = 128 if config.target else 1
    return bucket_plan(config, plan_limits(config, prefill_tile=prefill_tile))


def num_graphs(name: str) -> int:
    return len(plan(name).buckets)


def test_these_files_ship() -> None:
    assert NAMES == [
        "development.yaml",
        "llama3-8b-trn2.yaml",
        "production.yaml",
        "smollm2-135m-cpu.yaml",
        "smollm2-135m-sampling.yaml",
        "tiny-cpu.yaml",
        "tiny-gemma3-cpu.yaml",
        "tiny-neuron-sim.yaml",
    ]


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_file_parses_and_round_trips(name: str) -> None:
    config = load(name)

    assert parse_config(config.to_mapping()) == config


@pytest.mark.parametrize("name", NAMES)
def test_every_prompt_within_the_model_limit_fits_a_prefill_step_or_runs_in_chunks(
    name: str,
) -> None:
    config = load(name)

    is_whole = config.num_batched_tokens_buckets[-1] == config.max_model_len
    assert is_whole == (name != "tiny-gemma3-cpu.yaml")


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_file_explains_itself(name: str) -> None:
    lines = TEXTS[name].splitlines()

    assert lines[0].startswith("# ")
    assert sum("#" in line for line in lines) >= 5
    assert TEXTS[name].isascii()
    assert max(map(len, lines)) <= 100


def test_development_has_one_bucket_per_dimension() -> None:
    assert num_graphs("development.yaml") == 2


def test_production_has_several_buckets_per_dimension() -> None:
    config = load("production.yaml")

    assert len(config.num_batched_tokens_buckets) > 3
    assert len(config.num_seqs_buckets) > 3
    assert len(config.decode_context_length_buckets) > 1


def test_the_demonstration_compiles_few_graphs_and_is_greedy() -> None:
    assert num_graphs("smollm2-135m-cpu.yaml") == 8
    assert load("smollm2-135m-cpu.yaml").sampling.is_greedy


def test_the_configuration_of_the_examples_has_every_sampler_feature() -> None:
    config = load("smollm2-135m-sampling.yaml")

    assert config.sampler_features == get_args(SamplerFeature)
    assert num_graphs("smollm2-135m-sampling.yaml") == 5


def test_the_tiny_model_needs_no_download_and_compiles_four_graphs() -> None:
    config = load("tiny-cpu.yaml")

    assert not isinstance(config.model, str)
    assert num_graphs("tiny-cpu.yaml") == 4


def test_the_small_gemma_has_two_kinds_of_layers_and_an_fp8_cache() -> None:
    config = load("tiny-gemma3-cpu.yaml")
    assert not isinstance(config.model, str)

    architecture, _ = read_inline(config.model)

    assert [kind.window for kind in architecture.layers] == [32, 32, None] * 2
    assert config.kv_cache_dtype == "fp8_e4m3"
    assert num_graphs("tiny-gemma3-cpu.yaml") == 4


def test_the_simulated_model_needs_no_download_and_no_device() -> None:
    config = load("tiny-neuron-sim.yaml")

    assert not isinstance(config.model, str)
    assert (config.backend, config.target, config.dtype) == ("neuron-sim", "trn2", "float32")
    assert all(size % 128 == 0 for size in config.num_batched_tokens_buckets)
    assert num_graphs("tiny-neuron-sim.yaml") == 4


def test_the_written_architecture_is_llama_3_8b() -> None:
    config = load("llama3-8b-trn2.yaml")
    assert not isinstance(config.model, str)

    architecture, _ = read_inline(config.model)

    num_weights = sum(prod(shape) for shape in expected_tensors(architecture).values())
    assert num_weights == 8_030_261_248
    assert (config.backend, config.target) == ("neuron", "trn2")
