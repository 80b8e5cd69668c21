"""Lowers a static graph to commands over fixed buffers, and runs them.

The graph is interpreted once, with the real tensors: views are made once and stay, operators of
this target become commands with raw addresses, anything else becomes a call into torch between
two lists of commands. What is left for a step is a call per list; a model has one.
"""

from __future__ import annotations

import functools
import operator
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from ..static_graph import StaticGraph
from .buffers import BufferPool
from .native import Call, Library
from .operators import NAMESPACE, TensorSpec
from .profile import CommandTime, timed
from .registry import OPERATORS

_KEEP_ORDER = frozenset({"view", "reshape", "unflatten", "flatten", "squeeze", "unsqueeze"})
"""Torch operators that keep a contiguous tensor's elements in order."""


class CommandStep:
    """A step that runs commands of this target."""

    def __init__(self, library: Library, calls: list[Call]) -> None:
        """Lay out the calls once."""
        self._library = library
        self._calls = calls
        self._commands = library.encode(calls)

    def __call__(self) -> None:
        """Run the commands."""
        self._library.run(self._commands)

    def run_rows(self, num_rows: int) -> None:
        """Run what the first rows take."""
        self._library.call([call.for_rows(num_rows) for call in self._calls])

    def profile(self) -> list[CommandTime]:
        """Run the commands, timing each."""
        seconds = self._library.time(self._commands)
        return [timed(*pair) for pair in zip(self._calls, seconds, strict=True)]


class Program:
    """Steps that run one graph over its static buffers."""

    def __init__(self, steps: list[Callable[[], None]], num_commands: int) -> None:
        """Keep the steps; whoever calls them again finds the same buffers."""
        self.steps = steps
        self.num_commands = num_commands

    def __call__(self) -> None:
        """Run the graph once."""
        for step in self.steps:
            step()

    def run_rows(self, num_rows: int) -> None:
        """Run the part of a whole run that the first rows need, where they need no later ones."""
        for step in self.steps:
            if isinstance(step, CommandStep):
                step.run_rows(num_rows)
            else:
                step()

    def profile(self) -> list[CommandTime]:
        """Run the graph once, timing each command and each call into torch."""
        times = []
        for step in self.steps:
            if isinstance(step, CommandStep):
                times += step.profile()
            else:
                start = time.perf_counter()
                step()
                times.append(CommandTime("torch", 0, 0, time.perf_counter() - start))
        return times


def lower(
    graph: StaticGraph, outputs: Sequence[Tensor], *, library: Library, pool: BufferPool
) -> Program:
    """Return the program that leaves the graph's results in ``outputs``.

    Raises:
        ValueError: a result does not fit its output, or a node cannot be lowered.
    """
    pool.start()
    return _Lowering(graph, outputs, library=library, pool=pool).run()


class _Lowering:
    """State of one lowering: the value of each node, and who still needs which chunk."""

    def __init__(
        self, graph: StaticGraph, outputs: Sequence[Tensor], *, library: Library, pool: BufferPool
    ) -> None:
        self._graph = graph
        self._outputs = outputs
        self._library = library
        self._pool = pool
        self._nodes = graph.nodes
        self._values: dict[fx.Node, Any] = {}
        self._owned: dict[fx.Node, list[Tensor]] = {}
        self._last_use = _last_uses(self._nodes)
        self._in_place = self._find_producers()
        self._calls: list[Call] = []
        self._steps: list[Callable[[], None]] = []
        self._num_commands = 0

    def run(self) -> Program:
        for index, node in enumerate(self._nodes):
            self._lower_node(node)
            for owner in self._last_use.get(index, ()):
                for chunk in self._owned.pop(owner, ()):
                    self._pool.give(chunk)
        self._flush()
        return Program(self._steps, self._num_commands)

    def _lower_node(self, node: fx.Node) -> None:
        if node.op == "placeholder":
            self._values[node] = self._graph.placeholders.get(node.name)
        elif node.op == "output":
            self._finish(node)
        elif node.op != "call_function":
            raise ValueError(f"cannot lower node {node.name}: {node.op} {node.target}")
        elif node.target is operator.getitem:
            values, index = self._resolve(node.args)
            self._values[node] = values[index]
        elif not isinstance(node.target, torch._ops.OpOverload):
            raise ValueError(f"cannot lower node {node.name}: {node.target}")
        elif node.target.namespace == NAMESPACE:
            self._add_commands(node, node.target)
        else:
            self._add_torch(node, node.target)

    def _resolve(self, args: Any) -> Any:
        return fx.node.map_arg(args, lambda node: self._values[node])

    def _add_commands(self, node: fx.Node, target: torch._ops.OpOverload) -> None:
        kernel = OPERATORS[target._schema.name.split("::")[1]]
        args = self._resolve(node.args)
        outs = tuple(self._new(node, index, spec) for index, spec in enumerate(kernel.specs(*args)))
        self._calls += kernel.calls(outs, *args)
        self._values[node] = outs[0] if len(outs) == 1 else outs

    def _new(self, node: fx.Node, index: int, spec: TensorSpec) -> Tensor:
        output = self._in_place.get((node, index))
        if output is not None and (spec.dtype, spec.num_elements) == (output.dtype, output.numel()):
            return output.view(spec.shape)
        tensor, chunk = self._pool.take(spec)
        self._owned.setdefault(node, []).append(chunk)
        return tensor

    def _add_torch(self, node: fx.Node, target: torch._ops.OpOverload) -> None:
        args, kwargs = self._resolve(node.args), self._resolve(node.kwargs)
        if target._schema.is_mutable:
            self._add_step(lambda: target(*args, **kwargs))
            self._values[node] = args[0]
            return
        if not target._schema.returns:
            return  # an assertion about shapes or dtypes, which tracing has checked already
        if _is_alias(target):
            with torch.no_grad():
                value = target(*args, **kwargs)
            if _shares_memory(value, [self._values[used] for used in node.all_input_nodes]):
                self._values[node] = value
                return
        outs = pytree.tree_map(_empty_like, node.meta["val"])
        self._values[node] = outs
        self._add_step(functools.partial(_run_torch, target, args, kwargs, outs))

    def _add_step(self, step: Callable[[], object]) -> None:
        self._flush()
        self._steps.append(functools.partial(_without_grad, step))

    def _flush(self) -> None:
        if self._calls:
            self._steps.append(CommandStep(self._library, self._calls))
            self._num_commands += len(self._calls)
            self._calls = []

    def _finish(self, node: fx.Node) -> None:
        leaves = pytree.tree_leaves(self._resolve(node.args))
        results = [leaf for leaf in leaves if leaf is not None]
        if len(results) != len(self._outputs):
            raise ValueError(f"the graph returns {len(results)} values, not {len(self._outputs)}")
        copies = []
        for result, output in zip(results, self._outputs, strict=True):
            _check_fits(result, output)
            if result.data_ptr() != output.data_ptr() or not result.is_contiguous():
                copies.append((result, output))
        written = {_storage(output) for _, output in copies}
        for index, (result, output) in enumerate(copies):
            if _storage(result) in written:  # read it before another copy writes to it
                staged = torch.empty_like(output)
                self._add_step(functools.partial(staged.copy_, result))
                copies[index] = (staged, output)
        for result, output in copies:
            self._add_step(functools.partial(output.copy_, result))

    def _find_producers(self) -> dict[tuple[fx.Node, int], Tensor]:
        """Return the operator results that can be computed right in an output buffer."""
        inputs = {_storage(value) for value in self._graph.placeholders.values()}
        results = [node for node in pytree.tree_leaves(self._nodes[-1].args) if node is not None]
        producers = {}
        for node, output in zip(results, self._outputs, strict=False):  # _finish counts them
            producer = _find_producer(node)
            if producer and output.is_contiguous() and _storage(output) not in inputs:
                producers[producer] = output
        return producers


