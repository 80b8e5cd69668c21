"""The KV write kernels, bit by bit: what is written where, and what stays as it was."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch
from attention_cases import Heads, Request, make_decode, same_bits
from hypothesis import given, settings
from hypothesis import strategies as st
from nki_kernels import KERNELS, load_kernels, run_write, wrap_negative_indices
from torch import Tensor

from noria.kernels.contract import compute_slots
from noria.kernels.nki.simulator import SimulationError, isa_dma, simulate

SIZES = (5, 4, 2, 3)  # blocks, block size, heads, head dim


def make_caches(dtype: torch.dtype, shape: tuple[int, ...] = SIZES) -> tuple[Tensor, Tensor]:
    count = int(np.prod(shape))
    first = torch.arange(count, dtype=torch.float64).reshape(shape)
    return first.to(dtype), (-1 - first).to(dtype)


def make_new(num_tokens: int, dtype: torch.dtype, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shape = (num_tokens, *SIZES[2:])
    k, v = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))
    return k.to(dtype), v.to(dtype)


def written(cache: Tensor, new: Tensor, slots: Tensor) -> Tensor:
    """Write by a plain loop."""
    result = cache.clone()
    num_blocks, block_size = cache.shape[:2]
    for token, slot in enumerate(slots.tolist()):
        if 0 <= slot < num_blocks * block_size:
            result[slot // block_size, slot % block_size] = new[token]
    return result


def check(caches: tuple[Tensor, Tensor], new: tuple[Tensor, Tensor], slots: Tensor) -> None:
    after = run_write(caches, new, slots)

    for got, cache, rows in zip(after, caches, new, strict=True):
        assert same_bits(got, written(cache, rows, slots))


def int32(values: list[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("num_tokens", [1, 5, 127, 128, 129, 300])
def test_tokens_go_to_their_slots(num_tokens: int, dtype: torch.dtype) -> None:
    caches = make_caches(dtype, (80, *SIZES[1:]))
    order = torch.randperm(320, generator=torch.Generator().manual_seed(num_tokens))
    slots = order[:num_tokens].to(torch.int32)
    slots[::3] = -1

    check(caches, make_new(num_tokens, dtype), slots)


@settings(max_examples=25, deadline=None)
@given(
    st.permutations(range(-8, 20)),
    st.integers(1, 28),
    st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_random_slots(order: list[int], num_tokens: int, dtype: torch.dtype) -> None:
    slots = int32([max(slot, -1) for slot in order[:num_tokens]])

    check(make_caches(dtype), make_new(num_tokens, dtype), slots)


def test_c01_padding_never_writes_the_last_slot_or_the_null_block() -> None:
    caches, new = make_caches(torch.float32), make_new(4, torch.float32)

    after = run_write(caches, new, int32([-1, 6, -1, -1]))

    for got, cache in zip(after, caches, strict=True):
        assert same_bits(got[-1], cache[-1])
        assert same_bits(got[0], cache[0])
        assert int((got != cache).any(-1).any(-1).sum()) == 1


def test_d09_all_padding_writes_nothing() -> None:
    caches = make_caches(torch.bfloat16)

    after = run_write(caches, make_new(130, torch.bfloat16), int32([-1] * 130))

    assert all(same_bits(got, cache) for got, cache in zip(after, caches, strict=True))


def test_c11_the_unsigned_sentinel_is_out_of_bounds_too() -> None:
    caches, new = make_caches(torch.float32), make_new(3, torch.float32)

    check(caches, new, int32([2**31 - 1, 3, 5 * 4]))


def test_nan_and_infinity_are_copied_bit_by_bit() -> None:
    bits = torch.tensor([0x7FC0, -64, 0x7F81, 0x7F80, -128, 1], dtype=torch.int16)
    new = bits.view(torch.bfloat16).reshape(1, 2, 3)

    after, _ = run_write(make_caches(torch.bfloat16), (new, new), int32([7]))

    assert same_bits(after[1, 3], new[0])


def test_d01_a_length_that_is_a_multiple_of_the_block_size_has_no_special_slot() -> None:
    blocks = int32([10, 11])
    slots = compute_slots(blocks, torch.arange(8, dtype=torch.int32), 4)
    assert slots.tolist() == [40, 41, 42, 43, 44, 45, 46, 47]

    check(make_caches(torch.float32, (12, *SIZES[1:])), make_new(8, torch.float32), slots)


def test_a_step_leaves_the_caches_that_the_reference_expects() -> None:
    requests = [Request(5, 3, 1), Request(0, 2, 2), Request(8, 1, 3)]
    step = make_decode(requests, Heads(dtype=torch.float32))

    after = run_write(step.args[3:], step.args[1:3], step.named["slot_mapping_R"])

    for got, expected in zip(after, step.expected_caches, strict=True):
        assert same_bits(got, expected)


def test_c05_slots_of_another_length_are_refused() -> None:
    with pytest.raises(AssertionError):
        run_write(make_caches(torch.float32), make_new(8, torch.float32), int32([1] * 5))


@pytest.mark.parametrize(
    ("dtype", "target", "limit"),
    [(ml_dtypes.float8_e4m3, "trn2", 240.0), (ml_dtypes.float8_e4m3fn, "trn3", 448.0)],
    ids=["trn2", "trn3"],
)
@pytest.mark.parametrize("source", [np.float32, ml_dtypes.bfloat16], ids=["fp32", "bf16"])
def test_fp8_is_scaled_clamped_and_rounded_once(
    dtype: type, target: str, limit: float, source: type
) -> None:
    rng = np.random.default_rng(0)
    caches = [rng.normal(size=(40, *SIZES[1:])).astype(dtype) for _ in range(2)]
    new = [(rng.normal(size=(130, *SIZES[2:])) * 40).astype(source) for _ in range(2)]
    new[0].reshape(-1)[:6] = [1e30, -1e30, limit, -limit, 0.0, 1e-9]
    slots = rng.permutation(160)[:130].astype(np.int32)
    slots[5::4] = -1
    scales = [0.4, 1 / 11]

    after = simulate(KERNELS.kv_write.kv_cache_write_fp8, target=target)(
        *(cache.copy() for cache in caches),
        *new,
        slots.reshape(-1, 1),
        *scales,
    )

    for got, cache, rows, scale in zip(after, caches, new, scales, strict=True):
        expected = cache.reshape(160, *SIZES[2:])
        stored = np.clip(rows.astype(np.float32) * np.float32(1 / scale), -limit, limit).astype(
            dtype
        )
        expected[slots[slots >= 0]] = stored[slots >= 0]
        np.testing.assert_array_equal(
            got.view(np.uint8).reshape(expected.shape), expected.view(np.uint8)
        )
        assert np.isfinite(got.astype(np.float32)).all()


def test_a_scatter_that_raises_on_padding_is_found() -> None:
    mutant = load_kernels(("kv_write", "nisa.oob_mode.skip", "nisa.oob_mode.error"))

    with pytest.raises(SimulationError, match="out of bounds"):
        run_write(make_caches(torch.float32), make_new(2, torch.float32), int32([3, -1]), mutant)


def test_index_tiles_that_are_not_padded_are_found() -> None:
    mutant = load_kernels(("kv_write", "nisa.memset(dst=index, value=-1)", "pass"))

    with pytest.raises(SimulationError, match="uninitialised"):
        run_write(make_caches(torch.float32), make_new(2, torch.float32), int32([3, -1]), mutant)


def test_a_simulator_that_wraps_minus_one_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isa_dma, "_row_index", wrap_negative_indices)
    caches, new = make_caches(torch.float32, (64, *SIZES[1:])), make_new(128, torch.float32)

    after, _ = run_write(caches, new, int32([*range(127), -1]))

    assert not same_bits(after[-1, -1], caches[0][-1, -1])


def test_slots_computed_after_the_remap_write_nothing_either() -> None:
    """Block -1 gives slots -B to -1, which a test for -1 alone would miss."""
    slots = compute_slots(int32([-1]), torch.arange(4, dtype=torch.int32), 4)
    caches = make_caches(torch.float32)

    after = run_write(caches, make_new(4, torch.float32), slots)

    assert slots.tolist() == [-4, -3, -2, -1]
    assert all(same_bits(got, cache) for got, cache in zip(after, caches, strict=True))
