"""What was proved, as data for programs; texts are the command line's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from .configuration import ConfigurationProof
from .operator_table import operator_table
from .proof import rules_for


def as_mapping(proof: ConfigurationProof) -> Mapping[str, object]:
    """Return everything of a proof, fit for JSON."""
    table, target = operator_table(), proof.config.target or ""
    return {
        "backend": proof.config.backend,
        "target": target,
        "num_blocks": list(proof.num_blocks),
        "graphs": [asdict(graph) for graph in proof.graphs],
        "rules": [
            {"id": rule.id, "sentence": rule.sentence, "source": rule.source}
            for rule in rules_for(target)
        ],
        "operators": {name: list(table.states.get(name, ())) for name in proof.operators},
        "operator_counts": dict(proof.operator_counts),
        "unverified": list(proof.unverified),
        "proved": not proof.violations,
    }
