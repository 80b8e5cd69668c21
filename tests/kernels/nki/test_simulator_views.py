"""Views: what they address, and that none leaves its tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from nki_rules import copied_out, draw, loaded, nisa, nl, refused, run, tile

View = Callable[[Any], Any]


def seen(view: View, x: np.ndarray) -> np.ndarray:
    """Return what a view of a tile that holds ``x`` reads."""
    return run(lambda t: copied_out(view(loaded(t))), x)


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        (lambda t: t[0:2], lambda x: x[0:2]),
        (lambda t: t[:, 1:3], lambda x: x[:, 1:3]),
        (lambda t: t[:, ::2], lambda x: x[:, ::2]),
        (lambda t: t[..., -1], lambda x: x[..., -1]),
        (lambda t: t[:, nl.ds(1, 2)], lambda x: x[:, 1:3]),
        (lambda t: t[0], lambda x: x[0:1]),
        (lambda t: t[:, 2, 3], lambda x: x[:, 2, 3:4]),
        (lambda t: t[0, 2, 3], lambda x: x[0:1, 2, 3:4]),
        (lambda t: t.slice(2, 0, 6, 2), lambda x: x[:, :, 0:6:2]),
        (lambda t: t.select(1, 2), lambda x: x[:, 2]),
        (lambda t: t.permute((0, 2, 1)), lambda x: x.transpose(0, 2, 1)),
        (lambda t: t.reshape((4, 24)), lambda x: x.reshape(4, 24)),
        (lambda t: t.reshape_dim(2, (2, -1)), lambda x: x.reshape(4, 4, 2, 3)),
        (lambda t: t.flatten_dims(1, 2), lambda x: x.reshape(4, 24)),
        (lambda t: t.expand_dim(1).squeeze_dim(1), lambda x: x),
        (lambda t: t[:, 0:1].broadcast(1, 3), lambda x: np.repeat(x[:, 0:1], 3, 1)),
        (lambda t: t.view(nl.int32).view(nl.float32), lambda x: x),
        (lambda t: t.ap([[24, 4], [2, 12]]), lambda x: x.reshape(4, 24)[:, ::2]),
        (lambda t: t.ap([[24, 2], [1, 3]], offset=5), lambda x: x.reshape(4, 24)[:2, 5:8]),
        (lambda t: t.permute((0, 2, 1))[:, 0, :], lambda x: x[:, :, 0]),
    ],
)
def test_a_view_reads_what_numpy_would(view: View, expected: View) -> None:
    x = draw(4, 4, 6)

    np.testing.assert_array_equal(seen(view, x), expected(x))


def test_an_integer_drops_a_dimension_of_hbm() -> None:
    def kernel(t):
        assert t[1].shape == (4, 6)
        assert t[1, 2, 3].shape == (1,)
        return copied_out(loaded(t[1]))

    x = draw(4, 4, 6)
    np.testing.assert_array_equal(run(kernel, x), x[1])


def test_views_share_storage() -> None:
    def kernel(t):
        whole = loaded(t)
        nisa.memset(dst=whole[:, 1:2], value=7)
        return copied_out(whole.reshape((4, 4, 6)))

    assert (run(kernel, draw(4, 4, 6))[:, 1] == 7).all()


def test_a_view_reinterprets_bits() -> None:
    def kernel(t):
        return copied_out(loaded(t).view(nl.bfloat16))

    x = draw(4, 6)
    np.testing.assert_array_equal(run(kernel, x).view(np.float32), x)


def test_layout_is_known() -> None:
    def kernel() -> None:
        t = tile(128, 64)
        part = t.slice(1, 8, 24)
        assert (t.shape, t.strides, t.offset, t.ndim, t.size) == ((128, 64), (64, 1), 0, 2, 8192)
        assert (part.get_pattern(), part.offset) == ([[64, 128], [1, 16]], 8)
        assert part.is_contiguous()
        assert not t[:, ::2].is_contiguous()
        assert not t.is_indirect()

    run(kernel)


LEAVES: list[tuple[View, str, str]] = [
    (lambda t: t[:, 0:7], "__getitem__", "leaves it or is empty"),
    (lambda t: t[4], "__getitem__", "outside dimension 0"),
    (lambda t: t[:, -7], "__getitem__", "outside dimension 1"),
    (lambda t: t[:, 3:3], "__getitem__", "leaves it or is empty"),
    (lambda t: t[0, 0, 0], "__getitem__", "too many parts"),
    (lambda t: t[:, nl.ds(4, 3)], "__getitem__", "leaves it or is empty"),
    (lambda t: t[:, nl.ds(-1, 1)], "__getitem__", "leaves it or is empty"),
    (lambda t: t.slice(1, 0, 7), "slice", "leaves it or is empty"),
    (lambda t: t.select(1, 6), "select", "outside dimension 1"),
    (lambda t: t.select(1, -1), "select", "outside dimension 1"),
    (lambda t: t.slice(2, 0, 1), "slice", "none of the 2"),
    (lambda t: t.reshape((4, 5)), "reshape", "cannot be reshaped"),
    (lambda t: t.permute((0, 0)), "permute", "no permutation"),
    (lambda t: t.broadcast(1, 3), "broadcast", "not 1"),
    (lambda t: t.squeeze_dim(1), "squeeze_dim", "not 1"),
    (lambda t: t.reshape_dim(1, (4, -1)), "reshape_dim", "cannot be split"),
    (lambda t: t.permute((0, 1)).ap([[6, 4], [1, 7]]), "ap", "leaves its tensor"),
    (lambda t: t.ap([[6, 5], [1, 6]]), "ap", "leaves its tensor"),
    (lambda t: t.ap([[6, 4], [1, 6]], offset=1), "ap", "leaves its tensor"),
    (lambda t: t.ap([[12, 2], [1, 6]]), "ap", "partition step must be the 6 elements"),
    (lambda t: t.ap([[1, 6]]), "ap", "needs a partition pair"),
    (lambda t: t.ap([[6, 4], [-1, 2]]), "ap", "negative step"),
    (lambda t: t.ap([[6, 4], [1, 0]]), "ap", "count below 1"),
    (lambda t: t.ap([[6, 4], *[[1, 1]] * 5]), "ap", "no list of 1 to 5"),
    (lambda t: t[:, 1:3].ap([[6, 4], [1, 2]]), "ap", "starts at element 1"),
    (lambda t: t[:, ::2].reshape((4, 3, 1)).reshape((3, 4)), "reshape", "changes the 4 partitions"),
    (lambda t: t.permute((1, 0)), "permute", "partitions"),
    (lambda t: t.expand_dim(0), "expand_dim", "partitions"),
    (lambda t: t.flatten_dims(0, 1), "flatten_dims", "partitions"),
    (lambda t: t[0:1].broadcast(0, 4), "broadcast", "partitions"),
    (lambda t: t[::2], "__getitem__", "partitions have no step"),
    (lambda t: t[:, 0:3].view(nl.bfloat16)[:, 1:4].view(nl.float32), "view", "no whole number"),
    (lambda t: t[:, ::2].view(nl.bfloat16), "view", "not contiguous"),
]


@pytest.mark.parametrize(("view", "instruction", "problem"), LEAVES)
def test_a_view_stays_in_its_tile(view: View, instruction: str, problem: str) -> None:
    def kernel() -> None:
        view(tile(4, 6))

    refused(instruction, problem, kernel)


@pytest.mark.parametrize(
    ("view", "instruction", "problem"),
    [
        (lambda t: t.ap([[6, 4], [1, 7]]), "ap", "its last element is 24, the tensor has 24"),
        (lambda t: t.ap([[1, 1]], offset=24), "ap", "leaves"),
        (lambda t: t.ap([[1, 1]], offset=-1), "ap", "leaves"),
        (lambda t: t.ap([[1, 49]], dtype=nl.bfloat16), "ap", "the tensor has 48"),
        (lambda t: t.permute((1, 0)).reshape((24,)), "reshape", "not contiguous"),
        (lambda t: t[:, 0:3].flatten_dims(0, 1), "flatten_dims", "not contiguous"),
    ],
)
def test_a_view_stays_in_its_tensor_of_hbm(view: View, instruction: str, problem: str) -> None:
    def kernel(t) -> None:
        view(t)

    refused(instruction, problem, kernel, draw(4, 6))


def test_a_tensor_is_written_by_instructions_only() -> None:
    def kernel() -> None:
        tile(4, 6)[:, 0:1] = 0.0

    refused("__setitem__", "cannot be assigned to", kernel)


def test_a_tensor_has_no_truth_value() -> None:
    def kernel() -> None:
        assert tile(1, 1)

    refused("__bool__", "no truth value", kernel)


def indices(*values: int, dtype: str = nl.int32):
    found = tile(len(values), 1, dtype=dtype)
    for row, value in enumerate(values):
        part = nl.ndarray((1, 1), dtype=dtype, buffer=nl.sbuf)
        nisa.memset(dst=part, value=value)
        nisa.dma_copy(dst=found[row : row + 1], src=part)
    return found


def test_a_run_time_index_selects() -> None:
    def kernel(t):
        return copied_out(loaded(t.select(0, indices(2))))

    x = draw(4, 3, 6)
    np.testing.assert_array_equal(run(kernel, x), x[2])


def test_a_run_time_index_moves_an_access_pattern() -> None:
    def kernel(t):
        moved = t.ap([[6, 2], [1, 6]], scalar_offset=nisa.register_alloc(1), indirect_dim=0)
        return copied_out(loaded(moved))

    x = draw(4, 6)
    np.testing.assert_array_equal(run(kernel, x), x[1:3])


def test_a_run_time_index_moves_along_a_partition() -> None:
    def kernel(t):
        source = loaded(t)
        moved = tile(4, 2)
        window = source.ap([[6, 4], [1, 2]], scalar_offset=indices(3), indirect_dim=1)
        nisa.tensor_copy(dst=moved, src=window)
        return copied_out(moved)

    x = draw(4, 6)
    np.testing.assert_array_equal(run(kernel, x), x[:, 3:5])


@pytest.mark.parametrize("index", [-1, 6, 5])
def test_a_run_time_index_stays_in_its_tensor(index: int) -> None:
    def kernel(t) -> None:
        window = loaded(t).ap([[6, 4], [1, 2]], scalar_offset=indices(index), indirect_dim=1)
        nisa.tensor_copy(dst=tile(4, 2), src=window)

    refused("tensor_copy", "out of bounds|leaves its tensor", kernel, draw(4, 6))


INDIRECT: list[tuple[View, str, str]] = [
    (lambda t: t.vector_select(1, indices(0)), "vector_select", "only dimension 0"),
    (lambda t: loaded(t).vector_select(0, indices(0)), "vector_select", "only a tensor in HBM"),
    (lambda t: t.vector_select(0, t), "vector_select", "must be a tile in SBUF"),
    (lambda t: t.vector_select(0, loaded(t)), "vector_select", "2-d int32 or uint32"),
    (lambda t: t.select(0, indices(0)).select(0, indices(0)), "select", "indirect already"),
    (lambda t: t.vector_select(0, indices(0, 1))[0:1], "__getitem__", "cannot be sliced"),
    (lambda t: t.vector_select(0, indices(0)).permute((1, 0)), "permute", "cannot be moved"),
    (lambda t: loaded(t).select(0, indices(0)), "select", "cannot pick partitions"),
    (
        lambda t: t.ap([[6, 1], [1, 6]], scalar_offset=indices(0), vector_offset=indices(0)),
        "ap",
        "exclude each other",
    ),
    (
        lambda t: t.ap([[6, 1], [1, 6]], vector_offset=indices(0), indirect_dim=1),
        "ap",
        "only indirect_dim=0",
    ),
    (
        lambda t: loaded(t).ap([[6, 4], [1, 6]], scalar_offset=indices(0)),
        "ap",
        "cannot move across partitions",
    ),
    (
        lambda t: t[:, 0:3].ap([[6, 1], [1, 3]], vector_offset=indices(0)),
        "ap",
        "stride 6 in dimension 0, not 3",
    ),
]


@pytest.mark.parametrize(("view", "instruction", "problem"), INDIRECT)
def test_run_time_indices_have_rules(view: View, instruction: str, problem: str) -> None:
    def kernel(t) -> None:
        view(t)

    refused(instruction, problem, kernel, draw(4, 6))
