"""A stand-in for torch_neuronx and nki, on the CPU, with the documented signatures and no more.

Its device is "cpu". Kernels of its nki run in our simulator; ``nki_op`` infers schemas by torch and
holds what an operator changed, bit by bit, against what it declares. Its compiler writes a file per
graph to the folder that the environment names, as the vendor's is known to.

Only processes of their own use it: operators and backends of torch are registered once.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import sys
from collections.abc import Callable, Iterable
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from noria.kernels.nki.signatures import bind_call, documented
from noria.kernels.nki.simulator import isa, language, simulate
from noria.kernels.nki.target import array_of, tensor_of

NUM_COMPILED: list[str] = []
"""Names of the graphs that the compiler was run for."""
NUM_RUNS: list[str] = []
"""Of the graphs that were run."""
REGISTERED: list[str] = []
"""Names of operators."""
NAME_SALT: list[str] = []
"""What goes into names of files besides the graph."""


class NkiKernel:
    """What the stand-in's ``nki.jit`` returns: called with tensors, it runs; a grid is refused."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, *args: Any) -> Any:
        assert not any(isinstance(one, Tensor) and one.is_meta for one in args)
        tensors = [one for one in args if isinstance(one, Tensor)]
        arrays = [array_of(one) if isinstance(one, Tensor) else one for one in args]
        assert all(one.is_contiguous() for one in tensors)
        hash(tuple(one for one in args if not isinstance(one, Tensor)))
        target = os.environ["NEURON_PLATFORM_TARGET_OVERRIDE"]
        result = simulate(self.function, target=target)(*arrays)
        if isinstance(result, tuple):
            return tensors[:2]
        return tensor_of(result, like=tensors[0])


def jit(
    fn: Any = None, *, compile_config: Any = None, specialization_config: Any = None, **kwargs: Any
) -> Any:
    return NkiKernel(fn) if fn is not None else NkiKernel


class WrongMutationError(RuntimeError):
    """An operator changed what it does not declare."""


def nki_op(
    name: str, fn: Callable[..., Any] | None = None, mutates_args: str | Iterable[str] = ()
) -> Any:
    """Register an operator; its schema comes from type hints."""
    if fn is None:
        return lambda function: nki_op(name, function, mutates_args)
    if name in REGISTERED:
        raise RuntimeError(f"{name} is registered already")
    REGISTERED.append(name)

    def checked(*args: Any) -> Any:
        before = [one.clone() if isinstance(one, Tensor) else None for one in args]
        result = fn(*args)
        names = fn.__code__.co_varnames
        for index, (one, old) in enumerate(zip(args, before, strict=True)):
            if old is not None and not same_bits(one, old) and names[index] not in mutates_args:
                problem = f"{name} changed {names[index]} and does not declare it"
                PENDING.append(WrongMutationError(problem))
        return result

    checked.__annotations__ = fn.__annotations__
    vars(checked)["__signature__"] = inspect.signature(fn)
    schema = torch.library.infer_schema(fn, mutates_args=mutates_args)
    operator = torch.library.custom_op(name, checked, mutates_args=mutates_args, schema=schema)
    has_result = fn.__annotations__["return"] is not None
    operator.register_fake(
        lambda q, *rest: q.new_empty((q.shape[0], q.shape[1] * q.shape[2])) if has_result else None
    )
    return operator


def same_bits(first: Tensor, second: Tensor) -> bool:
    return torch.equal(first.view(torch.uint8), second.view(torch.uint8))


class Neuron(ModuleType):
    """``torch.neuron``."""

    is_here = True

    def is_available(self) -> bool:
        return self.is_here

    def current_device(self) -> int:
        return 0

    def synchronize(self, device: Any = None) -> None:
        errors = list(PENDING)
        PENDING.clear()
        if errors:
            raise errors[0]


PENDING: list[Exception] = []
"""Errors of what is queued: they are raised by ``synchronize``."""


def backend(module: torch.fx.GraphModule, inputs: list[Tensor], **options: Any) -> Any:
    """Compile: refuse what is documented as refused, and keep a file per graph."""
    if options:
        raise ValueError(f"options that no page lists: {options}")
    values = [node.meta.get("example_value") for node in module.graph.nodes]
    if any(isinstance(value, torch.SymInt) for value in values):
        raise ValueError("a shape is not static")
    has_kernels = "noria_neuron" in module.code
    if has_kernels and os.environ["NEURON_LOGICAL_NC_CONFIG"] != "1":
        raise RuntimeError("NCC_EVRF066: a kernel is configured with LNC=1")
    shapes = [(tuple(one.shape), str(one.dtype)) for one in inputs if isinstance(one, Tensor)]
    text = f"{module.print_readable(print_output=False)}{shapes}{NAME_SALT}"
    key = hashlib.sha256(text.encode()).hexdigest()[:32]
    compile_once(key, text)

    @torch.compiler.disable
    def run(*args: Any) -> Any:
        NUM_RUNS.append(key)
        return module.forward(*args)

    return run


def compile_once(key: str, text: str) -> None:
    folder = Path(os.environ["TORCH_NEURONX_NEFF_CACHE_DIR"])
    path = folder / key[:2] / key[2:4] / f"{key}.neff"
    if path.exists():
        return
    NUM_COMPILED.append(key)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"NEFF" + text.encode())


class NativePackage(MetaPathFinder, Loader):
    """Finds torch_neuronx, which takes its settings from the environment when it is imported."""

    def __init__(self, neuron: Neuron) -> None:
        self.neuron = neuron

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name == "torch_neuronx" else None

    def exec_module(self, module: ModuleType) -> None:
        for name in ("NEFF_CACHE_DIR", "DISABLE_FALLBACK_EXECUTION"):
            assert f"TORCH_NEURONX_{name}" in os.environ
        vars(module)["nki_op"] = nki_op
        vars(torch)["neuron"] = self.neuron
        torch._dynamo.register_backend(backend, name="neuron")


def install() -> Neuron:
    """Make both packages importable; call this before anything imports a kernel."""
    package = ModuleType("nki")
    package.__path__ = []
    modules = {
        "nki": package,
        "nki.isa": bound(isa, "nki.isa"),
        "nki.language": bound(language, "nki.language"),
    }
    vars(package).update(jit=jit, isa=modules["nki.isa"], language=modules["nki.language"])
    for name, module in modules.items():
        module.__spec__ = ModuleSpec(name, None)
    sys.modules.update(modules)
    neuron = Neuron("torch.neuron")
    sys.meta_path.insert(0, NativePackage(neuron))
    return neuron


def bound(module: ModuleType, name: str) -> ModuleType:
    """Return the simulator's module, whose functions take documented calls only."""
    result = ModuleType(name)
    for attribute, value in vars(module).items():
        signature = documented()[name].functions.get(attribute)
        setattr(result, attribute, value if signature is None else checked(value, signature))
    return result


def checked(function: Callable[..., Any], signature: Any) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        bind_call(signature, args, kwargs)
        return function(*args, **kwargs)

    return call
