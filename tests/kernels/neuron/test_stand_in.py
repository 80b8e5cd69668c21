"""`backend: neuron` from end to end on a stand-in for the vendor's packages, and its mutations."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from noria.runtime import LLM, SamplingParams

HERE = Path(__file__).parent
CONFIG = HERE.parents[2] / "configs" / "tiny-neuron-sim.yaml"
PROMPTS = [[1, 2, 3], [7] * 20, [3] * 130]
VERSIONS = {"torch-neuronx": "2.13.3.0", "neuronx-cc": "2.28.7631.0", "nki": "0.7.0"}
Patch = tuple[str, str, str]
OPERATORS, VENDOR = "noria.kernels.neuron.operators", "noria.kernels.neuron.vendor"
ENVIRONMENT = "noria.kernels.neuron.environment"
SMALL: dict[str, Any] = {
    "max_model_len": 128,
    "max_num_seqs": 1,
    "max_num_batched_tokens": 128,
    "num_batched_tokens_buckets": [128],
    "num_seqs_buckets": [1],
    "num_blocks": 16,
}


def settings_of(**changes: Any) -> dict[str, Any]:
    return yaml.safe_load(CONFIG.read_text()) | {"backend": "neuron"} | changes


class Result:
    """What a process of the stand-in did."""

    def __init__(self, done: subprocess.CompletedProcess[str]) -> None:
        self.errors = done.stderr if done.returncode else ""
        self.error = self.errors.strip().split("\n")[-1] if done.returncode else None
        self.found: dict[str, Any] = {} if self.error else json.loads(done.stdout)


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Result]:
    """Return what runs `backend: neuron` in a process where the stand-in's packages are there."""
    for name, version in VERSIONS.items():
        folder = tmp_path / "site" / f"{name.replace('-', '_')}-{version}.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}")

    def run(
        patches: Sequence[Patch] = (),
        *,
        do: str = "",
        sets: str = "",
        variables: Mapping[str, str] | None = None,
        **changes: Any,
    ) -> Result:
        given = {
            "settings": settings_of(**changes),
            "prompts": PROMPTS,
            "patches": patches,
            "do": do,
        }
        path = [str(tmp_path / "site"), str(HERE), str(HERE.parent), *sys.path]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(path), "NORIA_SETS": sets}
        command = [sys.executable, str(HERE / "stand_in_run.py"), json.dumps(given)]
        return Result(
            subprocess.run(
                command, env=environment | dict(variables or {}), capture_output=True, text=True
            )
        )

    return run


@pytest.fixture(scope="module")
def simulated() -> list[list[int]]:
    """The tokens of `backend: neuron-sim`."""
    llm = LLM(settings_of(backend="neuron-sim"))
    params = SamplingParams(temperature=0, max_tokens=4)
    return [list(one.token_ids) for one in llm.generate(PROMPTS, params)]


def test_it_gives_the_tokens_of_the_simulated_target(run, simulated) -> None:
    result = run()

    assert result.error is None
    assert result.found["tokens"] == simulated
    found = result.found
    assert found["compiled"] == found["compilations"] == len(found["names"]) == 9
    assert found["environment"]["NEURON_LOGICAL_NC_CONFIG"] == "1"
    assert found["environment"]["NEURON_RT_NUM_CORES"] == "1"
    assert {n: found["fingerprint"][n] for n in VERSIONS} == VERSIONS


def test_the_steps_that_a_device_is_to_run_first_run_on_the_stand_in(run) -> None:
    result = run(do="steps", **SMALL)

    assert result.error is None
    assert len(result.found["problems"]) == 8
    assert [name for name, problems in result.found["problems"].items() if problems] == []


def test_a_set_of_one_process_spares_the_next_the_compiler(run, tmp_path: Path) -> None:
    sets = str(tmp_path / "sets")
    filled = run(sets=sets, **SMALL)
    loaded = run(sets=sets, compile="never", **SMALL)

    assert (filled.error, loaded.error) == (None, None)
    assert filled.found["compiled"] == filled.found["compilations"] == 5
    assert loaded.found["compiled"] == loaded.found["compilations"] == 0
    assert loaded.found["tokens"] == filled.found["tokens"]
    assert loaded.found["names"] == filled.found["names"]


