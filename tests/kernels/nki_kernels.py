"""The NKI kernels on torch steps: as they are or with their source changed, by any Runner.

Kernels are executed from their sources, so that on a host with the real NKI the simulator and the
vendor's tools each get their own. Importing this module installs the simulator where there is no
real NKI, so tests import it before any kernel module.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import torch
from attention_cases import FP8, Heads, Layout, Request, Step, make_decode, make_prefill
from numpy.typing import NDArray
from torch import Tensor

from noria.kernels import nki
from noria.kernels.contract import num_blocks_for
from noria.kernels.nki.simulator import Trace, install, isa_dma, simulate
from noria.kernels.nki.simulator.install import simulated_modules

IS_REAL = not install()
"""Whether this host has the real NKI."""

SOURCES = (
    *("masks", "online_softmax", "block_gather", "token_gather", "windows"),
    *("decode_rows", "tile_rows"),
    *("kv_write", "decode_attention", "prefill_attention"),
)
FOLD = 128
TILE = 128
Patch = tuple[str, str, str]
_numbers = itertools.count()


def load_kernels(
    *patches: Patch, libraries: Mapping[str, ModuleType] | None = None
) -> SimpleNamespace:
    """Return the kernels' modules, with (module, old text, new text) replaced in their sources.

    ``libraries`` are the modules that ``import nki`` finds meanwhile: the simulator's by default.
    """
    package = ModuleType(f"kernels_under_test_{next(_numbers)}")
    package.__path__ = []
    sys.modules[package.__name__] = package
    with _importable(simulated_modules() if libraries is None else libraries):
        modules = {name: _load(package.__name__, name, patches) for name in SOURCES}
    return SimpleNamespace(**modules)


@contextmanager
def _importable(modules: Mapping[str, ModuleType]) -> Iterator[None]:
    before = {name: sys.modules.get(name) for name in modules}
    sys.modules.update(modules)
    yield
    for name, module in before.items():
        if module is None:
            del sys.modules[name]
        else:
            sys.modules[name] = module


def _load(package: str, name: str, patches: Sequence[Patch]) -> ModuleType:
    path = Path(nki.__path__[0]) / f"{name}.py"
    source = path.read_text(encoding="utf-8")
    for _, old, new in (patch for patch in patches if patch[0] == name):
        assert old in source, f"{name} no longer contains {old!r}"
        source = source.replace(old, new)
    module = ModuleType(f"{package}.{name}")
    module.__package__ = package
    module.__file__ = str(path)
    sys.modules[module.__name__] = module
    exec(compile(source, str(path), "exec"), module.__dict__)
    return module


KERNELS = load_kernels()


@dataclass(frozen=True)
class Runner:
    """One way to run kernels: ``call`` takes a kernel and numpy arrays, and returns arrays."""

    name: str
    kernels: SimpleNamespace
    call: Callable[..., Any]


SIMULATOR = Runner("simulator", KERNELS, lambda kernel, *args: simulate(kernel)(*args))


def vendor_simulator(library: Any) -> Runner:
    """Return the vendor's simulator, given the module ``nki``. The target is in the environment."""
    return Runner(
        "nki.simulate",
        load_kernels(libraries={}),
        lambda kernel, *args: library.simulate(kernel)(*args),
    )


def device(library: Any) -> Runner:
    """Return the device: a kernel called with arrays is compiled and runs without a framework."""
    return Runner("device", load_kernels(libraries={}), lambda kernel, *args: kernel(*args))


