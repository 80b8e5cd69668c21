"""Lint rules about the language: the Python that the NKI front end accepts.

Sources: the vendor's language guide and migration guides (NKI 0.6), the grammar of the public
KLR parser, and what the vendor's production kernels use. Where they differ, the narrowest holds.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator

from .finding import Findings

STATEMENTS = (
    *(ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr, ast.Assert, ast.Pass),
    *(ast.If, ast.For, ast.While, ast.Break, ast.Continue, ast.Return, ast.With),
    ast.FunctionDef,
)
EXPRESSIONS = (
    *(ast.Name, ast.Attribute, ast.Subscript, ast.Slice, ast.Call),
    *(ast.Constant, ast.JoinedStr, ast.FormattedValue, ast.Tuple, ast.List, ast.Dict),
    *(ast.BoolOp, ast.BinOp, ast.UnaryOp, ast.Compare, ast.IfExp),
)
BUILTINS = frozenset(
    (
        *("bool", "dict", "float", "int", "list", "slice", "str", "tuple"),
        *("divmod", "isinstance", "len", "max", "min", "print", "sorted"),
        *("enumerate", "range", "zip"),
    )
)
REFUSED_BUILTINS = frozenset(dir(builtins)) - BUILTINS
CLASS_BASES = frozenset(("NKIObject", "Enum"))
CLASS_BODY = (ast.FunctionDef, ast.AnnAssign, ast.Assign, ast.Expr, ast.Pass)
MODULE_BODY = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef, ast.Assign, ast.AnnAssign)
LOOPS = frozenset(("fori_loop", "while_loop"))


class SubsetRules:
    """Checks a whole source against the language subset."""

    def __init__(self, findings: Findings, tree: ast.Module) -> None:
        """Know the kernels of the source: no other function may call them."""
        self.findings = findings
        self.tree = tree
        functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
        self.kernels = frozenset(node.name for node in functions if is_kernel(node))
        self.refused_names = REFUSED_BUILTINS - _bound_names(tree)

    def check(self) -> None:
        """Report what the source breaks."""
        for node in self.tree.body:
            if isinstance(node, ast.FunctionDef):
                self._function(node, {"jit"})
            elif isinstance(node, ast.ClassDef):
                self._class(node)
            elif isinstance(node, (ast.Assign, ast.AnnAssign)):
                self._constant(node)
            elif not isinstance(node, MODULE_BODY) and not _is_docstring(node):
                self._add(node, "module", "only imports, constants, functions and classes")

    def _constant(self, node: ast.Assign | ast.AnnAssign) -> None:
        mutable = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)
        if any(isinstance(part, mutable) for part in ast.walk(node.value or node)):
            self._add(node, "module", "a kernel is a pure function; globals may not be mutable")

    def _class(self, node: ast.ClassDef) -> None:
        bases = [_last_name(base) for base in node.bases]
        if len(bases) != 1 or bases[0] not in CLASS_BASES or node.keywords:
            self._add(node, "class", "a class inherits from NKIObject, or is an Enum")
        self._decorators(node.decorator_list, {"dataclass"})
        for item in node.body:
            if isinstance(item, ast.FunctionDef):
                self._function(item, {"staticmethod"})
            elif not isinstance(item, CLASS_BODY):
                self._add(item, "class", f"no {_word(item)} in a class")

    def _function(self, node: ast.FunctionDef, decorators: set[str]) -> None:
        self._decorators(node.decorator_list, decorators)
        self._parameters(node)
        bodies = loop_bodies(node)
        for statement in node.body:
            self._statement(statement, bodies)

    def _decorators(self, decorators: list[ast.expr], allowed: set[str]) -> None:
        for decorator in decorators:
            if _last_name(decorator) not in allowed:
                self._add(decorator, "decorator", f"not @{ast.unparse(decorator)}")

    def _parameters(self, node: ast.FunctionDef) -> None:
        found = node.args
        if found.vararg or found.kwarg or found.kwonlyargs or found.posonlyargs:
            text = f"{node.name}: plain parameters only, no *, ** or /"
            self._add(node, "parameters", text)
        for default in [*found.defaults, *(value for value in found.kw_defaults if value)]:
            if isinstance(default, (ast.List, ast.Dict, ast.Set)):
                self._add(default, "parameters", f"{node.name}: a default is no list; use a tuple")
            else:
                self._expression(default)

    def _statement(self, node: ast.stmt, bodies: dict[str, str]) -> None:
        if isinstance(node, ast.FunctionDef):
            self._nested(node, bodies)
            return
        if not isinstance(node, STATEMENTS):
            self._add(node, "statement", f"no {_word(node)} in a kernel")
            return
        if isinstance(node, (ast.For, ast.While)):
            self._loop(node)
        elif isinstance(node, ast.With):
            self._with(node)
        for child in _children(node):
            if isinstance(child, ast.stmt):
                self._statement(child, bodies)
            elif isinstance(child, ast.expr):
                self._expression(child)

    def _nested(self, node: ast.FunctionDef, bodies: dict[str, str]) -> None:
        loop = bodies.get(node.name)
        if loop is None:
            self._add(node, "nested-function", f"{node.name} is no body of a run-time loop")
        elif loop == "fori_loop" and any(_returned(part) for part in ast.walk(node)):
            self._add(node, "nested-function", f"{node.name}: a fori_loop body returns nothing")
        elif len(node.args.args) != 1:
            self._add(node, "nested-function", f"{node.name} takes the loop's value alone")
        self._function(node, set())

    def _loop(self, node: ast.For | ast.While) -> None:
        if node.orelse:
            self._add(node, "loop", "a loop has no else")
        if isinstance(node, ast.For) and not isinstance(node.target, ast.Name):
            self._add(node, "loop", "the target of a for is one plain name")

    def _with(self, node: ast.With) -> None:
        managers = [item.context_expr for item in node.items if not item.optional_vars]
        if len(node.items) != 1 or [_last_name(manager) for manager in managers] != ["no_reorder"]:
            self._add(node, "with", "only `with nl.no_reorder():`")

    def _expression(self, node: ast.expr) -> None:
        for part in _evaluated(node):
            self._part(part)

    def _part(self, node: ast.AST) -> None:
        if isinstance(node, ast.expr) and not isinstance(node, EXPRESSIONS):
            self._add(node, "expression", f"no {_word(node)} in a kernel")
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
            self._add(node, "operator", "no @; use nisa.nc_matmul")
        elif isinstance(node, ast.Compare) and any(
            isinstance(op, (ast.Is, ast.IsNot)) for op in node.ops
        ):
            self._add(node, "operator", "no `is`; use == or !=")
        elif isinstance(node, ast.Dict):
            self._keys(node)
        elif isinstance(node, ast.Call):
            self._call(node)
        elif isinstance(node, ast.Name) and node.id in self.refused_names:
            self._add(node, "builtin", f"no {node.id} in a kernel")

    def _keys(self, node: ast.Dict) -> None:
        for key in node.keys:
            if not isinstance(key, ast.Constant) or not isinstance(key.value, str):
                self._add(node, "dictionary", "the keys are strings, written out")

    def _call(self, node: ast.Call) -> None:
        if any(keyword.arg is None for keyword in node.keywords):
            self._add(node, "expression", "no ** in a call")
        if isinstance(node.func, ast.Name) and node.func.id in self.kernels:
            text = f"{node.func.id} is a kernel; share a function without the decorator"
            self._add(node, "kernel-call", text)

    def _add(self, node: ast.AST, rule: str, text: str) -> None:
        self.findings.add(node, rule, text)


def is_kernel(node: ast.FunctionDef) -> bool:
    """Return whether a function is decorated with ``nki.jit``."""
    return any(_last_name(decorator) == "jit" for decorator in node.decorator_list)


def loop_bodies(function: ast.FunctionDef) -> dict[str, str]:
    """Return the names that a function passes to run-time loops as their bodies, and to which."""
    bodies: dict[str, str] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and (loop := _last_name(node.func)) in LOOPS:
            values = [*node.args, *(keyword.value for keyword in node.keywords)]
            bodies |= {value.id: loop for value in values if isinstance(value, ast.Name)}
    return bodies


def _bound_names(tree: ast.Module) -> set[str]:
    """Return the names that a source itself gives to parameters and variables."""
    nodes = list(ast.walk(tree))
    stored = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    return stored | {node.arg for node in nodes if isinstance(node, ast.arg)}


def _evaluated(node: ast.AST) -> Iterator[ast.AST]:
    """Return the parts of an expression."""
    yield node
    for child in ast.iter_child_nodes(node):
        yield from _evaluated(child)


def _children(node: ast.stmt) -> Iterator[ast.AST]:
    """Return what a statement evaluates: not its annotation, which the front end drops."""
    for name, value in ast.iter_fields(node):
        if name == "annotation":
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.withitem):
                yield child.context_expr
            elif isinstance(child, ast.AST):
                yield child


def _returned(node: ast.AST) -> bool:
    return isinstance(node, ast.Return) and node.value is not None


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Call):
        return _last_name(node.func)
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _word(node: ast.AST) -> str:
    return type(node).__name__.lower()
