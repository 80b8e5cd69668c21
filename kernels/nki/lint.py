"""The lint of kernel sources: ``python -m noria.kernels.nki.lint FILES``.

Nothing here compiles a kernel. What passes is in the documented language subset, takes only
documented names of the API and calls them with arguments that bind.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Sequence
from pathlib import Path

from .finding import Finding, Findings
from .lint_calls import CallRules, api_aliases, name_error
from .lint_subset import SubsetRules, is_kernel
from .signatures import MODULES


def lint_source(source: str, path: str = "<source>") -> list[Finding]:
    """Return what a kernel source breaks, in the order of its lines."""
    findings = Findings(path)
    tree = ast.parse(source, path)
    _check_imports(tree, findings)
    SubsetRules(findings, tree).check()
    CallRules(findings, api_aliases(tree)).visit(tree)
    return sorted(set(findings.found))


def lint_file(path: Path) -> list[Finding]:
    """Return what the kernel source in a file breaks."""
    return lint_source(path.read_text(encoding="utf-8"), str(path))


def kernel_sources(folder: Path) -> list[Path]:
    """Return the files of a folder that define kernels, and those that they import from it."""
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in folder.glob("*.py")}
    found = {path for path, tree in trees.items() if _has_kernel(tree)}
    while more := {sibling for path in found for sibling in _siblings(path, trees[path])} - found:
        found |= more
    return sorted(found)


def main(paths: Sequence[str]) -> int:
    """Print the findings of files; return 1 if there are any."""
    findings = [finding for path in paths for finding in lint_file(Path(path))]
    for finding in findings:
        print(finding)
    return int(bool(findings))


def _check_imports(tree: ast.Module, findings: Findings) -> None:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name not in MODULES:
                    findings.add(node, "import", f"{alias.name} is none of {', '.join(MODULES)}")
        elif isinstance(node, ast.ImportFrom):
            _check_from(node, findings)


def _check_from(node: ast.ImportFrom, findings: Findings) -> None:
    module = node.module or ""
    if node.level == 1 and module and "." not in module:
        return
    if node.level or module not in MODULES:
        name = "." * node.level + module
        text = f"{name} is none of {', '.join(MODULES)}, nor a kernel source beside this one"
        findings.add(node, "import", text)
        return
    for alias in node.names:
        full = f"{module}.{alias.name}"
        if full not in MODULES and (error := name_error(full)):
            findings.add(node, *error)


def _has_kernel(tree: ast.Module) -> bool:
    return any(isinstance(node, ast.FunctionDef) and is_kernel(node) for node in tree.body)


def _siblings(path: Path, tree: ast.Module) -> set[Path]:
    nodes = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.level == 1]
    return {path.with_name(f"{node.module}.py") for node in nodes}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
