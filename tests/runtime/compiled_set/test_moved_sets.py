"""A compiled set runs where nothing is left of the place that it was compiled in."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from command_forks import FOUR_GRAPHS
from package_copies import ROOT, copy_built_kernels, copy_package
from safetensors.torch import save_file
from small_sets import contents, files_of

from noria.runtime import LLM, SamplingParams
from noria.runtime.models.families import read_architecture
from noria.runtime.models.random_weights import RandomTensors

RUN = """
import json, sys
import noria.runtime
from noria.runtime import LLM, SamplingParams
settings, prompts = map(json.loads, sys.argv[1:])
llm = LLM(settings)
greedy = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
print(json.dumps({
    "num_compilations": llm.loaded.graphs.num_compilations,
    "tokens": [output.token_ids for output in llm.generate(prompts, greedy)],
    "file": noria.runtime.__file__,
}))
"""
GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
PROMPTS = [[1, 2, 3], [9] * 20]
MODEL = {"model_type": "llama", **FOUR_GRAPHS["model"]}  # type: ignore[dict-item]


class Place:
    """A package, a home with what is built for it, and a working directory."""

    def __init__(self, folder: Path, path: str) -> None:
        self.folder, self.model, self.home = folder, folder / "model", folder / "home"
        environment = {"HOME": str(self.home), "XDG_CACHE_HOME": str(self.home / "cache")}
        code = copy_package(folder / "code")
        self.environment = {**environment, "PYTHONPATH": str(code), "PATH": path}

    def run(self, *arguments: object) -> str:
        done = subprocess.run(
            [sys.executable, *map(str, arguments)],
            env=self.environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def settings(self, **changes: str) -> dict[str, Any]:
        return {**FOUR_GRAPHS, "model": str(self.model), **changes}


@pytest.fixture
def first(tmp_path: Path) -> Place:
    """Where the set is compiled."""
    place = Place(tmp_path / "first", os.environ["PATH"])
    copy_built_kernels(place.home / "cache")
    place.model.mkdir()
    (place.model / "config.json").write_text(json.dumps(MODEL))
    save_file(
        dict(RandomTensors(read_architecture(MODEL), seed=3)), place.model / "model.safetensors"
    )
    (place.folder / "tiny.yaml").write_text(yaml.safe_dump(place.settings()))
    return place


@pytest.fixture
def second(tmp_path: Path) -> Place:
    """Where it runs: there is no compiler, and nothing is built."""
    return Place(tmp_path / "second", "")


def tokens_of(settings: dict[str, Any]) -> list[list[int]]:
    num_threads = torch.get_num_threads()
    outputs = LLM(settings).generate(PROMPTS, GREEDY)
    torch.set_num_threads(num_threads)
    return [list(output.token_ids) for output in outputs]


def compile_folder(first: Place, second: Place) -> None:
    assert "4 done" in first.run("-m", "noria.runtime", "compile", "tiny.yaml", "-o", "set")
    (first.folder / "set").rename(second.folder / "moved")


def bundle_local_set(first: Place, second: Place) -> None:
    first.run("-m", "noria.runtime", "compile", "tiny.yaml")
    (path,) = (first.home / "cache" / "noria" / "sets").iterdir()
    first.run("-m", "noria.runtime", "bundle", path, "set.tar.gz")
    first.run("-m", "noria.runtime", "unbundle", "set.tar.gz", second.folder / "moved")


@pytest.mark.parametrize("ship", [compile_folder, bundle_local_set], ids=lambda s: s.__name__)
def test_e04_a_set_runs_after_its_source_tree_cache_home_and_model_were_moved_away(
    first: Place, second: Place, tmp_path: Path, ship: Callable[[Place, Place], None]
) -> None:
    """E04: nothing is compiled in another process, folder and home, and nothing is added."""
    plain = tokens_of(first.settings())
    ship(first, second)
    first.model.rename(second.model)
    first.folder.rename(tmp_path / "away")
    before = contents(second.folder / "moved")

    settings = second.settings(compiled=str(second.folder / "moved"), compile="never")
    found = json.loads(second.run("-c", RUN, json.dumps(settings), json.dumps(PROMPTS)))

    assert not first.folder.exists()
    assert Path(found["file"]).is_relative_to(second.folder)
    assert found["num_compilations"] == 0
    assert found["tokens"] == plain
    assert contents(second.folder / "moved") == before
    assert not second.home.exists()
    check_no_place(second.folder / "moved", first.folder)


def check_no_place(path: Path, place: Path) -> None:
    """Assert that no file that an engine reads names a place that there was."""
    files = files_of(path)
    del files["config.yaml"]  # it says what was asked for, the path of the model too
    assert len(files) > 4
    for data in files.values():
        assert str(place).encode() not in data
        assert str(ROOT).encode() not in data
