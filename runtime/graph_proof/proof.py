"""The proof of one graph: what was found in it by each rule, and what it costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .capture import Capture, operator_name
from .costs import GraphCosts, costs_of
from .dtype_rules import DTYPE_RULES, fp8_rule
from .mutation_rules import MUTATION_RULES
from .operator_table import OPERATOR_RULE
from .rules import Rule
from .shape_rules import SHAPE_RULES


@dataclass(frozen=True, slots=True)
class Violation:
    """What breaks a rule in a graph, in one place of our code.

    Attributes:
        rule: its id.
        graph: the graph's name.
        node: the first node.
        text: its operator, and what is wrong.
        line: of our code; "" if there is none.
        num_nodes: how many nodes break it in the same way.
    """

    rule: str
    graph: str
    node: str
    text: str
    line: str
    num_nodes: int


@dataclass(frozen=True, slots=True)
class GraphProof:
    """What is known about one graph.

    Attributes:
        name: of the graph.
        num_nodes: operators that it runs, repetitions included.
        operators: the distinct ones, sorted.
        costs: its bytes and FLOPs.
        violations: of the rules; none if the graph is proved.
    """

    name: str
    num_nodes: int
    operators: tuple[str, ...]
    costs: GraphCosts
    violations: tuple[Violation, ...]


def rules_for(target: str) -> tuple[Rule, ...]:
    """Return all rules of a device generation."""
    return (*SHAPE_RULES, *MUTATION_RULES, *DTYPE_RULES, fp8_rule(target), OPERATOR_RULE)


def prove(capture: Capture, rules: Sequence[Rule]) -> GraphProof:
    """Return what the rules find in a captured graph."""
    names = [operator_name(node) for node in capture.calls]
    violations = [one for rule in rules for one in _violations(rule, capture)]
    return GraphProof(
        capture.name, len(names), tuple(sorted(set(names))), costs_of(capture), tuple(violations)
    )


def _violations(rule: Rule, capture: Capture) -> list[Violation]:
    """Return what a rule finds, the same in many nodes once."""
    found: dict[tuple[str, str], list[str]] = {}
    for one in rule.find(capture):
        found.setdefault((one.text, one.line), []).append(one.node)
    return [
        Violation(rule.id, capture.name, nodes[0], text, line, len(nodes))
        for (text, line), nodes in found.items()
    ]
