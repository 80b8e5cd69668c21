"""The layout of the repository: packages, import directions, sizes, and what documents say."""

from __future__ import annotations

import ast
import re
import tomllib
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MAY_IMPORT = {
    "bucketing": {"bucketing"},
    "configs": {"configs"},
    "kernels": {"kernels"},
    "runtime": {"runtime", "bucketing", "configs", "kernels"},
}
MAX_FILE_LINES = 300
MAX_FUNCTION_LINES = {"bucketing": 60, "configs": 60, "kernels": 150, "runtime": 60}
MACHINE_PATH = re.compile(
    r"(?<![\w~.])/(?:home|root|work|opt|mnt|Users)/(?!user\b|aws/neuron\b)\w+"
)
LEFTOVER = re.compile(r"\b(?:TO" r"DO|FIX" r"ME|XX" r"X)\b")

SOURCES = sorted(
    path
    for folder in MAY_IMPORT
    for path in (ROOT / folder).rglob("*")
    if path.suffix in (".py", ".cpp", ".h", ".yaml")
)
MODULES = [path for path in SOURCES if path.suffix == ".py"]
USERS = sorted([*(ROOT / "tests").rglob("*.py"), *(ROOT / "examples").rglob("*.py")])
DOCUMENTS = sorted(
    [
        *(*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")),
        *(*ROOT.glob("examples/*.*"), *filter(Path.is_file, ROOT.glob("examples/deploy/*"))),
    ]
)


def test_every_folder_with_modules_is_a_listed_package() -> None:
    found = sorted({".".join(package_of(path)) for path in MODULES})

    assert setuptools_table()["packages"] == found


def test_every_data_file_is_shipped() -> None:
    patterns = setuptools_table()["package-data"]["*"]

    folders = {path.parent for path in MODULES}
    shipped = {path for folder in folders for pattern in patterns for path in folder.glob(pattern)}

    assert package_files() - shipped - set(MODULES) == set()


def test_no_folder_can_be_taken_for_a_package_of_others() -> None:
    forbidden = [ROOT / "__init__.py", ROOT / "kernels" / "__init__.py"]
    forbidden += (ROOT / "tests").rglob("__init__.py")

    assert [name_of(path) for path in forbidden if path.exists()] == []


def test_folders_import_in_one_direction() -> None:
    wrong = {
        f"{name_of(path)} imports {name}"
        for path in MODULES
        for name in imported_names(path)
        if name.startswith("noria.") and name.split(".")[1] not in MAY_IMPORT[top_folder(path)]
    }

    assert wrong == set()


def test_imports_are_relative_inside_the_package() -> None:
    wrong = {
        f"{name_of(path)} imports {name}"
        for path in MODULES
        for name in absolute_imports(path)
        if name.split(".")[0] in {"noria", *MAY_IMPORT}
    }

    assert wrong == set()


def test_tests_and_examples_import_by_the_package_name() -> None:
    relative = {name_of(path) for path in USERS if any(node.level for node in from_nodes(path))}
    bare = {
        f"{name_of(path)} imports {name}"
        for path in USERS
        for name in absolute_imports(path)
        if name.split(".")[0] in MAY_IMPORT
    }

    assert relative | bare == set()


def test_scheduler_and_model_runner_do_not_know_each_other() -> None:
    by_scheduler = imported_names(ROOT / "runtime" / "scheduler.py")
    by_runner = imported_names(ROOT / "runtime" / "model_runner.py")

    assert "noria.runtime.model_runner" not in by_scheduler
    assert "noria.runtime.scheduler" not in by_runner


def test_modules_import_each_other_without_a_cycle() -> None:
    modules = {module_of(path): path for path in MODULES}
    graph = {name: imported_at_load(path) & set(modules) for name, path in modules.items()}

    while leaves := {name for name, imported in graph.items() if not imported}:
        graph = {n: imported - leaves for n, imported in graph.items() if n not in leaves}

    assert graph == {}


def test_files_are_short() -> None:
    num_lines = {name_of(path): len(read(path).splitlines()) for path in SOURCES}

    assert {name: n for name, n in num_lines.items() if n > MAX_FILE_LINES} == {}


def test_functions_are_short() -> None:
    too_long = {
        f"{name_of(path)}:{node.lineno}"
        for path in MODULES
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.FunctionDef)
        and (node.end_lineno or 0) - node.lineno >= MAX_FUNCTION_LINES[top_folder(path)]
    }

    assert too_long == set()


def test_text_is_ascii() -> None:
    assert [name_of(path) for path in {*SOURCES, *DOCUMENTS} if not read(path).isascii()] == []


def test_nothing_is_left_over_or_bound_to_one_machine() -> None:
    found = {
        f"{name_of(path)}: {match[0]}"
        for path in {*SOURCES, *USERS, *DOCUMENTS}
        for pattern in (LEFTOVER, MACHINE_PATH)
        for match in pattern.finditer(read(path))
    }

    assert found == set()


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def top_folder(path: Path) -> str:
    return path.relative_to(ROOT).parts[0]


def package_of(path: Path) -> tuple[str, ...]:
    return ("noria", *path.relative_to(ROOT).parent.parts)


def module_of(path: Path) -> str:
    own = () if path.stem == "__init__" else (path.stem,)
    return ".".join((*package_of(path), *own))


def package_files() -> set[Path]:
    """Return the files of the package's folders, less what Python and compilers leave there."""
    found = (path for folder in MAY_IMPORT for path in (ROOT / folder).rglob("*"))
    return {p for p in found if p.is_file() and p.suffix not in (".pyc", ".so", ".o")}


def setuptools_table() -> dict[str, dict[str, list[str]]]:
    project = tomllib.loads(read(ROOT / "pyproject.toml"))
    table: dict[str, dict[str, list[str]]] = project["tool"]["setuptools"]
    return table


@cache
def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(read(path))


def from_nodes(path: Path) -> list[ast.ImportFrom]:
    return [node for node in ast.walk(tree_of(path)) if isinstance(node, ast.ImportFrom)]


def absolute_imports(path: Path) -> set[str]:
    plain = (node for node in ast.walk(tree_of(path)) if isinstance(node, ast.Import))
    names = {alias.name for node in plain for alias in node.names}
    return names | {node.module or "" for node in from_nodes(path) if node.level == 0}


def imported_names(path: Path) -> set[str]:
    """Return the modules that a file imports anywhere; relative ones as ``noria...``."""
    return absolute_imports(path) | {from_module(path, node) for node in from_nodes(path)}


def imported_at_load(path: Path) -> set[str]:
    """Return what a module's relative imports may mean, those inside functions not counted."""
    found = set()
    for node in tree_of(path).body:
        if isinstance(node, ast.ImportFrom) and node.level:
            module = from_module(path, node)
            found |= {f"{module}.{alias.name}" for alias in node.names}
            found |= {module} if node.module else set()
    return found


def from_module(path: Path, node: ast.ImportFrom) -> str:
    package = package_of(path)
    base = package[: len(package) - node.level + 1] if node.level else ()
    return ".".join([*base, *([node.module] if node.module else [])])
