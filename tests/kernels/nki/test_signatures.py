"""The table of documented signatures, and the simulator against it."""

from __future__ import annotations

import importlib
import inspect
import json
import os
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from types import ModuleType

import pytest

from noria.kernels.nki.signatures import MODULES, TABLE, bind_call, documented, extract
from noria.kernels.nki.simulator import install
from noria.kernels.nki.simulator.tensor import NkiTensor

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


def test_what_was_read_in_a_later_sdk_replaces_what_was_read_before() -> None:
    nki, isa = documented()["nki"], documented()["nki.isa"]

    assert list(nki.functions["jit"].parameters)[1:3] == ["compile_config", "specialization_config"]
    assert list(isa.functions["activation"].parameters)[-2:] == ["engine", "name"]
    assert {isa.read_in[name] for name in ("activation", "tensor_copy_predicated")} == {"2.33"}
    assert isa.read_in["dma_copy"] == "2.32.0"
    assert set(isa.read_in) == set(isa.functions)


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


@pytest.mark.skipif(
    not os.environ.get("NKI_CONFORMANCE_DIR"), reason="NKI_CONFORMANCE_DIR names no folder"
)
def test_the_table_is_what_the_stubs_of_the_documentation_say() -> None:
    stubs = Path(os.environ["NKI_CONFORMANCE_DIR"]) / "aws-neuron-sdk/nki/api/nki"
    if not stubs.exists():
        pytest.skip(f"{stubs} is not there")

    assert TABLE.read_text(encoding="utf-8") == extract(stubs)


@pytest.fixture
def simulated() -> dict[str, ModuleType]:
    """Return the simulated modules; on a host with the real NKI there are none to compare."""
    if not install():
        pytest.skip("the real nki is installed")
    return {name: importlib.import_module(name) for name in MODULES}


def test_every_simulated_function_has_the_documented_parameters(
    simulated: dict[str, ModuleType],
) -> None:
    pairs = [
        (f"{module}.{name}", function, documented()[module].functions[name])
        for module, found in simulated.items()
        for name, function in functions_of(found).items()
        if name in documented()[module].functions
    ]

    assert len(pairs) > 40
    assert {n: text for n, f, s in pairs if (text := difference(inspect.signature(f), s))} == {}


def test_every_simulated_name_is_documented(simulated: dict[str, ModuleType]) -> None:
    undocumented = {
        f"{module}.{name}"
        for module, found in simulated.items()
        for name in functions_of(found)
        if not documented()[module].has(name)
    }

    assert undocumented == set()


def test_tensors_have_the_documented_methods(simulated: dict[str, ModuleType]) -> None:
    tensor = documented()["nki.language"].classes["NkiTensor"]
    methods = {name: s for name, s in tensor.methods.items() if not name.startswith("__")}

    found = {name: getattr(NkiTensor, name, None) for name in methods}

    assert "ap" in found
    different = {
        name: text
        for name, method in found.items()
        if method and (text := difference(inspect.signature(method), methods[name]))
    }
    assert different == {}


def test_enumerations_have_the_documented_members(simulated: dict[str, ModuleType]) -> None:
    isa = {
        name: value for name, value in vars(simulated["nki.isa"]).items() if isinstance(value, type)
    }
    enums = {name: value for name, value in isa.items() if issubclass(value, Enum)}

    assert {"oob_mode", "dge_mode", "reduce_cmd", "engine"} <= set(enums)
    for name, members in enums.items():
        assert set(members.__members__) == documented()["nki.isa"].classes[name].attributes


def functions_of(module: ModuleType) -> dict[str, Callable[..., object]]:
    """Return the functions that a module offers, not those that it imports for itself."""
    offered = getattr(module, "__all__", ())
    return {
        name: value
        for name, value in vars(module).items()
        if inspect.isfunction(value)
        and not name.startswith("_")
        and (name in offered or value.__module__ == module.__name__ or module.__name__ == "nki")
    }


def difference(found: inspect.Signature, expected: inspect.Signature) -> str | None:
    """Return both signatures where names, kinds or defaults differ; None where they do not."""
    if [(p.name, p.kind) for p in found.parameters.values()] == [
        (p.name, p.kind) for p in expected.parameters.values()
    ] and all(
        same_default(mine.default, expected.parameters[name].default)
        for name, mine in found.parameters.items()
    ):
        return None
    return f"{found} is not {expected}"


def same_default(found: object, documented_text: object) -> bool:
    """Compare a default with the documentation's source of it: ``oob_mode.error``, ``1.0``."""
    empty = inspect.Parameter.empty
    if found is empty or documented_text is empty:
        return found is documented_text
    text = str(documented_text)
    if text == "...":
        return True
    if isinstance(found, Enum):
        return str(found) == text or found.name == text
    return text in (repr(found), str(found), getattr(found, "name", None))
