"""Plan files: what is written is read, and what no engine can run is refused by name."""

from __future__ import annotations

import math
from contextlib import suppress
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from noria.bucketing import DecodeBucket, PlanFile, PlanFileError

PLAN: dict[str, Any] = {
    "noria_plan": 1,
    "limits": {
        "max_num_batched_tokens": 1024,
        "max_num_seqs": 8,
        "max_model_len": 512,
        "max_num_prefill_seqs": 4,
        "block_size": 16,
    },
    "prefill": {
        "policy": "cover",
        "graphs": [[96, 512, 0.01], [512, 512, 0.05]],
        "chunks": [[1, 96], [97, 512]],
    },
    "decode": {"graphs": [[4, 256, 0.002], [8, 512, 0.004]]},
    "order": ["decode_s8_c512", "prefill_t512_c512", "prefill_t96_c512", "decode_s4_c256"],
    "about": {"trace": {"requests": 3}},
}


def changed(path: str, value: object) -> dict[str, Any]:
    """Return the plan with another value at a dotted path."""
    plan = deepcopy(PLAN)
    *parents, last = path.split(".")
    place = plan
    for name in parents:
        place = place[name]
    if value is None:
        del place[last]
    else:
        place[last] = value
    return plan


def test_what_is_written_is_read() -> None:
    plan = PlanFile.from_mapping(PLAN)

    assert PlanFile.from_mapping(plan.to_mapping()) == plan
    assert plan.about == PLAN["about"]
    assert plan.chunks == ((1, 96), (97, 512))


def test_the_engine_dispatches_by_the_seconds_of_the_plan() -> None:
    plan = PlanFile.from_mapping(PLAN).bucket_plan(has_scores=True)

    assert plan.pick_decode(3, 200) == DecodeBucket(4, 256)
    assert plan.pick_decode(3, 257) == DecodeBucket(8, 512)
    assert [bucket.label for bucket in plan.score] == ["score_t96_c512"]
    assert [bucket.label for bucket in plan.buckets][2:] == [
        "prefill_t96_c512",
        "decode_s4_c256",
        "score_t96_c512",
    ]


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("noria_plan", 2, "noria_plan: is 2; this version reads format 1"),
        ("noria_plan", None, "plan: lacks noria_plan"),
        ("limit", {}, "plan: does not know limit; it has about, decode, limits"),
        ("limits", 3, "limits: is 3; it must be a mapping"),
        ("limits.block_size", None, "limits: lacks block_size"),
        ("limits.block_size", 0, "limits: block_size must be a positive integer, got 0"),
        ("limits.prefill_tile", 64, "prefill_t96_c512 .* is no multiple of prefill_tile 64"),
        ("limits.max_num_seqs", 9, r"decode.graphs: the largest must have 9 requests"),
        ("limits.max_model_len", 400, r"prefill.graphs: the largest must have 400 tokens"),
        ("prefill.graphs", [], "prefill.graphs: is empty"),
        ("prefill.graphs", "x", "prefill.graphs: is 'x'; it must be a list"),
        ("prefill.graphs", [[96, 512]], r"prefill.graphs\[0\]: is \[96, 512\]; a graph is"),
        ("prefill.graphs", [[96.0, 512, 1]], r"graphs\[0\]: size must be a positive integer"),
        ("prefill.graphs", [[True, 512, 1]], r"graphs\[0\]: size must be a positive integer"),
        ("prefill.graphs", [[512, 512, "1"]], r"\[0\]: seconds must be a finite number, got '1'"),
        ("prefill.graphs", [[512, 512, 0]], "prefill_t512_c512 takes 0.0 seconds"),
        (
            "prefill.graphs",
            [[512, 512, math.nan]],
            r"\[0\]: seconds must be a finite number, got nan",
        ),
        ("prefill.graphs", [[96, 512, 2], [512, 512, 1]], "prefill_t96_c512 takes 2.0 seconds"),
        ("prefill.graphs", [[512, 512, 1], [512, 512, 1]], "names a graph twice"),
        ("decode.graphs", [[16, 256, 1], [8, 512, 1]], "decode.graphs: the largest must have 8"),
        ("decode.graphs", [[8, 256, 1], [4, 512, 1]], "decode.graphs: the largest must have 8"),
        ("prefill.policy", "pad", "prefill.policy: is 'pad'; it must be fill or cover"),
        ("prefill.policy", "fill", "policy is fill; chunks belong to policy cover"),
        ("prefill.chunks", [], "policy is cover; chunks belong to policy cover, which needs"),
        ("prefill.chunks", [[1, 100]], "100 is no size of a prefill graph"),
        ("prefill.chunks", [[2, 96]], "must begin with 1 row"),
        ("prefill.chunks", [[1, 96], [1, 512]], "rows must be strictly increasing"),
        ("prefill.chunks", [[0, 96], [1, 512]], "0 is no number of rows"),
        ("prefill.chunks", [[1.0, 96]], r"chunks\[0\]: is \[1.0, 96\]; it must be \[rows, chunk\]"),
        ("prefill.chunks", 5, "prefill.chunks: is 5; it must be a list"),
        ("order", ["decode_s8_c512"], "order: must list every graph once"),
        ("order", [1], r"order: is \[1\]; it must be a list of labels"),
        ("about", [], r"about: is \[\]; it must be a mapping"),
    ],
)
def test_a_plan_that_no_engine_can_run_is_refused(path: str, value: object, message: str) -> None:
    with pytest.raises(PlanFileError, match=message):
        PlanFile.from_mapping(changed(path, value))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 600) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)


@given(
    st.sampled_from(["", *PLAN, "limits.block_size", "prefill.graphs", "prefill.chunks"]), VALUES
)
def test_anything_else_gives_a_plan_or_one_error(path: str, value: object) -> None:
    data = changed(path, value) if path else value
    with suppress(PlanFileError):
        assert PlanFile.from_mapping(data).bucket_plan(has_scores=True).buckets
