"""Reading a YAML file to plain data, refusing what YAML would change without a word.

That is a key written twice, of which the last would win, and numbers that YAML 1.1 reads in
another base: ``010`` is 8 and ``12:30`` is 750.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import yaml

from .errors import ConfigError
from .value_text import key_text, value_text

INT_TAG = "tag:yaml.org,2002:int"
FLOAT_TAG = "tag:yaml.org,2002:float"
UNUSUAL_NUMBER = re.compile(r"[-+]?0[0-9_]+|.*:.*")


class _Loader(yaml.SafeLoader):
    """Refuses values that do not fit a written tag, on which YAML's own loader stumbles."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Build the value of ``node``."""
        try:
            return super().construct_object(node, deep)
        except (LookupError, AttributeError):
            kind = node.tag.rpartition(":")[2]
            problem = f"{value_text(node.value)} does not fit the tag !!{kind}"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from None


def read_yaml(path: str | PathLike[str], *, name: str | None = None) -> object:
    """Read a YAML file: mappings, lists, strings, numbers, booleans, dates and None.

    Args:
        path: the file.
        name: what errors call it; None for its path.

    Raises:
        ConfigError: no such file, not UTF-8, or what ``parse_yaml`` refuses.
    """
    source = name or fspath(path)
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        problem = f"byte {error.start} is not UTF-8; must be UTF-8 text"
        raise ConfigError(f"{source}: {problem}") from None
    except OSError as error:
        raise ConfigError(f"{source}: {error.strerror}; must be a readable YAML file") from None
    return parse_yaml(text, source=source)


def parse_yaml(text: str, *, source: str) -> object:
    """Read YAML text, which ``source`` names in errors.

    Raises:
        ConfigError: not one YAML document of plain data, a key written twice, or a number that
            reads as another one.
    """
    try:
        return _load(text)
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{source}: {_describe(error)}; must be valid YAML") from None


def _load(text: str) -> object:
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        for path, problem in _find_traps(node):
            raise ConfigError(f"{path}: {problem}")
        return None if node is None else loader.construct_document(node)
    finally:
        loader.dispose()


def _find_traps(root: yaml.Node | None) -> Iterator[tuple[str, str]]:
    """Yield key path and problem of what YAML would change silently, in document order."""
    pending = [("", root)]
    seen: set[int] = set()
    while pending:
        path, node = pending.pop()
        if node is None or id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.ScalarNode):
            yield from _check_number(path, node)
        elif isinstance(node, yaml.MappingNode):
            yield from _check_keys(path, node)
        pending += reversed(list(_children(path, node)))


def _children(path: str, node: yaml.Node) -> Iterator[tuple[str, yaml.Node]]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield _join(path, key), value
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield f"{path}[{index}]", item


def _check_keys(path: str, node: yaml.MappingNode) -> Iterator[tuple[str, str]]:
    lines: dict[tuple[str, str], int] = {}
    for key, _ in node.value:
        line = key.start_mark.line + 1
        name = (key.tag, str(key.value))
        if name in lines:
            yield _join(path, key), f"written twice, in lines {lines[name]} and {line}; keep one"
        lines[name] = line


def _check_number(path: str, node: yaml.ScalarNode) -> Iterator[tuple[str, str]]:
    if node.tag in (INT_TAG, FLOAT_TAG) and UNUSUAL_NUMBER.fullmatch(node.value):
        line = node.start_mark.line + 1
        yield (
            path,
            f"{node.value} (line {line}) is a number in base 8 or 60 to YAML; "
            "write it without leading zeros or colons, or in quotes for text",
        )


def _join(path: str, key: yaml.Node) -> str:
    name = key_text(str(key.value))
    return f"{path}.{name}" if path else name


def _describe(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error)
    where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
    return where + " ".join(str(problem).split())
