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


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_only_the_standard_library_is_imported(path: Path) -> None:
    nodes = list(ast.walk(ast.parse(path.read_text())))
    plain = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    froms = [node for node in nodes if isinstance(node, ast.ImportFrom)]

    outside = {name for name in plain if name.split(".")[0] not in sys.stdlib_module_names}
    outside |= {
        node.module or ""
        for node in froms
        if node.level == 0 and (node.module or "").split(".")[0] not in sys.stdlib_module_names
    }

    assert outside == set()
    assert all(node.level <= 1 for node in froms)
