"""Rules about what a graph changes: caches, by declared operators alone."""

from __future__ import annotations

from collections.abc import Iterator

from torch import fx

from ...kernels.neuron.operators import NAMESPACE
from .capture import Capture, Role, operator_name
from .dataflow import changed, is_view, owner
from .rules import Found, Rule

DOCUMENT = "Noria's contract of KernelSet: only attend_* and copy_blocks change an argument"


def _is_ours(node: fx.Node) -> bool:
    return operator_name(node).startswith(f"{NAMESPACE}.")


def _in_place_on_given(capture: Capture) -> Iterator[Found]:
    for node in capture.calls:
        for name, target in changed(node):
            role = capture.roles.get(owner(target).name)
            if role is None or (_is_ours(node) and role is Role.CACHE):
                continue
            yield Found.at(node, f"changes {name}, which is memory of {_article(role)}")


def _views_changed(capture: Capture) -> Iterator[Found]:
    for node in capture.calls:
        for name, target in changed(node):
            role = capture.roles.get(owner(target).name)
            is_given = role is not None and not (_is_ours(node) and role is Role.CACHE)
            if is_view(target) and not is_given:
                yield Found.at(node, f"changes {name}, which is a view: {target.name}")


def _caches_returned(capture: Capture) -> Iterator[Found]:
    for node in capture.nodes:
        if node.op != "output":
            continue
        for result in node.all_input_nodes:
            if capture.roles.get(owner(result).name) is Role.CACHE:
                yield Found.at(result, "is a result, and memory of a cache")


def _article(role: Role) -> str:
    return f"an {role.value}" if role is Role.INPUT else f"a {role.value}"


MUTATION_RULES = (
    Rule(
        "declared-mutations",
        "What a graph is given changes by operators of noria_neuron alone, and caches alone do",
        f"{DOCUMENT}; nki_op(mutates_args=...) of the NKI pages of TorchNeuron, SDK 2.33",
        _in_place_on_given,
    ),
    Rule(
        "no-view-changed",
        "No view is written to: an operator changes a whole cache or a whole result",
        "vLLM Neuron's pages on aliased outputs, SDK 2.32: chains of views are a case of their own",
        _views_changed,
    ),
    Rule(
        "caches-stay",
        "No result is a cache or part of one",
        "torch.library: what an operator changes is not among its results",
        _caches_returned,
    ),
)
