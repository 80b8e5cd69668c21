"""What ``noria check --graphs`` prints; imported only then, for it needs torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..config import Config
from ..graph_proof.configuration import ConfigurationProof, prove_configuration
from ..graph_proof.proof import Violation, rules_for
from ..graph_proof.report import as_mapping
from .progress import show_progress
from .tables import format_table, size_text

HEADER = (
    "graph",
    "nodes",
    "operators",
    "weights",
    "caches",
    "inputs",
    "outputs",
    "intermediates",
    "GFLOP",
    "violations",
)


@dataclass(frozen=True, slots=True)
class ShownProof:
    """A proof as text and as data for ``--json``; ``holds`` unless a rule is broken."""

    text: str
    mapping: Mapping[str, object]
    holds: bool


def prove(config: Config) -> ShownProof:
    """Capture and prove all graphs of a configuration, and show how far that is."""
    with show_progress("capture") as progress:
        proof = prove_configuration(config, progress)
    return ShownProof(proof_text(proof, config), as_mapping(proof), not proof.violations)


def proof_text(proof: ConfigurationProof, original: Config) -> str:
    """Return a row per graph, the violations by rule, and what operators rest on."""
    parts = [
        _graph_table(proof),
        "",
        *_scope(proof, original),
        *_violation_lines(proof),
        "",
        *_operator_lines(proof),
    ]
    return "\n".join(parts)


def _graph_table(proof: ConfigurationProof) -> str:
    rows = []
    for graph in proof.graphs:
        costs = graph.costs
        sizes = (costs.weight_bytes, costs.cache_bytes, costs.input_bytes, costs.output_bytes)
        rows.append(
            (
                graph.name,
                str(graph.num_nodes),
                str(len(graph.operators)),
                *map(size_text, (*sizes, costs.intermediate_bytes)),
                f"{costs.flops / 1e9:,.3f}",
                str(len(graph.violations)),
            )
        )
    return format_table(HEADER, rows)


def _scope(proof: ConfigurationProof, original: Config) -> list[str]:
    """Say what was proved, and for what."""
    config, rules = proof.config, rules_for(proof.config.target or "")
    num_graphs = len(proof.graphs)
    graphs = "1 graph" if num_graphs == 1 else f"{num_graphs} graphs"
    lines = [f"{graphs} captured as backend: {config.backend}, target: {config.target}; no weights"]
    if original.backend != config.backend:
        lines[0] += f" (the configuration names backend: {original.backend})"
    if not proof.violations:
        lines.append(f"All of them keep all {len(rules)} rules; nothing ran on a device")
    return lines


def _violation_lines(proof: ConfigurationProof) -> list[str]:
    lines = []
    for rule in rules_for(proof.config.target or ""):
        broken: dict[tuple[str, str], list[Violation]] = {}
        for one in proof.violations:
            if one.rule == rule.id:
                broken.setdefault((one.text, one.line), []).append(one)
        if broken:
            lines += ["", f"{rule.id}: {rule.sentence} [{rule.source}]"]
            lines += [_place(text, line, found) for (text, line), found in broken.items()]
    return lines


def _place(text: str, line: str, found: Sequence[Violation]) -> str:
    """Name one thing that breaks a rule, and where: the first node of the first graph."""
    first, num_nodes = found[0], sum(one.num_nodes for one in found)
    where = f"{first.node} of {first.graph}" if first.node else first.graph
    if num_nodes > 1:
        where += f" and {num_nodes - 1} more" + (f" in {len(found)} graphs" * (len(found) > 1))
    return f"  {line or 'no line of code'}: {text} ({where})"


def _operator_lines(proof: ConfigurationProof) -> list[str]:
    counts = [f"{num} {state}" for state, num in proof.operator_counts.items() if num]
    unverified = proof.unverified
    what = "1 operator" if len(unverified) == 1 else f"{len(unverified)} operators"
    names = f": {', '.join(unverified)}" if unverified else ""
    total = len(proof.operators)
    return [f"{total} operators: {', '.join(counts)}", f"{what} unverified{names}"]
