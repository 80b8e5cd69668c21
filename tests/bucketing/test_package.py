import ast
import doctest
import importlib
import sys
from pathlib import Path

import pytest

import noria.bucketing as bucketing

SOURCES = sorted(Path(bucketing.__file__).parent.glob("*.py"))
MODULES = [path.stem for path in SOURCES if path.stem != "__init__"]


def test_every_public_name_exists_once_in_order() -> None:
    names = bucketing.__all__

    assert len(set(names)) == len(names)
    assert all(getattr(bucketing, name) is not None for name in names)


@pytest.mark.parametrize("name", MODULES)
def test_documented_examples_give_what_they_show(name: str) -> None:
    result = doctest.testmod(importlib.import_module(f"noria.bucketing.{name}"))

    assert result.attempted > 0
    assert result.failed == 0


PLANNING = sorted(Path(bucketing.__file__).parent.glob("*/*.py"))
"""Modules that choose buckets, which need numpy, and one of them scipy for its proof."""


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_running_needs_the_standard_library_only(path: Path) -> None:
    assert _imported(path) == set()


@pytest.mark.parametrize("path", PLANNING, ids=lambda path: f"{path.parent.stem}.{path.stem}")
def test_planning_needs_numpy_besides(path: Path) -> None:
    may_need = {"numpy", "scipy"} if path.stem == "proof" else {"numpy"}

    assert _imported(path) <= may_need


@pytest.mark.parametrize("path", PLANNING, ids=lambda path: f"{path.parent.stem}.{path.stem}")
def test_documented_examples_of_planning_give_what_they_show(path: Path) -> None:
    module = importlib.import_module(f"noria.bucketing.{path.parent.name}.{path.stem}")

    assert doctest.testmod(module).failed == 0


def _imported(path: Path) -> set[str]:
    """Return the packages, other than the standard library and this one, that a file imports."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    plain = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    froms = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    depth = len(path.relative_to(Path(bucketing.__file__).parent).parts)
    assert all(node.level <= depth for node in froms), "imports what is outside bucketing"
    absolute = [node.module or "" for node in froms if node.level == 0]
    packages = {name.split(".")[0] for name in (*plain, *absolute)}
    return packages - sys.stdlib_module_names
