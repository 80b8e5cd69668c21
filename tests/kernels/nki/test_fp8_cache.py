"""FP8 caches and soft caps in the simulator, alone and with windows, through the KernelSet too."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from attention_cases import FP8, Heads, Layout, Request, Step, same_bits
from dense_attention import dense_attention
from nki_kernels import (
    largest_error,
    load_kernels,
    make_nki_decode,
    make_nki_prefill,
    run_decode,
    run_prefill,
)
from torch import Tensor

from noria.kernels.contract import AttentionSpec
from noria.kernels.nki.simulator import Trace
from noria.kernels.nki.simulator.cost import traffic
from noria.kernels.nki.target import NkiSimKernels
from noria.kernels.reference import ReferenceKernels

TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
CACHES = ("k_cache", "v_cache")
NAN = float("nan")
LARGEST = {"trn2": 240.0, "trn3": 448.0}
REQUESTS = [Request(70, 3, 1), Request(0, 3, 2), Request(15, 1, 3), Request(33, 2, 4)]
PHASES = pytest.mark.parametrize(
    ("make", "run"),
    [(make_nki_decode, run_decode), (make_nki_prefill, run_prefill)],
    ids=["decode", "prefill"],
)
DTYPES = pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
TARGETS = pytest.mark.parametrize("target", LARGEST)
SCALES = [(1.0, 1.0), (0.021, 0.37), (3.0, 0.5)]
"""None brings a value beyond 240."""


def fp8_heads(dtype: torch.dtype = torch.float32, **more: Any) -> Heads:
    return Heads(2, 3, 24, 24, 16, dtype, cache_dtype=FP8, **more)


def error_of(step: Step, output: Tensor) -> float:
    return largest_error(step, output, dense_attention(step))


def by_row(step: Step) -> Step:
    """Return the step as the reference takes it: in tiles of one row."""
    if not step.is_prefill:
        return step
    return step.with_named(tile_request=step.named["tile_request"].repeat_interleave(128))


@PHASES
@DTYPES
@pytest.mark.parametrize("softcap", [0.5, 2.0, 50.0])
@pytest.mark.parametrize("window", [None, 9])
def test_soft_caps_match_the_dense_oracle(make, run, dtype, softcap, window) -> None:
    heads = Heads(2, 3, 24, 24, 16, dtype, window, softcap)
    step = make(REQUESTS, heads, Layout(filler=NAN, padding=NAN, dropped=1.0, num_requests=5))

    assert error_of(step, run(step)) <= TOLERANCES[dtype]


@PHASES
@pytest.mark.parametrize("poison", [NAN, 1e30], ids=["nan", "1e30"])
def test_capped_scores_of_unused_slots_change_no_bit(make, run, poison: float) -> None:
    heads = Heads(2, 3, 24, 24, 16, torch.float32, None, 2.0)
    dirty = make(REQUESTS, heads, Layout(filler=poison, padding=poison, num_requests=5))

    clean = make(REQUESTS, heads, Layout(num_requests=5))

    assert same_bits(run(clean), run(dirty))


def test_the_transposed_pathway_caps_alike() -> None:
    step = make_nki_decode(REQUESTS, Heads(2, 2, 128, 128, 16, torch.bfloat16, None, 1.5))

    transposed = run_decode(step, pathway="decode_attention_transposed")

    assert error_of(step, transposed) <= TOLERANCES[torch.bfloat16]
    assert same_bits(transposed, run_decode(step))


@PHASES
@pytest.mark.parametrize(
    "patch",
    [
        ("online_softmax", "data=products, scale=scale / softcap", "data=products, scale=scale"),
        ("online_softmax", "if scoring[1] == 0.0 else scoring[1]", "if True else scoring[1]"),
        ("online_softmax", "op=nl.tanh", "op=nl.copy"),
    ],
    ids=["not-divided", "not-multiplied", "no-tanh"],
)
def test_a_wrong_cap_is_found(make, run, patch: tuple[str, str, str]) -> None:
    step = make(REQUESTS, Heads(2, 3, 24, 24, 16, torch.float32, None, 0.7))

    assert error_of(step, run(step, load_kernels(patch))) > 1e-2


@PHASES
@DTYPES
@pytest.mark.parametrize("scales", SCALES)
@pytest.mark.parametrize("window", [None, 9])
def test_fp8_caches_match_the_dense_oracle(make, run, dtype, scales, window) -> None:
    """The oracle is fp64 over ``scale * stored``."""
    heads = fp8_heads(dtype, window=window, k_scale=scales[0], v_scale=scales[1])
    step = make(REQUESTS, heads, Layout(filler=NAN, padding=NAN, dropped=1.0, num_requests=5))

    assert error_of(step, run(step)) <= max(1.0, scales[1]) * TOLERANCES[dtype]


@PHASES
@pytest.mark.parametrize("window", [None, 40])
def test_fp8_moves_half_the_bytes(make, run, window: int | None) -> None:
    moved = []
    for cache_dtype in (torch.bfloat16, FP8):
        heads = Heads(2, 3, 24, 24, 16, torch.bfloat16, window, cache_dtype=cache_dtype)
        trace = Trace()
        run(make(REQUESTS, heads), trace=trace)
        moved.append(traffic(trace, CACHES).moved_bytes)

    assert moved[0] == 2 * moved[1] > 0


@PHASES
@DTYPES
@pytest.mark.parametrize("block_size", [16, 128])
def test_a_layer_of_full_size_fits_on_chip(make, run, dtype, block_size: int) -> None:
    """32 query heads over 8 key/value heads of 128, with all that a layer may ask for."""
    heads = Heads(8, 4, 128, 128, block_size, dtype, 40, 30.0, FP8, 0.5, 0.5)

    step = make([Request(20, 8)], heads)

    assert error_of(step, run(step)) <= TOLERANCES[dtype]


@PHASES
@TARGETS
@DTYPES
@pytest.mark.parametrize(
    ("window", "softcap", "fp8"),
    [(None, None, True), (21, None, False), (None, 2.0, False), (21, 2.0, True)],
    ids=["fp8", "window", "softcap", "all"],
)
def test_the_kernel_set_agrees_with_the_reference(
    make, run, target: str, dtype: torch.dtype, window, softcap, fp8: bool
) -> None:
    """What both write are the same bytes: scales that are powers of two divide exactly."""
    options = {"cache_dtype": FP8, "k_scale": 0.125, "v_scale": 0.25} if fp8 else {}
    heads = Heads(2, 3, 24, 24, 16, dtype, window, softcap, **options)
    step = make(REQUESTS, heads, Layout(filler=NAN, padding=NAN, dropped=1.0, num_requests=5))

    output, *caches = step.run(NkiSimKernels(target))

    expected, *expected_caches = by_row(step).run(ReferenceKernels())
    assert float((output - expected).abs().max()) <= TOLERANCES[dtype]
    assert all(same_bits(*pair) for pair in zip(caches, expected_caches, strict=True))
    assert all(same_bits(*pair) for pair in zip(caches, step.expected_caches, strict=True))


def test_the_two_formats_have_the_same_bits_up_to_240_and_no_further() -> None:
    codes = np.arange(256, dtype=np.uint8)
    with np.errstate(invalid="ignore"):
        trn2, trn3 = (
            codes.view(kind).astype(np.float32)
            for kind in (ml_dtypes.float8_e4m3, ml_dtypes.float8_e4m3fn)
        )

    is_shared = codes & 0x7F <= 0x77
    np.testing.assert_array_equal(trn2[is_shared], trn3[is_shared])
    assert np.abs(trn2[is_shared]).max() == LARGEST["trn2"]
    assert not np.isfinite(trn2[~is_shared]).any()
    assert np.nanmax(np.abs(trn3)) == LARGEST["trn3"]


def written(x: Tensor, scale: float, target: str) -> Tensor:
    """What one decode step leaves in the key cache for ``x`` ``[R, 8]``."""
    rows = x[:, None]
    caches = [torch.zeros(x.shape[0], 1, 1, 8).to(FP8) for _ in range(2)]
    slots = torch.arange(x.shape[0], dtype=torch.int32)
    table = torch.full((x.shape[0], 128), -1, dtype=torch.int32)
    table[:, 0] = slots
    NkiSimKernels(target).attend_decode(
        torch.zeros_like(rows),
        rows,
        rows,
        *caches,
        slot_mapping_R=slots,
        block_table_SW=table,
        context_lens_S=torch.zeros_like(slots),
        query_lens_S=torch.ones_like(slots),
        spec=AttentionSpec(scale=1.0, k_scale=scale, v_scale=scale),
    )
    assert same_bits(*caches)
    return caches[0].flatten(1)


@TARGETS
@pytest.mark.parametrize("scale", [1.0, 0.25, 0.037])
def test_what_is_written_saturates_where_the_device_does(target: str, scale: float) -> None:
    largest = LARGEST[target]
    values = [1.0, -0.3, 239.0, 240.0, 247.9, 249.0, 300.0, -448.0, 1e30, -1e30, 1e-9, 0.0, 17.3]
    inner = torch.linspace(-largest, largest, 83).tolist()
    x = torch.tensor(values + inner).reshape(-1, 8)

    stored = written(x * scale, scale, target).float()

    assert float(stored.abs().max()) == largest
    scaled = ((x * scale) * (1 / torch.tensor(scale))).clamp(-largest, largest)
    assert torch.equal(stored, scaled.to(FP8).float())


@TARGETS
def test_nan_stays_nan_and_infinity_saturates(target: str) -> None:
    x = torch.tensor([[NAN, float("inf"), float("-inf"), 1.0, 2.0, 3.0, 4.0, 5.0]])

    codes = written(x, 1.0, target).view(torch.uint8).numpy()

    kind = ml_dtypes.float8_e4m3 if target == "trn2" else ml_dtypes.float8_e4m3fn
    read = codes.view(kind).astype(np.float32)[0]
    largest = LARGEST[target]
    np.testing.assert_array_equal(read, [NAN, largest, -largest, 1, 2, 3, 4, 5])


def test_scales_of_a_plain_cache_are_refused() -> None:
    heads = Heads(2, 2, 8, 8, 16, torch.float32, k_scale=2.0)

    with pytest.raises(ValueError, match=r"k_scale is 2\.0"):
        make_nki_decode(REQUESTS, heads).run(NkiSimKernels())
