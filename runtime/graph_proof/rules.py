"""The rules that a captured graph must keep: each a name, a sentence, its source and a finder."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from torch import fx

from .capture import Capture, operator_name
from .source_lines import line_of_text


@dataclass(frozen=True, slots=True)
class Found:
    """Something in a graph that breaks a rule.

    Attributes:
        node: where; "" if there is no graph.
        text: what is wrong with it.
        line: of our code, as ``file:line``.
    """

    node: str
    text: str
    line: str

    @classmethod
    def at(cls, node: fx.Node, text: str) -> Found:
        """Name a node with its operator and the line that it comes from."""
        what = operator_name(node) if node.op == "call_function" else node.op
        line = line_of_text(node.meta.get("stack_trace"))
        return cls(node.name, f"{what}: {text}", line)


Finder = Callable[[Capture], Iterable[Found]]


@dataclass(frozen=True, slots=True)
class Rule:
    """One thing that holds in every graph that a device is given.

    Attributes:
        id: its name, as violations cite it.
        sentence: what holds.
        source: who says so: a page of the vendor's documentation with its SDK, an error code of
            its compiler, or public source code; ``assumed`` where none that could be read does.
        find: returns what breaks it.
    """

    id: str
    sentence: str
    source: str
    find: Finder


def stopped(rule: str) -> Finder:
    """Return a finder of captures that ended for a reason of this rule."""

    def find(capture: Capture) -> Iterator[Found]:
        for stop in capture.stops:
            if stop.rule == rule:
                yield Found("", stop.text, stop.line)

    return find


def each_value(problem: Callable[[object], str | None]) -> Finder:
    """Return a finder of nodes whose value has a problem; views repeat none of their source."""

    def find(capture: Capture) -> Iterator[Found]:
        for node in capture.nodes:
            text = problem(node.meta.get("val"))
            is_news = not any(problem(source.meta.get("val")) for source in node.all_input_nodes)
            if text is not None and is_news:
                yield Found.at(node, text)

    return find


def each_call(problem: Callable[[fx.Node], str | None]) -> Finder:
    """Return a finder of calls of operators that have a problem."""

    def find(capture: Capture) -> Iterator[Found]:
        for node in capture.calls:
            if (text := problem(node)) is not None:
                yield Found.at(node, text)

    return find
