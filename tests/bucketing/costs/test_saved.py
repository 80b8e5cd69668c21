"""Costs that were saved are the same costs when they are read."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest

from noria.bucketing.costs.devices import device_sheet
from noria.bucketing.costs.model_shape import ModelShape
from noria.bucketing.costs.saved import SavedCosts
from noria.bucketing.costs.table import CostTable


def same(one: SavedCosts, other: SavedCosts) -> bool:
    rows, contexts = np.meshgrid([1, 8, 128, 512], [1, 64, 512])
    return (
        one.fees == other.fees
        and one.data == other.data
        and np.array_equal(one.steps.prefill_s(rows, 0), other.steps.prefill_s(rows, 0))
        and np.array_equal(one.steps.decode_s(rows, contexts), other.steps.decode_s(rows, contexts))
    )


def read_again(costs: SavedCosts) -> SavedCosts:
    return SavedCosts.read(json.loads(json.dumps(costs.data)))


def test_a_roofline_is_read_as_it_was(llama: ModelShape) -> None:
    costs = SavedCosts.roofline(llama, device_sheet("trn2"), "bfloat16", num_logits_rows=4)

    assert same(read_again(costs), costs)
    other = SavedCosts.roofline(llama, device_sheet("h200"), "bfloat16")
    assert not same(other, costs)


@pytest.mark.parametrize("fitted", [False, True])
def test_a_table_is_read_as_it_was(make_table: Callable[..., CostTable], fitted: bool) -> None:
    table = make_table(lambda n, p: 1 + n + 0.01 * n * p, lambda s, c: 2 + s + 0.1 * s * c)
    costs = SavedCosts.of_table(table, fitted=fitted)

    assert costs.steps.source == ("fitted" if fitted else "measured")
    assert same(read_again(costs), costs)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (3, "costs: is 3; it must be a mapping"),
        ({}, "costs.kind: is None; it must be roofline, measured or fitted"),
        ({"kind": ["x"]}, r"costs.kind: is \['x'\]"),
        ({"kind": "tokens"}, "costs.kind: is 'tokens'; it must be roofline, measured or fitted"),
        ({"kind": "measured", "table": {}}, "costs.noria_costs: is missing"),
        ({"kind": "roofline"}, "costs: lacks model"),
    ],
)
def test_data_of_no_costs_is_refused(data: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SavedCosts.read(data)
