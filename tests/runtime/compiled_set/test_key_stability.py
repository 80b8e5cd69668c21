"""Case E04: a key is the same in every process, wherever it runs and whatever is around it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from package_copies import ROOT, copy_built_kernels, copy_package
from safetensors.torch import save_file
from tiny_families import CASES, SIZES

from noria.runtime.compiled_set.key import key_differences
from noria.runtime.models.families import read_architecture
from noria.runtime.models.random_weights import RandomTensors

PRINT_KEYS = """
import json, sys
import noria.runtime
from noria.runtime.assembly import kv_groups, limits_of
from noria.runtime.backends import load_kernels
from noria.runtime.compiled_set.identity import graph_key, set_identity, set_key
from noria.runtime.compiled_set.key import key_digest
from noria.runtime.config import parse_config
from noria.runtime.kv_cache import CacheSize, sized
from noria.runtime.kv_cache_dtype import cache_scales
from noria.runtime.models.sources import open_model
from noria.runtime.planning import bucket_plan

config = parse_config({
    "model": sys.argv[1], "backend": sys.argv[2], "dtype": "float32", "max_model_len": 128,
    "num_blocks": 48, "kv_cache_dtype": "fp8_e4m3", "sampler_features": ["greedy", "top_k_top_p"],
})
kernels = load_kernels(config.backend, config.target)
source = open_model(config.model)
groups = kv_groups(config, source.architecture)
groups = sized(groups, CacheSize((48,) * len(groups), "as configured"))
identity = set_identity(
    config, kernels, architecture=source.architecture, groups=groups,
    kv_scales=cache_scales(config, source),
)
keys = {bucket.label: graph_key(bucket, identity.layout)
        for bucket in bucket_plan(config, limits_of(config, kernels)).buckets}
keys["set"] = set_key(identity, kernels)
print(json.dumps({"keys": keys, "digest": key_digest(keys), "file": noria.runtime.__file__}))
"""


@dataclass(frozen=True)
class Place:
    """Where a process runs: everything in it is its own."""

    folder: Path
    model: Path
    environment: dict[str, str]

    def keys(self, backend: str) -> dict[str, Any]:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", PRINT_KEYS, str(self.model), backend],
            cwd=self.folder,
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        result: dict[str, Any] = json.loads(done.stdout)
        return result


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """This source tree and kernel cache, and a model on disk."""
    folder = tmp_path_factory.mktemp("here")
    model = folder / "model"
    model.mkdir()
    config = SIZES | CASES["gemma2"] | {"max_position_embeddings": 128}
    tensors = dict(RandomTensors(read_architecture(config), seed=3))
    scales = {f"model.layers.{i}.self_attn.k_scale": torch.tensor(0.1 + i) for i in range(4)}
    values = {f"model.layers.{i}.self_attn.v_scale": torch.tensor(0.3 + i) for i in range(4)}
    save_file(tensors | scales | values, model / "model.safetensors")
    (model / "config.json").write_text(json.dumps(config))
    return Place(folder, model, {"PYTHONHASHSEED": "1", "NORIA_UNRELATED": "1"})


@pytest.fixture(scope="module")
def elsewhere(here: Place, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """Copies of sources, model and built kernels; another user, locale, seed of hashes, level."""
    folder = tmp_path_factory.mktemp("elsewhere")
    copy_package(folder / "code")
    copy_built_kernels(folder / "cache")
    shutil.copytree(here.model, folder / "moved" / "weights")
    environment = {
        "PYTHONPATH": str(folder / "code"),
        "PYTHONHASHSEED": "4321",
        "HOME": str(folder),
        "XDG_CACHE_HOME": str(folder / "cache"),
        "TMPDIR": str(folder),
        "USER": "somebody",
        "LC_ALL": "C",
        "TZ": "Asia/Tokyo",
        "COLUMNS": "40",
        "LOGLEVEL": "DEBUG",
        "RANK": "3",
        "LOCAL_RANK": "3",
        "OMP_NUM_THREADS": "2",
    }
    return Place(folder, folder / "moved" / "weights", environment)


@pytest.mark.parametrize("backend", ["cpu", "reference", "neuron-sim"])
def test_e04_another_process_folder_user_and_environment_has_the_same_keys(
    backend: str, here: Place, elsewhere: Place
) -> None:
    """E04: working directory, HOME, hash seed, sources, caches and model moved."""
    first, second = here.keys(backend), elsewhere.keys(backend)

    assert second["file"].startswith(str(elsewhere.folder))
    assert first["file"] != second["file"]
    assert key_differences(first["keys"], second["keys"]) == []
    assert first["digest"] == second["digest"]
    assert len(first["keys"]) > 2


def test_e04_a_key_names_no_folder_user_process_or_time(here: Place) -> None:
    """E04: nothing that changes from start to start is in it."""
    result = here.keys("cpu")
    text = json.dumps(result["keys"])

    for part in (str(ROOT), str(here.folder), str(Path.home()), here.model.name + "/"):
        assert part not in text
    assert re.search(r"(?<![\w.])/\w+", text) is None
    assert not {"pid", "time", "date", "host", "user"} & set(re.findall(r'"(\w+)":', text))
