"""The table of documented signatures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from noria.kernels.nki.signatures import MODULES, TABLE, bind_call, documented, extract

STUBS = {
    "__init__.py": "def jit(fn=None, **kwargs): ...\n",
    "isa/__init__.py": "class mode(Enum):\n    a = 1\n\ndef copy(dst: T, *, m=mode.a): ...\n",
    "language/__init__.py": (
        "class Tensor:\n"
        "    shape: tuple = ...\n"
        "    def ap(self, pattern, offset: int | None = None): ...\n"
        "    @property\n"
        "    def size(self): ...\n"
        "sbuf: Region = ...\n"
        "average = ...\n"
    ),
}


def test_the_table_names_its_version_and_modules() -> None:
    table = json.loads(TABLE.read_text())

    assert table["nki"] == "0.6.0"
    assert table["neuron_sdk"] == "2.32.0"
    assert tuple(table["modules"]) == MODULES


def test_documented_names_have_their_parameters_and_defaults() -> None:
    isa, language = documented()["nki.isa"], documented()["nki.language"]

    dma_copy = isa.functions["dma_copy"].parameters
    assert list(dma_copy) == ["dst", "src", "priority", "oob_mode", "dge_mode", "engine", "name"]
    assert dma_copy["oob_mode"].default == "oob_mode.error"
    assert dma_copy["src"].default is dma_copy["src"].empty
    assert isa.classes["oob_mode"].attributes == {"error", "skip"}
    assert "ap" in language.classes["NkiTensor"].methods
    assert language.class_of("tile_size") is language.classes["_TileSize"]


def test_a_call_binds_to_the_names_of_its_parameters() -> None:
    memset = documented()["nki.isa"].functions["memset"]

    assert bind_call(memset, ["a"], {"value": 0}) == {"dst": "a", "value": 0}
    with pytest.raises(TypeError, match="missing a required argument: 'value'"):
        bind_call(memset, ["a"], {})


def test_stubs_become_names_kinds_and_defaults(tmp_path: Path) -> None:
    for name, text in STUBS.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)

    modules = json.loads(extract(tmp_path))["modules"]

    assert modules["nki"]["functions"] == {"jit": [["fn", "positional", "None"], ["kwargs"] * 2]}
    copy = [["dst", "positional"], ["m", "keyword", "mode.a"]]
    assert modules["nki.isa"]["functions"] == {"copy": copy}
    assert modules["nki.isa"]["classes"] == {"mode": {"methods": {}, "attributes": ["a"]}}
    tensor = modules["nki.language"]["classes"]["Tensor"]
    assert list(tensor["methods"]) == ["ap"]
    assert tensor["attributes"] == ["shape", "size"]
    assert modules["nki.language"]["values"] == {"sbuf": "Region", "average": None}
