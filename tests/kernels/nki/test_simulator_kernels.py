"""Whole kernels: arguments, results, loops, grids, and where an error points."""

from __future__ import annotations

import inspect
from typing import Any

import nki
import numpy as np
import pytest
from nki_rules import copied_out, draw, filled, loaded, nisa, nl, refused, run, tile

from noria.kernels.nki.simulator import SimulationError, Trace, simulate

ROWS, COLUMNS = nl.tile_size.pmax, nl.tile_size.gemm_moving_fmax


@nki.jit
def add_tensors(a, b):
    result = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    for row in range(0, a.shape[0], ROWS):
        for column in range(0, a.shape[1], COLUMNS):
            part = (slice(row, row + ROWS), slice(column, column + COLUMNS))
            left, right = loaded(a[part]), loaded(b[part])
            nisa.tensor_tensor(dst=left, data1=left, data2=right, op=nl.add)
            nisa.dma_copy(dst=result[part], src=left)
    return result


@nki.jit
def matmul_tiles(left, right):
    depth, height = left.shape
    width = right.shape[1]
    result = nl.ndarray((height, width), dtype=left.dtype, buffer=nl.shared_hbm)
    for row in nl.affine_range(height // ROWS):
        for column in nl.affine_range(width // COLUMNS):
            total = nl.ndarray((ROWS, COLUMNS), dtype=nl.float32, buffer=nl.psum)
            for k in nl.affine_range(depth // ROWS):
                down = slice(k * ROWS, (k + 1) * ROWS)
                nisa.nc_matmul(
                    total,
                    loaded(left[down, row * ROWS : (row + 1) * ROWS]),
                    loaded(right[down, column * COLUMNS : (column + 1) * COLUMNS]),
                )
            part = tile(ROWS, COLUMNS, dtype=left.dtype)
            nisa.tensor_copy(dst=part, src=total)
            nisa.dma_copy(
                dst=result[
                    row * ROWS : (row + 1) * ROWS, column * COLUMNS : (column + 1) * COLUMNS
                ],
                src=part,
            )
    return result


def transpose_rows(x, shape):
    rows, columns = shape
    source = loaded(x)
    result = tile(*x.shape, dtype=x.dtype)
    turned = source.reshape_dim(1, (rows, columns)).permute((0, 2, 1))
    nisa.tensor_copy(dst=result.reshape_dim(1, (columns, rows)), src=turned)
    return copied_out(result)


def test_tensors_are_added_by_tiles() -> None:
    a, b = draw(256, 1024), draw(256, 1024, seed=1)

    np.testing.assert_array_equal(nki.simulate(add_tensors)(a, b), a + b)


def test_matmuls_accumulate_over_tiles() -> None:
    left, right = draw(256, 128), draw(256, 512, seed=1)

    np.testing.assert_allclose(run(matmul_tiles, left, right), left.T @ right, atol=1e-4)


def test_a_matrix_in_each_row_is_transposed() -> None:
    x = draw(5, 12)

    found = run(transpose_rows, x, (3, 4))

    np.testing.assert_array_equal(found, x.reshape(5, 3, 4).swapaxes(1, 2).reshape(5, 12))


def overwrite(x, y):
    nisa.dma_copy(dst=x[0:1], src=y)
    return x


def test_what_a_kernel_writes_reaches_the_caller() -> None:
    x, y = draw(3, 4), draw(1, 4, seed=1)

    found = run(overwrite, x, y)

    assert np.shares_memory(found, x)
    np.testing.assert_array_equal(x[0:1], y)


def test_a_written_argument_is_returned() -> None:
    def forgets(x, y) -> None:
        overwrite(x, y)

    refused("forgets", "argument x is written but not returned", forgets, draw(3, 4), draw(1, 4))


def test_a_read_only_argument_is_not_written() -> None:
    x = draw(3, 4)
    x.flags.writeable = False

    refused("dma_copy", "read-only array", overwrite, x, draw(1, 4))


def test_results_are_in_shared_hbm() -> None:
    def kernel(buffer: Any) -> Any:
        return tile(2, 3, buffer=buffer)

    refused("kernel", "must be in shared_hbm", kernel, nl.sbuf)
    refused("kernel", "must be in shared_hbm", kernel, nl.hbm)


def test_results_are_written() -> None:
    def kernel():
        result = tile(4, 3, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=result[0:2], src=filled(2, 3))
        return result

    refused("kernel", "6 of whose elements were not written", kernel)


def test_nki_simulate_shows_unwritten_results_as_the_vendor_does() -> None:
    def kernel(dtype: str):
        return tile(2, 3, dtype=dtype, buffer=nl.shared_hbm)

    assert np.isnan(nki.simulate(kernel)(nl.float32)).all()
    assert (nki.simulate(kernel)(nl.int32) == 4).all()


def test_results_keep_their_structure() -> None:
    def kernel(x):
        return copied_out(loaded(x)), [x[1:3]], 5

    x = draw(3, 4)
    first, (second,), third = run(kernel, x)
    np.testing.assert_array_equal(first, x)
    np.testing.assert_array_equal(second, x[1:3])
    assert third == 5


@pytest.mark.parametrize(
    ("array", "problem"),
    [
        (draw(3, 4).astype(np.float64), "has no NKI counterpart"),
        (draw(3, 4).T, "not C-contiguous"),
        (np.zeros((), np.float32), "has shape"),
        (np.empty((0, 3), np.float32), "has shape"),
    ],
)
def test_arguments_are_dense_arrays_of_nki_dtypes(array: Any, problem: str) -> None:
    def kernel(x) -> None:
        pass

    refused("kernel", f"argument x.* {problem}", kernel, array)


def test_kernels_run_in_simulations_only() -> None:
    with pytest.raises(SimulationError, match="there is no device"):
        add_tensors(draw(2, 2), draw(2, 2))
    with pytest.raises(SimulationError, match="outside a simulated kernel"):
        nl.ndarray((2, 2), dtype=nl.float32)


def test_kernels_call_kernels() -> None:
    def kernel(a, b):
        return add_tensors(a, b)

    a = draw(128, 512)
    np.testing.assert_array_equal(run(kernel, a, a), a + a)


def test_a_grid_runs_a_program_per_core() -> None:
    def kernel(x):
        result = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        half = x.shape[0] // nl.num_programs()
        part = slice(nl.program_id() * half, (nl.program_id() + 1) * half)
        nisa.dma_copy(dst=result[part], src=loaded(x[part]))
        return result

    x = draw(8, 4)
    np.testing.assert_array_equal(run(nki.jit(kernel)[2], x), x)


def test_an_error_names_the_instruction_and_the_line() -> None:
    def kernel() -> None:
        nisa.tensor_copy(dst=tile(2, 4), src=tile(2, 4))

    line = inspect.getsourcelines(kernel)[1] + 1
    with pytest.raises(SimulationError) as caught:
        run(kernel)
    assert str(caught.value).startswith(f"{__file__}:{line}: tensor_copy: src reads uninit")


def test_unknown_targets_and_names_are_refused() -> None:
    with pytest.raises(ValueError, match="target 'trn9' is unknown; choose one of trn1"):
        simulate(add_tensors, target="trn9")
    with pytest.raises(AttributeError, match=r"nki\.language\.arange is not simulated"):
        _ = nl.arange
    with pytest.raises(TypeError, match="mask"):
        run(lambda: nisa.memset(dst=filled(1, 1), value=0, mask=None))


def test_tokens_are_operators_not_functions() -> None:
    refused("__call__", "as an op of nki.isa only", lambda: nl.multiply(1, 2))


@pytest.mark.parametrize(
    ("target", "version"), [("trn1", "gen2"), ("inf2", "gen2"), ("trn2", "gen3"), ("trn3", "gen4")]
)
def test_kernels_know_their_generation(target: str, version: str) -> None:
    assert run(nisa.get_nc_version, target=target) is nisa.nc_version[version]


def test_the_environment_names_the_target_of_nki_simulate(monkeypatch: Any) -> None:
    def kernel():
        return nisa.get_nc_version().name, nl.tile_size.sbuf_fmax_bytes

    assert nki.simulate(kernel)() == ("gen4", 262144)
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn2")
    assert nki.simulate(kernel)() == ("gen3", 229376)


def test_a_trace_lists_instructions_in_order() -> None:
    trace = Trace()

    run(add_tensors, draw(128, 512), draw(128, 512), trace=trace)

    assert [(each.engine, each.name) for each in trace] == [
        ("dma", "dma_copy"),
        ("dma", "dma_copy"),
        ("vector", "tensor_tensor"),
        ("dma", "dma_copy"),
    ]
    addition = trace.instructions[2]
    assert (addition.partitions, addition.elements, addition.transfer) == (128, 512, None)
    assert [each.role for each in addition.operands] == ["dst", "data1", "data2"]


def test_classes_of_kernels_have_fields() -> None:
    class Sizes(nl.NKIObject):
        rows: int
        columns: int = 4
        depth = 2

        def __post_init__(self) -> None:
            self.area = self.rows * self.columns

    sizes = Sizes(3, depth=5)
    assert (sizes.rows, sizes.columns, sizes.depth, sizes.area) == (3, 4, 5, 12)
    with pytest.raises(SimulationError, match="no fields"):
        Sizes(width=1)
