"""Who pays: prompts alone, bands and percentiles, worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from given_costs import LaunchAndWork

from noria.bucketing import DecodeBucket, PlanFile, PlanLimits, PrefillBucket
from noria.bucketing.plan_file import PlannedGraph
from noria.bucketing.report.dispatched import own_prompt_s, prompt_s
from noria.bucketing.report.payers import Lots, bands, percentiles, waste_points

LIMITS = PlanLimits(128, 4, 256, 4, 16)
DECODE = (PlannedGraph(DecodeBucket(4, 256), 1.0),)
COSTS = LaunchAndWork()  # ms: 20 + rows + 0.01 * rows * prefix


def plan(*chunks: tuple[int, int]) -> PlanFile:
    graphs = tuple(PlannedGraph(PrefillBucket(size, 256), size / 1000) for size in (32, 128))
    return PlanFile(LIMITS, graphs, DECODE, "cover" if chunks else "fill", chunks)


def lengths(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def test_a_prompt_alone_runs_in_the_smallest_graphs_that_hold_its_steps() -> None:
    seconds = prompt_s(plan(), COSTS, "exact", lengths(30, 33, 150))

    # 150 tokens: 128, then 22 in 32 rows behind 128 cached ones.
    assert seconds * 1000 == pytest.approx([52, 148, 148 + 52 + 0.01 * 32 * 128])


def test_a_covered_prompt_runs_in_the_chunks_of_its_table() -> None:
    seconds = prompt_s(plan((1, 32), (65, 128)), COSTS, "exact", lengths(60, 65))

    assert seconds * 1000 == pytest.approx([52 + 52 + 0.01 * 32 * 32, 148])


def test_kernels_that_read_all_context_pay_for_the_room_beside_their_rows() -> None:
    seconds = prompt_s(plan(), COSTS, "max", lengths(30, 150))

    first, last = 148 + 0.01 * 128 * 128, 52 + 0.01 * 32 * 224
    assert seconds * 1000 == pytest.approx([last, first + last])


def test_a_prompt_of_its_own_is_cut_at_the_largest_step_only() -> None:
    seconds = own_prompt_s(COSTS, "exact", lengths(30, 150), (128, 256))

    assert seconds * 1000 == pytest.approx([50, 148 + 42 + 0.01 * 22 * 128])


def lots(default: list[float] | None = None) -> Lots:
    return Lots(
        sizes=lengths(1, 2, 3, 9),
        weights=np.array([1.0, 2.0, 6.0, 1.0]),
        own_s=np.array([1.0, 1.0, 2.0, 4.0]),
        plan_s=np.array([1.0, 1.5, 2.0, 5.0]),
        default_s=None if default is None else np.array(default),
    )


def test_bands_end_at_powers_of_two_and_leave_none_out() -> None:
    found = bands(lots([2.0, 2.0, 4.0, 4.0]))

    assert [(one.first, one.last, one.num) for one in found] == [
        (1, 1, 1.0),
        (2, 2, 2.0),
        (3, 4, 6.0),
        (9, 16, 1.0),
    ]
    assert [(one.own_s, one.plan_s, one.default_s) for one in found[1:3]] == [
        (2.0, 3.0, 4.0),
        (12.0, 12.0, 24.0),
    ]


def test_the_smallest_of_many_sizes_share_a_band() -> None:
    ones = np.ones(16)
    found = bands(Lots(2 ** np.arange(16), ones, ones, ones, None))

    assert len(found) == 9
    assert (found[0].first, found[0].last, found[0].num) == (1, 2**7, 8.0)
    assert (found[-1].first, found[-1].last) == (2**14 + 1, 2**15)


def test_percentiles_are_of_requests_not_of_sizes() -> None:
    found = {one.percent: one for one in percentiles(lots())}

    assert {percent: one.prompt_len for percent, one in found.items()} == {
        10: 1,
        25: 2,
        50: 3,
        75: 3,
        90: 3,
        95: 9,
        99: 9,
        100: 9,
    }
    assert (found[100].own_s, found[100].plan_s, found[100].default_s) == (4.0, 5.0, None)


def test_waste_rises_with_the_percent_of_requests_that_have_no_more() -> None:
    found = {one.percent: one for one in waste_points(lots([1.0, 1.0, 2.0, 8.0]))}

    # 7 of 10 requests waste nothing, one a quarter, two a half.
    assert [found[percent].plan for percent in (1, 70, 71, 80, 81, 100)] == [
        0.0,
        0.0,
        0.25,
        0.25,
        0.5,
        0.5,
    ]
    assert [found[percent].default for percent in (90, 91)] == [0.0, 1.0]
