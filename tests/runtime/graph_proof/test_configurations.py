"""What shipped configurations are found to be, and that no graph of theirs is left out."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import get_args

import pytest

from noria.runtime.compiled_set.tracing import Recipe, list_graphs
from noria.runtime.config import Config, load_config, parse_config
from noria.runtime.errors import BackendError, ConfigError
from noria.runtime.graph_proof.configuration import for_neuron, prove_configuration
from noria.runtime.graph_proof.operator_table import STATES, operator_table
from noria.runtime.models.sizes import read_sizes_of
from noria.runtime.settings import SamplerFeature

CONFIGS = Path(str(files("noria.configs")))


def shipped(name: str, **changes: object) -> Config:
    return parse_config(load_config(CONFIGS / name).to_mapping() | changes)


def test_every_graph_of_an_engine_is_captured() -> None:
    config = shipped("tiny-neuron-sim.yaml")
    recipe = Recipe(config, read_sizes_of(config.model), None, (48,))

    proof = prove_configuration(config, lambda *_: None)

    assert {graph.name for graph in proof.graphs} == {graph.name for graph in list_graphs(recipe)}
    assert {graph.name for graph in proof.graphs} >= {"copy_blocks_g0_s2", "decode_s1_c256"}


def test_progress_names_every_graph_and_ends() -> None:
    calls: list[tuple[str, int, int]] = []

    proof = prove_configuration(shipped("tiny-neuron-sim.yaml"), lambda *call: calls.append(call))

    names = [graph.name for graph in proof.graphs]
    assert calls == [(name, at, len(names)) for at, name in enumerate([*names, "done"])]


def test_a_configuration_of_another_backend_is_proved_as_one_of_neuron() -> None:
    config = for_neuron(shipped("smollm2-135m-cpu.yaml"))

    assert (config.backend, config.target, config.dtype) == ("neuron", "trn2", "bfloat16")


def test_shapes_that_the_backend_does_not_take_are_named() -> None:
    with pytest.raises(ConfigError, match=r"as backend: neuron, target: trn2: .*lists 64; must"):
        for_neuron(shipped("tiny-cpu.yaml"))


def test_old_generations_are_refused() -> None:
    with pytest.raises(BackendError, match=r"target: inf2: native torch-neuronx supports trn2"):
        for_neuron(shipped("tiny-neuron-sim.yaml", target="inf2"))


def test_auto_blocks_do_not_depend_on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    config = shipped("tiny-neuron-sim.yaml", num_blocks="auto")
    monkeypatch.setattr("noria.runtime.kv_cache.free_memory_bytes", lambda: 1)

    proof = prove_configuration(config, lambda *_: None)

    assert proof.num_blocks == (2 * 256 // 16 + 1,)


def test_states_of_the_table_are_those_that_are_counted() -> None:
    table = operator_table()

    assert set(table.sources) == set(STATES)
    for evidence in table.states.values():
        assert list(evidence) == sorted(set(evidence), key=STATES.index)
        assert len(evidence) == 1 or not {"kernel", "unverified"} & set(evidence)


ALL_FEATURES = list(get_args(SamplerFeature))
SMALL: dict[str, dict[str, object]] = {
    "tiny-neuron-sim.yaml": {},
    "tiny-cpu.yaml": {"num_batched_tokens_buckets": [128, 256], "sampler_features": ALL_FEATURES},
    "tiny-gemma3-cpu.yaml": {"num_batched_tokens_buckets": [128]},
}
LARGE = [
    "development.yaml",
    "llama3-8b-trn2.yaml",
    "production.yaml",
    "smollm2-135m-cpu.yaml",
    "smollm2-135m-sampling.yaml",
]


def broken(config: Config) -> set[tuple[str, str]]:
    violations = prove_configuration(config, lambda *_: None).violations
    return {(one.rule, one.line.partition(":")[0]) for one in violations}


@pytest.mark.parametrize("name", SMALL)
def test_a_small_configuration_is_proved(name: str) -> None:
    assert broken(shipped(name, **SMALL[name], target="trn3", backend="neuron")) == set()


def test_of_small_configurations_one_has_a_cache_that_trn2_refuses() -> None:
    found = {name: broken(shipped(name, **changes)) for name, changes in SMALL.items()}

    fp8 = {("fp8-format", "")}
    assert found == {name: fp8 if "gemma3" in name else set() for name in SMALL}


@pytest.mark.long
@pytest.mark.parametrize("name", LARGE)
def test_a_large_configuration_is_proved(name: str) -> None:
    assert broken(shipped(name)) == set()
