"""The table of the vendor's calls, options and variables: the code uses no others."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from noria.kernels import neuron, nki
from noria.kernels.nki.signatures import documented

NEURON = Path(neuron.__path__[0])
ROOT = NEURON.parents[1]
TABLE = json.loads((NEURON / "data" / "vendor_calls.json").read_text(encoding="utf-8"))
CALLS = TABLE["calls"]
VARIABLE = re.compile(r"\b(?:NEURON|TORCH_NEURONX|NKI)_[A-Z][A-Z_]*[A-Z]\b")
SOURCES = [
    path
    for folder in ("bucketing", "configs", "kernels", "runtime")
    for path in (ROOT / folder).rglob("*.py")
]
OF_VENDOR = ("_neuron()", "package")
"""What ``vendor.py`` calls ``torch.neuron`` and ``torch_neuronx``."""


def variables_in(text: str) -> set[str]:
    """The vendor's variables in strings of a source."""
    strings = [
        node.value
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    return {name for one in strings for name in VARIABLE.findall(one)}


def calls_in(text: str) -> Iterator[str]:
    """What a source takes of ``torch.neuron`` and torch_neuronx, and how it calls torch.compile."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in OF_VENDOR:
            owner = "torch.neuron" if ast.unparse(node.value) == OF_VENDOR[0] else "torch_neuronx"
            yield f"{owner}.{node.attr}"
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        if called == "torch.compile":
            yield from (keyword_text(called, one) for one in node.keywords)
        if called == "nki_op":
            yield from (f"nki_op({one.arg}=)" for one in node.keywords)
        if called == "importlib.import_module":
            yield ast.literal_eval(node.args[0])
        if called == "torch.device" and len(node.args) == 2:
            yield f"device {ast.literal_eval(node.args[0])}"


def keyword_text(called: str, keyword: ast.keyword) -> str:
    value = ast.unparse(keyword.value) if keyword.arg == "backend" else ""
    return f"{called}({keyword.arg}={value})"


def vendor_source() -> str:
    return "\n".join((NEURON / f"{name}.py").read_text() for name in ("vendor", "operators"))


def plain(source: str) -> str:
    """Without the first statement of a second module: annotations may be of the future once."""
    return source.replace("from __future__ import annotations\n", "")


def test_every_variable_in_the_code_is_in_the_table() -> None:
    found = {name for path in SOURCES for name in variables_in(path.read_text(encoding="utf-8"))}

    assert len(found) > 10
    assert found - CALLS.keys() == set()


def test_every_call_of_the_vendors_is_in_the_table() -> None:
    found = set(calls_in(plain(vendor_source())))

    assert {"torch_neuronx.nki_op", "torch.neuron.synchronize"} < found
    assert found - CALLS.keys() == set()


def test_what_the_table_lists_is_used() -> None:
    used = {name for path in SOURCES for name in variables_in(path.read_text(encoding="utf-8"))}
    used |= {*calls_in(plain(vendor_source())), "--lnc"}

    assert CALLS.keys() - used == set()


@pytest.mark.parametrize(
    ("old", "new", "name"),
    [
        ("_neuron().synchronize()", "_neuron().wait()", "torch.neuron.wait"),
        ("package.nki_op", "package.wrap_nki", "torch_neuronx.wrap_nki"),
        ("dynamic=False", "mode='x'", "torch.compile(mode=)"),
        ('backend="neuron"', 'backend="openxla"', "torch.compile(backend='openxla')"),
        ("mutates_args=set", "mutated=set", "nki_op(mutated=)"),
        ('torch.device("neuron"', 'torch.device("xla"', "device xla"),
    ],
)
def test_another_call_would_be_found(old: str, new: str, name: str) -> None:
    source = plain(vendor_source())
    assert old in source

    assert set(calls_in(source.replace(old, new))) - CALLS.keys() == {name}


def test_another_variable_would_be_found() -> None:
    assert variables_in('x = "set TORCH_NEURONX_NEW_THING=1"') == {"TORCH_NEURONX_NEW_THING"}


def test_only_one_module_imports_the_vendors_package() -> None:
    """In code: the kernels of ``kernels/nki`` alone import nki, and nothing torch_neuronx."""
    importing = {
        path.relative_to(ROOT).as_posix()
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        for name in imported(node)
        if name.split(".")[0] in ("torch_neuronx", "nki", "neuronxcc", "torch_xla")
    }

    assert {path.rsplit("/", 1)[0] for path in importing} == {"kernels/nki"}


def imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [one.name for one in node.names]
    return [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []


def test_every_name_of_nki_in_the_kernels_is_documented_in_some_sdk() -> None:
    names = {"nki": "nki", "nisa": "nki.isa", "nl": "nki.language"}
    used = {
        (names[node.value.id], node.attr)
        for path in Path(nki.__path__[0]).glob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id in names
    }

    assert len(used) > 30
    assert {one for one in used if not documented()[one[0]].has(one[1])} == set()


@pytest.mark.parametrize("row", CALLS.values(), ids=CALLS.keys())
def test_rows_say_where_they_were_read(row: dict[str, str]) -> None:
    assert row.keys() == {"kind", "page", "sdk", "evidence", "note"}
    assert row["evidence"] in TABLE["evidence"]
    assert row["page"].startswith("https://") == (row["evidence"] != "use")
    assert row["kind"] in ("module", "call", "option", "variable")
