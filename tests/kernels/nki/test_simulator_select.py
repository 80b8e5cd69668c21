"""select_reduce and range_select: what they take, the running maximum, and their rules."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from nki_rules import copied_out, draw, filled, loaded, nisa, nl, refused, run, tile

IDLE, REDUCE, RESET = (
    nisa.reduce_cmd.idle,
    nisa.reduce_cmd.reduce,
    nisa.reduce_cmd.reset_reduce,
)
FP32_MIN = -3.4028235e38


def selected(**options: Any) -> Any:
    def kernel(x, chosen):
        found, largest = tile(*x.shape), tile(x.shape[0], 1)
        nisa.select_reduce(
            dst=found,
            predicate=loaded(chosen),
            on_true=loaded(x),
            on_false=FP32_MIN,
            reduce_res=largest,
            **{"reduce_cmd": RESET, **options},
        )
        return copied_out(found), copied_out(largest)

    return kernel


def test_select_reduce_selects_and_takes_the_largest() -> None:
    x, chosen = draw(3, 5), (draw(3, 5, seed=1) > 0).astype(np.uint8)
    found, largest = run(selected(), x, chosen)
    other, _ = run(selected(reverse_pred=True), x, chosen)

    np.testing.assert_array_equal(found, np.where(chosen, x, np.float32(FP32_MIN)))
    np.testing.assert_array_equal(largest[:, 0], found.max(1))
    np.testing.assert_array_equal(other, np.where(chosen, np.float32(FP32_MIN), x))


def test_a_value_that_is_not_selected_reaches_no_result() -> None:
    x, chosen = draw(3, 5), np.ones((3, 5), np.uint8)
    x[:, 2], chosen[:, 2] = np.nan, 0

    found, largest = run(selected(), x, chosen)

    assert np.isfinite(found).all()
    assert np.isfinite(largest).all()


def test_a_column_of_values_where_the_predicate_is_false() -> None:
    def kernel(x, column):
        found = tile(3, 5)
        nisa.select_reduce(found, filled(3, 5, dtype=nl.uint8), loaded(x), loaded(column))
        return copied_out(found)

    column = draw(3, 1)
    np.testing.assert_array_equal(run(kernel, draw(3, 5), column), np.repeat(column, 5, 1))


def test_maxima_run_on_over_instructions_but_not_over_idle_ones() -> None:
    def kernel(x, commands: Any):
        largest = tile(3, 1)
        for command in commands:
            nisa.select_reduce(
                tile(3, 5),
                filled(3, 5, value=1, dtype=nl.uint8),
                loaded(x),
                0.0,
                reduce_res=None if command is IDLE else largest,
                reduce_cmd=command,
            )
        return copied_out(largest)

    run(kernel, draw(3, 5), (RESET, REDUCE))
    refused("select_reduce", "not reset before", kernel, draw(3, 5), (REDUCE,))
    refused("select_reduce", "not reset before", kernel, draw(3, 5), (RESET, IDLE, REDUCE))


@pytest.mark.parametrize(
    ("x", "chosen", "options", "problem"),
    [
        (np.float32, np.uint32, {}, "predicate must be one of"),
        (np.float32, np.float32, {}, "predicate must be one of"),
        (np.int32, np.uint8, {}, "on_true cannot be int32"),
        (np.float32, np.uint8, {"reduce_op": nl.minimum}, "must be nl.maximum"),
        (np.float32, np.uint8, {"reduce_cmd": IDLE}, "reduces nothing"),
        (np.float32, np.uint8, {"reduce_cmd": nisa.reduce_cmd.reset}, "must be idle, reduce or"),
    ],
)
def test_select_reduce_has_rules(x: Any, chosen: Any, options: Any, problem: str) -> None:
    refused(
        "select_reduce", problem, selected(**options), np.ones((3, 5), x), np.ones((3, 5), chosen)
    )


def test_select_reduce_reads_psum_once() -> None:
    def kernel() -> None:
        one, other = filled(3, 5, buffer=nl.psum), filled(3, 5, dtype=nl.uint8, buffer=nl.psum)
        nisa.select_reduce(tile(3, 5), other, one, 0.0)

    refused("select_reduce", "cannot both be in psum", kernel)


def in_range(**options: Any) -> Any:
    def kernel(x, low, high):
        found, largest = tile(*x.shape), tile(x.shape[0], 1)
        nisa.range_select(
            **{
                "dst": found,
                "on_true_tile": loaded(x),
                "comp_op0": nl.greater_equal,
                "comp_op1": nl.less,
                "bound0": loaded(low),
                "bound1": loaded(high),
                "reduce_res": largest,
                "range_start": 10,
                **options,
            }
        )
        return copied_out(found), copied_out(largest)

    return kernel


BOUNDS = (np.array([[11], [10]], np.float32), np.array([[13], [10]], np.float32))


def test_range_select_compares_positions() -> None:
    x = draw(2, 5)

    found, largest = run(in_range(), x, *BOUNDS)

    expected = np.full((2, 5), FP32_MIN, np.float32)
    expected[0, 1:3] = x[0, 1:3]
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(largest[:, 0], expected.max(1))


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"on_false_value": 0.0}, "must be FP32_MIN"),
        ({"comp_op0": nl.not_equal}, "comp_op0 must be one of"),
        ({"range_start": 2**24}, "exceeds 2..24"),
        ({"reduce_op": nl.add}, "must be nl.maximum"),
    ],
)
def test_range_select_has_rules(options: dict[str, Any], problem: str) -> None:
    refused("range_select", problem, in_range(**options), draw(2, 5), *BOUNDS)


def test_range_select_has_more_rules() -> None:
    refused("range_select", "needs trn2", in_range(), draw(2, 5), *BOUNDS, target="trn1")
    refused("range_select", "must be a float", in_range(), np.ones((2, 5), np.int32), *BOUNDS)
    halves = [bound.astype(ml_dtypes.bfloat16) for bound in BOUNDS]
    refused("range_select", "bound0 must be float32", in_range(), draw(2, 5), *halves)