def test_a_worker_without_weights_traces_the_graphs_of_the_engine(run) -> None:
    """The compiler knows every one of them: it makes no file."""
    result = run(do="trace without weights", **SMALL)

    assert result.error is None
    assert len(result.found["traced"]) == result.found["compiled"] == 5
    assert set(result.found["traced"].values()) == {0}


def test_a_set_is_for_the_packages_and_flags_that_made_it(run, tmp_path: Path) -> None:
    sets = str(tmp_path / "sets")
    run(sets=sets, **SMALL)
    other = run(sets=sets, compile="never", variables={"NEURON_CC_FLAGS": "-O2"}, **SMALL)

    assert "the local set is not there" in other.error


def test_a_file_that_appears_when_a_set_is_loaded_is_refused(run, tmp_path: Path) -> None:
    """The compiler names the graphs of another process otherwise than those of the first."""
    sets = str(tmp_path / "sets")
    run(sets=sets, **SMALL)
    stale = run(sets=sets, compile="never", do="stale names", **SMALL)

    assert re.search(r"does not load: the compiler made \w\w/.*\.neff, which", stale.error)


@pytest.mark.parametrize(
    ("do", "error"),
    [
        ("another shape", r"size mismatch at index 0"),
        ("compile beside a graph", r"ffff\.neff was compiled after warm-up; nothing may be then"),
        ("no device", r"BackendError: backend: neuron: torch-neuronx finds no Neuron device"),
    ],
)
def test_what_must_not_happen_is_an_error(run, do: str, error: str) -> None:
    result = run(do=do, **SMALL)

    assert re.search(error, result.error)


@pytest.mark.parametrize(
    ("patch", "error"),
    [
        ((OPERATORS, "mutates_args=set(operator", "mutated_args=set(operator"), "unexpected keyw"),
        ((OPERATORS, "Operator(kv_write, CACHES)", "Operator(kv_write)"), "changed k_cache and"),
        ((OPERATORS, "v_new: Tensor, slots: Tensor) -> N", "v_new: Tensor, slots) -> N"), "slots"),
        ((VENDOR, "dynamic=False)", "dynamic=True)"), "a shape is not static"),
        ((VENDOR, "fullgraph=True, d", "options={'level': 1}, d"), "options that no page lists"),
        ((VENDOR, "_neuron().synchronize()", "_neuron().synchronise()"), "synchronise"),
        ((ENVIRONMENT, 'LOGICAL_CORES = "1"', 'LOGICAL_CORES = "2"'), "NCC_EVRF066"),
    ],
    ids=["keyword", "mutation", "hints", "dynamic", "options", "name", "cores"],
)
def test_a_wrong_call_is_found(run, patch: Patch, error: str) -> None:
    result = run([patch], **SMALL)

    assert re.search(error, result.errors)


def test_a_cache_is_not_sized_by_the_memory_of_the_host(run) -> None:
    result = run(**SMALL | {"num_blocks": "auto"})

    assert "ConfigError: num_blocks: auto needs kv_cache_memory on backend neuron" in result.error


def test_an_fp8_cache_is_refused_where_torch_cannot_name_its_format(run) -> None:
    result = run(**SMALL | {"kv_cache_dtype": "fp8_e4m3"})

    assert "kv_cache_dtype: fp8_e4m3 is not run on backend neuron with target trn2" in result.error


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("NEURON_LOGICAL_NC_CONFIG", "2", "NEURON_LOGICAL_NC_CONFIG=2 is set, but .*CONFIG=1 is"),
        ("NEURON_CC_FLAGS", "-O1 --lnc=2", "NEURON_CC_FLAGS=-O1 --lnc=2 is set, but --lnc=1 is"),
    ],
)
def test_a_variable_that_contradicts_is_refused(run, name: str, value: str, text: str) -> None:
    result = run(variables={name: value}, **SMALL)

    assert re.search(f"BackendError: backend: neuron: {text}", result.error)
