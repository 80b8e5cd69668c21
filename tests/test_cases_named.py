"""Known cases that the runtime must handle are named by tests: in their names or docstrings."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).resolve().parent
CASES = {
    "E": (1, 2, 4, 5, 6, 8),  # keys and files of compiled graphs
    "F": (1, 3, 5, 6),  # scheduling, exhaustion, preemption
    "H": (1, 2, 3, 4, 7, 8, 9),  # tokenizers, chat templates, texts
    "I": (1, 2, 3, 4, 6, 8, 9, 11),  # sampling, penalties, logprobs
    "J": (1, 4, 5, 7, 9),  # ends of requests
    "K": (1, 3, 5, 7, 9, 10, 12, 13, 14),  # configurations and weights of models
}
LATER = {"K08"}
"""Needs several devices, which are refused."""

REQUIRED = {f"{section}{number:02}" for section, numbers in CASES.items() for number in numbers}
NAMED = re.compile(rf"(?<![a-z0-9])[{''.join(CASES).lower()}]\d\d(?![a-z0-9])")


def test_every_case_is_named_by_a_test() -> None:
    assert REQUIRED - set(named_cases()) == set()


def test_no_test_names_a_case_that_there_is_not() -> None:
    assert set(named_cases()) - REQUIRED - LATER == set()


def test_names_and_docstrings_count_and_nothing_else_does() -> None:
    source = '''
def test_f01_f03_both(): ...
def test_other():
    """K10, K12: both, not bf16 nor K130."""
    "J01"
def helper_h01(): ...
async def test_late_j09(): ...
'''

    assert sorted(cases_of(source)) == ["F01", "F03", "J09", "K10", "K12"]


def named_cases() -> Iterator[str]:
    for path in TESTS.rglob("test_*.py"):
        if path != Path(__file__).resolve():
            yield from cases_of(path.read_text(encoding="utf-8"))


def cases_of(source: str) -> Iterator[str]:
    """Yield the cases that the tests of a module name."""
    for node in ast.walk(ast.parse(source)):
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if is_function and node.name.startswith("test_"):
            text = f"{node.name} {ast.get_docstring(node) or ''}".lower()
            yield from (match.upper() for match in NAMED.findall(text))
