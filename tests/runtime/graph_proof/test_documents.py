"""The page about proofs lists the rules that there are.

``python tests/runtime/graph_proof/test_documents.py`` writes the table into it.
"""

from __future__ import annotations

import re
from pathlib import Path

from noria.runtime.graph_proof.operator_table import STATES
from noria.runtime.graph_proof.proof import rules_for

PAGE = Path(__file__).resolve().parents[3] / "docs" / "graph-proof.md"
TABLE = re.compile(r"(\| --- \| --- \| --- \|\n)((?:\|.*\n)*)(<!-- rules:.*?-->\n)", re.DOTALL)


def rules_table() -> str:
    rows = [f"| `{rule.id}` | {rule.sentence} | {rule.source} |" for rule in rules_for("trn2")]
    return "\n".join(rows) + "\n"


def write_table() -> None:
    text = TABLE.sub(lambda match: match[1] + rules_table() + match[3], PAGE.read_text("utf-8"))
    PAGE.write_text(text, encoding="utf-8")


def test_the_table_of_rules_is_up_to_date() -> None:
    match = TABLE.search(PAGE.read_text(encoding="utf-8"))

    assert match is not None
    assert match[2] == rules_table(), "python tests/runtime/graph_proof/test_documents.py writes it"


def test_the_page_explains_every_state() -> None:
    rows = re.findall(r"^\| `([\w-]+)` \| .* \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)

    assert set(STATES) <= set(rows)


if __name__ == "__main__":
    write_table()
