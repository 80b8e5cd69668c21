"""Masks generated on chip against their oracles, element by element."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nki_kernels import KERNELS, load_kernels

from noria.kernels.nki import mask_oracles
from noria.kernels.nki.simulator import simulate


def lengths(*values: int) -> np.ndarray:
    return np.array(values, np.int32).reshape(-1, 1)


def generated_cache_mask(
    lens: np.ndarray, heads: int, query_len: int, size: int, block_size: int, kernels=KERNELS
) -> np.ndarray:
    return simulate(kernels.masks.mask_cache)(lens, heads, query_len, size, block_size)


@pytest.mark.parametrize("block_size", [1, 3, 16, 64])
@pytest.mark.parametrize("folds", [1, 2])
def test_cache_mask_is_the_oracle_at_every_border(block_size: int, folds: int) -> None:
    size = 128 * block_size * folds
    lens = lengths(0, 1, block_size - 1, block_size, block_size + 1, size - 1, size)

    mask = generated_cache_mask(lens, 2, 3, size, block_size)

    expected = mask_oracles.mask_cache(lens, num_heads=2, query_len=3, context_size=size)
    assert mask.dtype == np.uint8
    np.testing.assert_array_equal(mask, expected)


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_cache_mask_is_the_oracle_for_random_shapes(data: st.DataObject) -> None:
    block_size = data.draw(st.integers(1, 24))
    size = 128 * block_size
    lens = lengths(*data.draw(st.lists(st.integers(0, size), min_size=1, max_size=3)))
    heads, query_len = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 8))

    mask = generated_cache_mask(lens, heads, query_len, size, block_size)

    expected = mask_oracles.mask_cache(
        lens, num_heads=heads, query_len=query_len, context_size=size
    )
    np.testing.assert_array_equal(mask, expected)


@pytest.mark.parametrize("query_len", [1, 2, 5, 8])
@pytest.mark.parametrize("heads", [1, 3, 16])
def test_active_mask_is_the_oracle(query_len: int, heads: int) -> None:
    mask = simulate(KERNELS.masks.mask_active)(lengths(7, 0), heads, query_len)

    expected = mask_oracles.mask_active(2, num_heads=heads, query_len=query_len)
    np.testing.assert_array_equal(mask, expected)


def test_active_mask_is_all_ones_for_one_token_only() -> None:
    assert mask_oracles.mask_active(1, num_heads=2, query_len=1).all()
    two = mask_oracles.mask_active(1, num_heads=1, query_len=2)[0, 0]

    assert two.tolist() == [[1, 0], [1, 1]]


def test_cache_mask_oracle_counts_the_cached_positions() -> None:
    mask = mask_oracles.mask_cache(lengths(0, 3), num_heads=1, query_len=2, context_size=5)

    assert mask.shape == (2, 1, 2, 5)
    assert mask[0].sum() == 0
    assert mask[1, 0].tolist() == [[1, 1, 1, 0, 0]] * 2


def test_wrong_column_order_is_found() -> None:
    mutant = load_kernels(
        (
            "masks",
            "pattern=[[1, num_offsets], [block_size, FOLD_BLOCKS]]",
            "pattern=[[FOLD_BLOCKS, num_offsets], [1, FOLD_BLOCKS]]",
        )
    )
    lens = lengths(5)

    mask = generated_cache_mask(lens, 1, 1, 512, 4, mutant)

    expected = mask_oracles.mask_cache(lens, num_heads=1, query_len=1, context_size=512)
    assert (mask != expected).any()
