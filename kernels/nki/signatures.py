"""The documented signatures of ``nki``, ``nki.isa`` and ``nki.language``, and whether a call binds.

``signatures.json`` holds facts only: names, and for functions the names, kinds and defaults of
their parameters. ``python -m noria.kernels.nki.signatures STUBS`` prints it anew from the folder
of the API stubs of the vendor's documentation (its ``nki/api/nki``). ``signatures_0_7.json`` has
the functions whose pages were read since, in a later SDK; of the others it is not known whether
they changed.
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from inspect import Parameter, Signature
from pathlib import Path

TABLE = Path(__file__).with_name("signatures.json")
LATER_TABLE = Path(__file__).with_name("signatures_0_7.json")
VERSION = {
    "nki": "0.6.0",
    "neuron_sdk": "2.32.0",
    "pages": "API stubs of the AWS Neuron documentation, nki/api/nki, August 2026",
}
MODULES = ("nki", "nki.isa", "nki.language")
KINDS = {
    "positional": Parameter.POSITIONAL_OR_KEYWORD,
    "keyword": Parameter.KEYWORD_ONLY,
    "args": Parameter.VAR_POSITIONAL,
    "kwargs": Parameter.VAR_KEYWORD,
}
# name, kind and, where there is one, the source text of the default
Row = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DocumentedClass:
    """A class: its methods with signatures that include ``self``, and its other names."""

    methods: Mapping[str, Signature]
    attributes: frozenset[str]

    def has(self, name: str) -> bool:
        """Return whether the documentation knows the name."""
        return name in self.methods or name in self.attributes


@dataclass(frozen=True, slots=True)
class DocumentedModule:
    """A module: functions, classes, and values (dtypes, buffers, enum members' short names).

    ``read_in`` names the SDK in whose pages the signature of each function was read.
    """

    functions: Mapping[str, Signature]
    classes: Mapping[str, DocumentedClass]
    values: Mapping[str, str | None]
    read_in: Mapping[str, str]

    def has(self, name: str) -> bool:
        """Return whether the documentation knows the name."""
        return name in self.functions or name in self.classes or name in self.values

    def class_of(self, name: str) -> DocumentedClass | None:
        """Return the class that a name is, or that the value of that name is an instance of."""
        return self.classes.get(name) or self.classes.get(self.values.get(name) or "")


@cache
def documented() -> Mapping[str, DocumentedModule]:
    """Return the documented modules by their full names."""
    table, later = (json.loads(path.read_text(encoding="utf-8")) for path in (TABLE, LATER_TABLE))
    modules = {}
    for name, entry in table["modules"].items():
        newer = later["functions"].get(name, {})
        read_in = dict.fromkeys(entry["functions"], table["neuron_sdk"])
        read_in |= dict.fromkeys(newer, later["neuron_sdk"])
        functions = entry["functions"] | newer
        modules[name] = _module(entry | {"functions": functions}, read_in)
    return modules


def bind_call(
    signature: Signature, arguments: Sequence[object], keywords: Mapping[str, object]
) -> Mapping[str, object]:
    """Return the arguments of a call by the names of the parameters that take them.

    ``arguments`` begin with ``self`` for a method. Raises TypeError where the call does not bind.
    """
    return signature.bind(*arguments, **keywords).arguments


def extract(stubs: Path) -> str:
    """Return the text of ``signatures.json`` for a folder of stubs: one name a line."""
    modules = {name: _stub_table(_stub_file(stubs, name)) for name in MODULES}
    sections = ",\n".join(f'"{name}": {_section_text(table)}' for name, table in modules.items())
    head = "".join(f"{json.dumps(key)}: {json.dumps(text)},\n" for key, text in VERSION.items())
    return f'{{\n{head}"modules": {{\n{sections}\n}}\n}}\n'


def _module(
    entry: Mapping[str, Mapping[str, object]], read_in: Mapping[str, str]
) -> DocumentedModule:
    classes = {name: _class(fields) for name, fields in entry["classes"].items()}
    functions = {name: _signature(rows) for name, rows in entry["functions"].items()}
    values = {name: str(kind) if kind else None for name, kind in entry["values"].items()}
    return DocumentedModule(functions, classes, values, read_in)


def _class(fields: object) -> DocumentedClass:
    assert isinstance(fields, Mapping)
    methods = {name: _signature(rows) for name, rows in fields["methods"].items()}
    return DocumentedClass(methods, frozenset(fields["attributes"]))


def _signature(rows: object) -> Signature:
    assert isinstance(rows, list)
    return Signature([_parameter(*row) for row in rows])


def _parameter(name: str, kind: str, *default: str) -> Parameter:
    return Parameter(name, KINDS[kind], default=default[0] if default else Parameter.empty)


def _stub_file(stubs: Path, module: str) -> Path:
    return stubs.joinpath(*module.split(".")[1:], "__init__.py")


def _stub_table(path: Path) -> dict[str, dict[str, object]]:
    table: dict[str, dict[str, object]] = {"functions": {}, "classes": {}, "values": {}}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            table["functions"][node.name] = _rows(node.args)
        elif isinstance(node, ast.ClassDef):
            table["classes"][node.name] = _class_fields(node)
        elif name := _assigned_name(node):
            table["values"][name] = _annotation(node)
    return table


def _class_fields(node: ast.ClassDef) -> dict[str, object]:
    functions = [item for item in node.body if isinstance(item, ast.FunctionDef)]
    properties = [item.name for item in functions if item.decorator_list]
    assigned = [name for item in node.body if (name := _assigned_name(item))]
    methods = {item.name: _rows(item.args) for item in functions if not item.decorator_list}
    return {"methods": methods, "attributes": assigned + properties}


def _assigned_name(node: ast.stmt) -> str | None:
    if isinstance(node, ast.AnnAssign):
        target: ast.expr = node.target
    elif isinstance(node, ast.Assign):
        target = node.targets[0]
    else:
        return None
    return target.id if isinstance(target, ast.Name) else None


def _annotation(node: ast.stmt) -> str | None:
    return ast.unparse(node.annotation) if isinstance(node, ast.AnnAssign) else None


def _rows(arguments: ast.arguments) -> list[Row]:
    plain = [*arguments.posonlyargs, *arguments.args]
    first_default = len(plain) - len(arguments.defaults)
    rows = [
        _row(argument, "positional", arguments.defaults[i - first_default])
        if i >= first_default
        else _row(argument, "positional", None)
        for i, argument in enumerate(plain)
    ]
    rows += [_row(arguments.vararg, "args", None)] if arguments.vararg else []
    keyword = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    rows += [_row(argument, "keyword", default) for argument, default in keyword]
    rows += [_row(arguments.kwarg, "kwargs", None)] if arguments.kwarg else []
    return rows


def _row(argument: ast.arg, kind: str, default: ast.expr | None) -> Row:
    return (argument.arg, kind, *([ast.unparse(default)] if default else []))


def _section_text(table: Mapping[str, Mapping[str, object]]) -> str:
    parts = []
    for section, names in table.items():
        lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(row)}" for name, row in names.items())
        parts.append(f'"{section}": {{\n{lines}\n}}')
    return "{\n" + ",\n".join(parts) + "\n}"


if __name__ == "__main__":
    print(extract(Path(sys.argv[1])), end="")
