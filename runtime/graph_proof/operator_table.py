"""Which operators graphs may hold, and who says that the device's compiler takes them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from .capture import Capture, operator_name
from .rules import Found, Rule

TABLE = Path(__file__).resolve().parents[2] / "kernels" / "neuron" / "data" / "operators.json"
STATES = ("kernel", "documented-xla", "source", "torch-mlir", "unverified")
"""From the strongest evidence to none; what each means is in the table itself."""


@dataclass(frozen=True, slots=True)
class OperatorTable:
    """The states of operators.

    Attributes:
        states: of each operator that graphs may hold, the evidence for it, strongest first.
        sources: what each state rests on.
    """

    states: Mapping[str, Sequence[str]]
    sources: Mapping[str, str]

    def state(self, operator: str) -> str | None:
        """Return the strongest evidence for an operator; None if it is not in the table."""
        evidence = self.states.get(operator)
        return evidence[0] if evidence else None

    def counts(self, operators: Sequence[str]) -> dict[str, int]:
        """Return how many operators are in each state; those that are unknown in none."""
        found = [self.state(operator) for operator in operators]
        return {state: found.count(state) for state in STATES}


@cache
def operator_table() -> OperatorTable:
    """Return the table that is kept beside the kernels, ``data/operators.json``."""
    table = json.loads(TABLE.read_text(encoding="utf-8"))
    return OperatorTable(table["operators"], table["states"])


def _unknown(capture: Capture) -> Iterator[Found]:
    table = operator_table()
    for node in capture.nodes:
        is_item = node.op == "call_function" and "getitem" in str(node.target)
        if node.op in ("placeholder", "output") or is_item:
            continue
        if node.op != "call_function" or table.state(operator_name(node)) is None:
            yield Found.at(node, "is not in operators.json")


OPERATOR_RULE = Rule(
    "known-operator",
    "Every operator is in the table, with its state",
    "kernels/neuron/data/operators.json, which names its sources",
    _unknown,
)
