"""One unit per row."""

from __future__ import annotations

import numpy as np

from noria.runtime.bench.row_costs import RowCosts


def test_a_step_costs_its_rows_whatever_the_context() -> None:
    costs = RowCosts()

    prefill = costs.prefill_s(np.array([128, 512])[:, None], [0, 7, 9])

    assert prefill.tolist() == [[128.0] * 3, [512.0] * 3]
    assert costs.decode_s([1, 4], 1024).tolist() == [1.0, 4.0]
    assert (costs.source, costs.error_share) == ("rows", None)
