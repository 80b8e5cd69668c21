"""Runs `backend: neuron` on the stand-in, in a process of its own; prints what happened as JSON.

Its one argument is JSON: ``settings`` of an engine, ``prompts``, ``patches`` of Noria's sources
(module, old text, new text), and ``do``, what is done after the first prompts.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from stand_in import NAME_SALT, NUM_COMPILED, NUM_RUNS, compile_once, install


def load_patched(module: str, patches: list[list[str]]) -> None:
    """Import a module of Noria's with its source changed."""
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    source = Path(spec.origin).read_text(encoding="utf-8")
    for _, old, new in (patch for patch in patches if patch[0] == module):
        assert old in source, f"{module} no longer contains {old!r}"
        source = source.replace(old, new)
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[module] = loaded
    exec(compile(source, spec.origin, "exec", dont_inherit=True), loaded.__dict__)
    parent, _, name = module.rpartition(".")
    setattr(import_module(parent), name, loaded)


def on_the_cpu() -> None:
    """Let the device be "cpu", where only what the kernels hand out is in its memory."""
    device_kernels = import_module("noria.kernels.neuron.device_kernels")
    device_graph = import_module("noria.kernels.neuron.device_graph")
    vendor = import_module("noria.kernels.neuron.vendor")
    packages = import_module("noria.kernels.neuron.packages")
    vendor._device = lambda: torch.device("cpu")
    vendor.refusal = partial(packages.refusal, python=(3, 12))
    kernels, held = device_kernels.DeviceKernels, []
    zeros, plain = kernels.zeros, device_graph.on_device

    def remembered(tensor: Any) -> Any:
        held.append(tensor)
        return tensor

    kernels.zeros = lambda self, shape, dtype: remembered(zeros(self, shape, dtype))
    device_kernels.on_device = lambda tensor, device: remembered(plain(tensor, device))
    kernels.is_on_device = lambda self, tensor: any(one is tensor for one in held)


def trace_without_weights(llm: Any) -> dict[str, int]:
    """Trace every graph as a worker process does; return by name how many bytes are new."""
    from noria.runtime.compiled_set.tracing import Recipe, Tracer

    architecture = llm.loaded.source.architecture
    tracer = Tracer(Recipe(llm.config, architecture, None, llm.loaded.cache_size.num_blocks))
    nothing = len(import_module("noria.kernels.neuron.neff_cache").pack({}))
    return {one.name: len(tracer.trace(one.name)) - nothing for one in tracer.graphs}


def problems() -> dict[str, list[str]]:
    """Run the steps that are to be run on a device first."""
    from device_steps import STEPS, problems_of

    from noria.kernels.neuron.device_kernels import DeviceKernels

    kernels = DeviceKernels.of_this_machine("trn2")
    return {name: problems_of(step, kernels) for name, step in STEPS.items()}


def main(given: dict[str, Any]) -> dict[str, Any]:
    neuron = install()
    neuron.is_here = given.get("do") != "no device"
    for module in {patch[0] for patch in given["patches"]}:
        load_patched(module, given["patches"])
    on_the_cpu()
    if given.get("do") == "stale names":
        NAME_SALT.append("made by another version")
    if given.get("do") == "steps":
        return {"problems": problems()}
    from noria.runtime import LLM, SamplingParams

    llm = LLM(given["settings"])
    params = SamplingParams(temperature=0, max_tokens=4)
    tokens = [list(one.token_ids) for one in llm.generate(given["prompts"], params)]
    compiled, runs = len(NUM_COMPILED), len(NUM_RUNS)
    kernels = llm.loaded.graphs._kernels
    if given.get("do") == "compile beside a graph":
        compile_once("f" * 32, "an operator on the device, outside of a graph")
    if given.get("do") == "another shape":
        graph = next(iter(llm.loaded.graphs.models.values()))
        built = graph.run.__closure__[1].cell_contents.__self__  # type: ignore[attr-defined]
        built._tensors = [torch.cat([one, one]) for one in built._tensors]
    traced = trace_without_weights(llm) if given.get("do") == "trace without weights" else {}
    again = [list(one.token_ids) for one in llm.generate(given["prompts"], params)]
    assert again == tokens
    return {
        "tokens": tokens,
        "traced": traced,
        "compiled": compiled,
        "runs": runs,
        "compilations": llm.loaded.graphs.num_compilations,
        "names": sorted(kernels._neffs.names()),
        "environment": {k: v for k, v in os.environ.items() if k.startswith(("NEURON", "TORCH_N"))},
        "fingerprint": dict(kernels.fingerprint),
        "invariant": llm.loaded.invariance.is_invariant,
    }


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
