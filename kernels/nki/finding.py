"""What the lint of kernel sources reports."""

from __future__ import annotations

import ast
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """One place where a source breaks a rule."""

    path: str
    line: int
    rule: str
    text: str

    def __str__(self) -> str:
        """Return the one line that is printed."""
        return f"{self.path}:{self.line}: {self.rule}: {self.text}"


class Findings:
    """Collects the findings of one source."""

    def __init__(self, path: str) -> None:
        """Start with none."""
        self.path = path
        self.found: list[Finding] = []

    def add(self, node: ast.AST, rule: str, text: str) -> None:
        """Report a rule that a node breaks."""
        self.found.append(Finding(self.path, getattr(node, "lineno", 1), rule, text))
