"""The same steps by every way to run a kernel: our simulator, the vendor's, and the device.

The last two need the real NKI. Here, what they call is held against the documented signatures.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from attention_cases import FP8, Heads, Layout, Request
from dense_attention import dense_attention
from nki_kernels import (
    IS_REAL,
    SIMULATOR,
    Runner,
    decode_arguments,
    device,
    largest_error,
    make_nki_decode,
    make_nki_prefill,
    prefill_arguments,
    to_torch,
    vendor_simulator,
    with_unused,
)

from noria.kernels.nki.mask_oracles import mask_active, mask_cache
from noria.kernels.nki.signatures import bind_call, documented
from noria.kernels.nki.simulator import simulate

HAS_DEVICE = IS_REAL and any(Path("/dev").glob("neuron*"))
NO_NKI = "needs the real nki, which is not installed"
NO_DEVICE = "needs the real nki and a Neuron device"
RUNNERS = [
    "simulator",
    pytest.param(
        "nki.simulate",
        marks=[pytest.mark.neuron, pytest.mark.skipif(not IS_REAL, reason=NO_NKI)],
    ),
    pytest.param(
        "device",
        marks=[pytest.mark.neuron, pytest.mark.skipif(not HAS_DEVICE, reason=NO_DEVICE)],
    ),
]
TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
FP32 = Heads(2, 2, 64, 64, 16, torch.float32)
BF16 = Heads(2, 2, 128, 128, 16, torch.bfloat16)
SIZES = (40, 4, 2, 32)  # blocks, block size, heads, head dim
DECODES = {
    "plain": ([Request(37, 1, 1), Request(0, 1, 2), Request(16, 1, 3)], Layout(num_requests=4)),
    "drafts": ([Request(70, 8, 1), Request(5, 2, 2)], Layout(num_requests=3)),
    "folds": ([Request(2100, 1, 1), Request(9, 1, 2)], Layout()),
    "nan-in-unused-slots": ([Request(19, 2, 1)], Layout(num_requests=2, padding=1e30)),
}
PREFILLS = {
    "prompt": ([Request(0, 100, 1)], Layout(num_rows=256)),
    "packed": ([Request(37, 130, 1), Request(0, 20, 2)], Layout(num_rows=512, num_requests=3)),
    "long-context": ([Request(600, 3, 1)], Layout(extra_columns=9)),
}

WINDOWED = [{}, {"softcap": 2.0}, {"cache_dtype": FP8, "k_scale": 0.25, "v_scale": 0.5}]


@pytest.fixture(params=RUNNERS)
def runner(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Runner:
    if request.param == "simulator":
        return SIMULATOR
    library = importlib.import_module("nki")
    if request.param == "device":
        return device(library)
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn2")
    return vendor_simulator(library)


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("num_tokens", [1, 128, 150])
def test_kv_write_is_bit_exact(runner: Runner, num_tokens: int, dtype: Any) -> None:
    arrays = write_arrays(num_tokens, dtype, dtype)

    after = runner.call(runner.kernels.kv_write.kv_cache_write, *copies(arrays))

    slots = arrays[4][:, 0]
    for got, cache, new in zip(after, arrays, arrays[2:4], strict=False):
        assert bits(got) == bits(written(cache, new, slots))


def test_kv_write_rounds_to_fp8_once(runner: Runner) -> None:
    arrays = write_arrays(130, ml_dtypes.float8_e4m3, np.float32)
    scale = 0.025

    kernel = runner.kernels.kv_write.kv_cache_write_fp8
    after = runner.call(kernel, *copies(arrays), scale, scale)

    for got, cache, new in zip(after, arrays, arrays[2:4], strict=False):
        stored = np.clip(new * np.float32(1 / scale), -240, 240).astype(cache.dtype)
        assert bits(got) == bits(written(cache, stored, arrays[4][:, 0]))


@pytest.mark.parametrize("heads", [FP32, BF16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("case", DECODES)
def test_decode_attention(runner: Runner, case: str, heads: Heads) -> None:
    check_decode(runner, case, heads, "decode_attention")


@pytest.mark.parametrize("case", DECODES)
def test_transposed_decode_attention(runner: Runner, case: str) -> None:
    check_decode(runner, case, BF16, "decode_attention_transposed")


@pytest.mark.parametrize("heads", [FP32, BF16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("case", PREFILLS)
def test_prefill_attention(runner: Runner, case: str, heads: Heads) -> None:
    step = with_unused(make_nki_prefill(PREFILLS[case][0], heads, PREFILLS[case][1]), float("nan"))

    kernel = runner.kernels.prefill_attention.prefill_attention
    output = to_torch(runner.call(kernel, *prefill_arguments(step)))

    assert largest_error(step, output, dense_attention(step)) <= TOLERANCES[heads.dtype]
    assert not output[step.is_padding()].any()


@pytest.mark.parametrize("options", WINDOWED, ids=["window", "softcap", "fp8"])
@pytest.mark.parametrize("phase", ["decode", "prefill"])
def test_windowed_attention(runner: Runner, phase: str, options: dict[str, Any]) -> None:
    heads = Heads(2, 2, 64, 64, 16, torch.bfloat16, window=23, **options)
    make, arguments = {
        "decode": (make_nki_decode, decode_arguments),
        "prefill": (make_nki_prefill, prefill_arguments),
    }[phase]
    layout = Layout(filler=float("nan"), dropped=1.0, num_requests=3)
    step = make([Request(600, 3, 1), Request(9, 1, 2)], heads, layout)

    module = getattr(runner.kernels, f"{phase}_attention")
    kernel = getattr(module, f"{phase}_attention_windowed")
    output = to_torch(runner.call(kernel, *arguments(step)))

    assert largest_error(step, output, dense_attention(step)) <= TOLERANCES[heads.dtype]
    assert not output[step.is_padding()].any()


def test_masks(runner: Runner) -> None:
    lens = np.array([[0], [5], [512]], np.int32)

    cached = runner.call(runner.kernels.masks.mask_cache, lens, 2, 3, 512, 4)
    active = runner.call(runner.kernels.masks.mask_active, lens, 2, 3)

    expected = mask_cache(lens, num_heads=2, query_len=3, context_size=512)
    np.testing.assert_array_equal(cached, expected)
    np.testing.assert_array_equal(active, mask_active(3, num_heads=2, query_len=3))


@pytest.mark.parametrize(("make", "last"), [(vendor_simulator, "simulate"), (device, "Kernel")])
def test_the_vendors_runners_call_what_is_documented(
    make: Callable[[Any], Runner], last: str
) -> None:
    """Names, parameters and the kinds of arguments; the simulator stands in for the vendor."""
    library = DocumentedNki()
    runner = make(library)
    kernels, slots = runner.kernels, write_arrays(5, np.float32, np.float32)
    decode, prefill = (
        make_nki_decode([Request(3, 1)], FP32),
        make_nki_prefill([Request(3, 5)], FP32),
    )
    calls = {
        kernels.masks.mask_active: (np.zeros((2, 1), np.int32), 2, 3),
        kernels.kv_write.kv_cache_write: slots,
        kernels.decode_attention.decode_attention: decode_arguments(decode),
        kernels.prefill_attention.prefill_attention: prefill_arguments(prefill),
    }

    for kernel, arguments in calls.items():
        found = runner.call(library.jit(kernel), *arguments)
        expected = simulate(kernel)(*arguments)
        assert library.called[-2:] == ["jit", last]
        np.testing.assert_array_equal(found, expected)


def test_the_contract_refuses_what_is_not_documented() -> None:
    library = DocumentedNki()

    with pytest.raises(AttributeError, match="baremetal"):
        _ = library.baremetal
    with pytest.raises(TypeError, match="target"):
        library.simulate(None, target="trn2")
    with pytest.raises(AssertionError):
        library.jit(SIMULATOR.kernels.masks.mask_active)(torch.zeros(2, 1), 2, 3)


class DocumentedNki:
    """Stands for the module ``nki``: it has the documented functions and binds their calls."""

    def __init__(self) -> None:
        self.called: list[str] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in documented()["nki"].functions:
            raise AttributeError(f"nki.{name} is not documented")

        def call(*args: Any, **kwargs: Any) -> Any:
            (kernel,) = bind_call(documented()["nki"].functions[name], args, kwargs).values()
            self.called.append(name)
            if name == "jit":
                return DocumentedKernel(kernel, self.called)
            return simulate(kernel.function)

        return call


@dataclass
class DocumentedKernel:
    """Stands for what ``nki.jit`` returns: called with arrays, it needs no framework."""

    function: Any
    called: list[str]

    def __call__(self, *args: Any) -> Any:
        assert all(isinstance(each, np.ndarray | int | float) for each in args)
        self.called.append("Kernel")
        return simulate(self.function)(*args)


def check_decode(runner: Runner, case: str, heads: Heads, pathway: str) -> None:
    requests, layout = DECODES[case]
    step = with_unused(make_nki_decode(requests, heads, layout), float("nan"))

    kernel = getattr(runner.kernels.decode_attention, pathway)
    output = to_torch(runner.call(kernel, *decode_arguments(step)))

    assert largest_error(step, output, dense_attention(step)) <= TOLERANCES[heads.dtype]
    assert not output[step.is_padding()].any()


def write_arrays(num_tokens: int, cache_dtype: Any, dtype: Any) -> list[np.ndarray]:
    """Return caches, new keys and values, and slots of which every fourth is -1."""
    rng = np.random.default_rng(num_tokens)
    caches = [rng.standard_normal(SIZES).astype(cache_dtype) for _ in range(2)]
    new = [rng.standard_normal((num_tokens, *SIZES[2:])).astype(dtype) for _ in range(2)]
    slots = rng.permutation(SIZES[0] * SIZES[1])[:num_tokens].astype(np.int32).reshape(-1, 1)
    slots[3::4] = -1
    return [*caches, *new, slots]


def copies(arrays: list[np.ndarray]) -> list[np.ndarray]:
    """Return arrays that a kernel may change."""
    return [array.copy() for array in arrays]


def written(cache: np.ndarray, new: np.ndarray, slots: np.ndarray) -> np.ndarray:
    after = cache.copy()
    after.reshape(-1, *SIZES[2:])[slots[slots >= 0]] = new[slots >= 0]
    return after


def bits(array: Any) -> bytes:
    return np.ascontiguousarray(array).tobytes()