def _find_producer(node: object) -> tuple[fx.Node, int] | None:
    """Return the operator and which result of it a node is, elements in the same order."""
    index = 0
    while isinstance(node, fx.Node) and node.op == "call_function":
        if isinstance(node.target, torch._ops.OpOverload):
            if node.target.namespace == NAMESPACE:
                return node, index
            if node.target._schema.name.split("::")[1] not in _KEEP_ORDER:
                return None
        elif node.target is operator.getitem:
            index = int(node.args[1])  # type: ignore[arg-type]
        node = node.args[0]
    return None


def _check_fits(result: object, output: Tensor) -> None:
    if not isinstance(result, Tensor):
        raise ValueError(f"the graph returns {result}, expected tensors")
    if result.shape != output.shape or result.dtype != output.dtype:
        raise ValueError(
            f"the graph returns {result.dtype} {tuple(result.shape)}, "
            f"its output buffer is {output.dtype} {tuple(output.shape)}"
        )


def _last_uses(nodes: Sequence[fx.Node]) -> dict[int, list[fx.Node]]:
    """Return, by position in the graph, the nodes whose memory nobody reads from there on.

    A view or a getitem may share the memory of its inputs: its uses count as theirs.
    """
    owners: dict[fx.Node, set[fx.Node]] = {}
    last: dict[fx.Node, int] = {}
    for index, node in enumerate(nodes):
        read = {owner for used in node.all_input_nodes for owner in owners[used]}
        owners[node] = {node} | (read if _may_alias(node) else set())
        last.update(dict.fromkeys(read | {node}, index))
    positions: dict[int, list[fx.Node]] = {}
    for node, index in last.items():
        positions.setdefault(index, []).append(node)
    return positions


def _may_alias(node: fx.Node) -> bool:
    if isinstance(node.target, torch._ops.OpOverload):
        return node.target.namespace != NAMESPACE and _is_alias(node.target)
    return True


def _is_alias(target: torch._ops.OpOverload) -> bool:
    return any(result.alias_info is not None for result in target._schema.returns)


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _shares_memory(value: object, inputs: list[object]) -> bool:
    known = {_storage(leaf) for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, Tensor)}
    return all(_storage(leaf) in known for leaf in pytree.tree_leaves(value))


def _empty_like(value: Any) -> Any:
    if not isinstance(value, Tensor):
        raise ValueError(f"cannot lower a result that is not a tensor: {value}")
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)


def _run_torch(target: Callable[..., Any], args: Any, kwargs: Any, outs: Any) -> None:
    results = target(*args, **kwargs)
    for out, result in zip(pytree.tree_leaves(outs), pytree.tree_leaves(results), strict=True):
        out.copy_(result)


def _without_grad(step: Callable[[], object]) -> None:
    with torch.no_grad():
        step()
