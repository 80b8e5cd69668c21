"""Lint rules about the API: every name is documented, every call binds, enums are named."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from inspect import Signature

from .finding import Findings
from .lint_removed import CALLS, NAMES, removed_parameter
from .signatures import bind_call, documented

NAMED_VALUES = frozenset(
    ("buffer", "dge_mode", "dma_engine", "engine", "oob_mode", "perf_mode", "reduce_cmd")
)


class CallRules(ast.NodeVisitor):
    """Checks what a source takes from ``nki`` against the documented signatures."""

    def __init__(self, findings: Findings, aliases: Mapping[str, str]) -> None:
        """``aliases``: the source's names of the API's modules and of what it imports of them."""
        self.findings = findings
        self.aliases = aliases
        self.methods = documented()["nki.language"].classes["NkiTensor"].methods

    def visit_Attribute(self, node: ast.Attribute) -> None:
        """Check that a dotted name is documented."""
        if (full := self._full_name(node)) is None:
            self.generic_visit(node)
        elif text := name_error(full):
            self.findings.add(node, *text)

    def visit_Name(self, node: ast.Name) -> None:
        """Check a name that was imported by itself."""
        full = self.aliases.get(node.id)
        if full and (text := name_error(full)):
            self.findings.add(node, *text)

    def visit_Call(self, node: ast.Call) -> None:
        """Check that a call of the API binds."""
        full = self._full_name(node.func)
        if full is not None:
            if full in CALLS:
                self.findings.add(node, "removed", f"{full}: {CALLS[full]}")
            elif signature := _function(full):
                self._check(node, full, signature, list(node.args))
        elif isinstance(node.func, ast.Attribute) and node.func.attr in self.methods:
            name = node.func.attr
            arguments = [node.func.value, *node.args]
            self._check(node, f"NkiTensor.{name}", self.methods[name], arguments)
        self.generic_visit(node)

    def _check(
        self, node: ast.Call, full: str, signature: Signature, arguments: list[ast.expr]
    ) -> None:
        keywords = {item.arg: item.value for item in node.keywords if item.arg}
        gone = [(name, text) for name in keywords if (text := _gone(full, signature, name))]
        for name, text in gone:
            self.findings.add(node, "removed", f"{full}({name}=): {text}")
        if gone:
            return
        try:
            given = bind_call(signature, arguments, keywords)
        except TypeError as error:
            self.findings.add(node, "arguments", f"{full}: {error}")
            return
        for name in sorted(NAMED_VALUES & set(given)):
            if isinstance(value := given[name], ast.Constant) and value.value is not None:
                text = f"{full}({name}={value.value!r}): only a named value of the API"
                self.findings.add(node, "enum", text)

    def _full_name(self, node: ast.expr) -> str | None:
        names: list[str] = []
        while isinstance(node, ast.Attribute):
            names.insert(0, node.attr)
            node = node.value
        root = self.aliases.get(node.id) if isinstance(node, ast.Name) else None
        return ".".join([root, *names]) if root else None


def api_aliases(tree: ast.Module) -> dict[str, str]:
    """Return what a source's names of the API stand for: ``nl`` is ``nki.language``."""
    aliases = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "nki":
                    aliases[alias.asname or "nki"] = alias.name if alias.asname else "nki"
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "nki":
            aliases |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
    return aliases


def name_error(full: str) -> tuple[str, str] | None:
    """Return the rule that a dotted name of the API breaks and the text, or None."""
    for end in _prefixes(full):
        if end in NAMES:
            return "removed", f"{end}: {NAMES[end]}"
    module, names = _split(full)
    table = documented()[module]
    if not names:
        return None
    known = table.class_of(names[0])
    if not table.has(names[0]):
        return "unknown-name", f"{module} documents no {names[0]}"
    if len(names) > 1 and known and not known.has(names[1]):
        return "unknown-name", f"{module}.{names[0]} documents no {names[1]}"
    return None


def _split(full: str) -> tuple[str, list[str]]:
    """Return the longest documented module that a name begins with, and the rest."""
    module = next(name for name in reversed(list(_prefixes(full))) if name in documented())
    return module, [name for name in full[len(module) :].split(".") if name]


def _prefixes(full: str) -> Iterator[str]:
    names = full.split(".")
    return (".".join(names[: count + 1]) for count in range(len(names)))


def _function(full: str) -> Signature | None:
    module, names = _split(full)
    return documented()[module].functions.get(names[0]) if len(names) == 1 else None


def _gone(full: str, signature: Signature, name: str) -> str | None:
    return None if name in signature.parameters else removed_parameter(full, name)