def make_nki_decode(
    requests: Sequence[Request], heads: Heads, layout: Layout | None = None, folds: int = 0
) -> Step:
    """Lay out a decode step for the kernels: whole folds (at least ``folds``), N % 16 == 0."""
    layout = layout or Layout()
    needs = [num_blocks_for(request.num_tokens, heads.block_size) for request in requests]
    width = max(-(-max(needs) // FOLD), folds, 1) * FOLD
    free = layout.free_blocks + -(1 + sum(needs) + layout.free_blocks) % 16
    layout = replace(layout, extra_columns=width - max(needs), free_blocks=free)
    return make_decode(requests, heads, layout)


def make_nki_prefill(
    requests: Sequence[Request], heads: Heads, layout: Layout | None = None
) -> Step:
    """Lay out a prefill step for the kernels: requests start at multiples of 128 rows."""
    return make_prefill(requests, heads, replace(layout or Layout(), tile=TILE))


def run_decode(
    step: Step,
    kernels: SimpleNamespace = KERNELS,
    pathway: str = "decode_attention",
    trace: Trace | None = None,
    target: str = "trn2",
) -> Tensor:
    """Return the output rows of a decode step whose cache already holds its new tokens."""
    name = pathway if step.heads.window is None else f"{pathway}_windowed"
    kernel = getattr(kernels.decode_attention, name)
    return to_torch(simulate(kernel, target=target, trace=trace)(*decode_arguments(step)))


def decode_arguments(step: Step) -> tuple[Any, ...]:
    """Return what the decode kernels take, for a step whose cache holds its new tokens."""
    named, spec = step.named, step.heads.spec
    query_len = step.args[0].shape[0] // named["block_table_SW"].shape[0]
    return (
        to_numpy(step.args[0]),
        *(to_numpy(cache) for cache in step.expected_caches),
        to_numpy(named["block_table_SW"]),
        column(named["context_lens_S"]),
        column(named["query_lens_S"]),
        *_offsets(step),
        spec.scale * spec.k_scale,
        query_len,
        *_options(step),
    )


def run_prefill(
    step: Step, kernels: SimpleNamespace = KERNELS, trace: Trace | None = None
) -> Tensor:
    """Return the output rows of a prefill step whose cache already holds its new tokens."""
    windowed = "" if step.heads.window is None else "_windowed"
    kernel = getattr(kernels.prefill_attention, f"prefill_attention{windowed}")
    return to_torch(simulate(kernel, target="trn2", trace=trace)(*prefill_arguments(step)))


def prefill_arguments(step: Step) -> tuple[Any, ...]:
    """Return what the prefill kernels take, for a step whose cache holds its new tokens."""
    named, spec = step.named, step.heads.spec
    return (
        to_numpy(step.args[0]),
        *(to_numpy(cache) for cache in step.expected_caches),
        to_numpy(named["block_table_PW"]),
        column(named["tile_request"]),
        column(named["query_start_loc"]),
        column(named["context_lens_P"]),
        column(named["query_lens_P"]),
        *_offsets(step),
        spec.scale * spec.k_scale,
        *_options(step),
    )


def _offsets(step: Step) -> list[NDArray[np.int32]]:
    """Return the input that kernels with a window have."""
    if step.heads.window is None:
        return []
    lengths = step.named["context_lens_P" if step.is_prefill else "context_lens_S"]
    return [column(step.named.get("block_offset", torch.zeros_like(lengths)))]


def _options(step: Step) -> list[float]:
    """Return window, soft cap and v_scale as far as the step needs them."""
    spec = step.heads.spec
    options = [] if spec.window is None else [spec.window]
    if spec.softcap is not None or spec.v_scale != 1:
        options.append(spec.softcap or 0.0)
    if spec.v_scale != 1:
        options.append(spec.v_scale)
    return options


def run_write(
    caches: Sequence[Tensor],
    new: Sequence[Tensor],
    slots: Tensor,
    kernels: SimpleNamespace = KERNELS,
) -> tuple[Tensor, Tensor]:
    """Return both caches after the new keys and values were written by slot."""
    arrays = [to_numpy(tensor) for tensor in (*caches, *new)]
    kernel = kernels.kv_write.kv_cache_write
    k_cache, v_cache = simulate(kernel, target="trn2")(*arrays, column(slots))
    return to_torch(k_cache), to_torch(v_cache)


def column(values: Tensor) -> NDArray[np.int32]:
    """Return int32 values as the kernels take them, ``[n, 1]``."""
    return to_numpy(values).reshape(-1, 1)


def to_numpy(tensor: Tensor | NDArray[Any]) -> NDArray[Any]:
    """Return a fresh array of the same bits."""
    if isinstance(tensor, np.ndarray):
        return tensor.copy()
    tensor = tensor.contiguous()
    if tensor.dtype == FP8:
        return tensor.view(torch.uint8).numpy().copy().view(ml_dtypes.float8_e4m3)
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().copy().view(ml_dtypes.bfloat16)
    return tensor.numpy().copy()


def to_torch(array: NDArray[Any]) -> Tensor:
    """Return a fresh tensor of the same bits."""
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(array.copy())


def largest_error(step: Step, output: Tensor, expected: Sequence[NDArray[np.float64]]) -> float:
    """Return the largest absolute difference of a step's real rows; NaN counts as infinite."""
    rows = step.request_rows(output)
    pairs = [(r.double().numpy(), e) for r, e in zip(rows, expected, strict=True) if e.size]
    errors = [np.nan_to_num(np.abs(r - e), nan=np.inf).max() for r, e in pairs]
    return float(max(errors, default=0.0))


def with_unused(step: Step, value: float) -> Step:
    """Return the step with a value in every cache slot that no request owns."""
    owned = torch.zeros(step.expected_caches[0].shape[:2], dtype=torch.bool)
    for request, blocks in zip(step.requests, step.blocks, strict=True):
        positions = torch.arange(request.num_tokens, dtype=torch.int32)
        size = step.heads.block_size
        owned[blocks[positions // size], positions % size] = True
    return replace(step, expected_caches=_filled(step, ~owned, value))


def with_request(step: Step, index: int, value: float) -> Step:
    """Return the step with a value in all blocks of one request."""
    blocks = torch.zeros(step.expected_caches[0].shape[0], dtype=torch.bool)
    blocks[step.blocks[index]] = True
    return replace(step, expected_caches=_filled(step, blocks, value))


def _filled(step: Step, where: Tensor, value: float) -> tuple[Tensor, Tensor]:
    k_cache, v_cache = (cache.clone() for cache in step.expected_caches)
    k_cache[where], v_cache[where] = value, value
    return k_cache, v_cache


def with_fp8_cache(step: Step) -> tuple[Step, Step]:
    """Return the step with its cache rounded to FP8: kept in its own dtype, and as FP8."""
    fp8 = [to_numpy(cache).astype(ml_dtypes.float8_e4m3) for cache in step.expected_caches]
    exact = [to_torch(cache.astype(ml_dtypes.bfloat16)) for cache in fp8]
    first, second = (replace(step, expected_caches=tuple(caches)) for caches in (exact, fp8))
    return first, second


def wrap_negative_indices(view: Any) -> NDArray[np.int64]:
    """Read run-time indices as Python does, from the end: what a simulator must not do."""
    index = _read_index(view)
    return np.where(index < 0, index + view.indirection.limit, index)


_read_index = isa_dma._row_index
