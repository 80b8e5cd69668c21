"""Steps without a simulation: of lengths, of counters, and cut by another policy."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from io import BytesIO
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_plan import LIMITS

from noria.bucketing import CoverPolicy, FillPolicy, PlanFileError, PlanLimits
from noria.bucketing.planner.given_steps import (
    counted_notes,
    counted_steps,
    cut_steps,
    steps_of_lengths,
)
from noria.bucketing.planner.simulation import PrefillShape, Steps
from noria.bucketing.traces.counted_engine import CountedEngine
from noria.bucketing.traces.counters import Counters, read_counters
from noria.bucketing.traces.text import TraceText
from noria.bucketing.traces.trace import Trace

FILL = FillPolicy(64, 4)
COVER = CoverPolicy.of_changes([(1, 16), (17, 32)], 64, max_num_seqs=4)
ASKED = CountedEngine(
    limits=LIMITS, backend="cpu", model="tiny", model_key="1" * 16, policy="fill", plan_key="a"
)
COUNTED = {
    "noria_counters": 1,
    "prefill": [[16, 16, 3, 3], [40, 60, 2, 2]],
    "prompts": [[16, 5, 3], [100, 5, 1]],
    "decode": [[1, 20, 5], [3, 30, 7]],
}


def test_prompts_run_alone_in_chunks_of_the_largest_step() -> None:
    trace = Trace(np.array([20, 100, 20]), weights=np.array([1.0, 0.5, 2.0]))

    steps = steps_of_lengths(trace, PlanLimits(64, 4, 128, 4, 16, prefill_tile=32))

    assert steps.prefill_shapes == {
        (32, 20, 20, 0): 3.0,
        (64, 64, 64, 0): 0.5,
        (64, 36, 100, 36): 0.5,  # 36 of 64 rows read 64 cached tokens
    }
    assert not steps.decode_shapes


def test_what_is_cached_stays_when_steps_are_cut_and_ends_with_the_context() -> None:
    shapes = {(3, 30): 7.0, (3, 80): 1.0, (9, 100): 3.0, (4, 64): 1.0}
    live_lens = {(3, 30): 20.0, (3, 80): 70.0, (9, 100): 40.0}

    cut = cut_steps(Steps({}, shapes, 9.0, 1.0, 0, live_lens), FILL, LIMITS)

    assert cut.decode_shapes == {(3, 30): 7, (3, 64): 1, (4, 64): 4}
    assert cut.live_lens == {(3, 30): 20, (3, 64): 64, (4, 64): (3 * 40 + 64) / 4}


def test_steps_are_cut_as_the_policy_does() -> None:
    steps = Steps({(40, 40, 60, 20): 2}, {(3, 30): 7}, 9.0, 1.0, 0)

    cut = cut_steps(steps, COVER, LIMITS)

    assert cut.prefill_shapes == {(32, 32, 52, 20): 2, (8, 8, 60, 52): 2}
    assert (cut.decode_shapes, cut.seconds) == (steps.decode_shapes, 9.0)


SHAPES = st.tuples(
    st.integers(1, 64), st.integers(1, 64), st.integers(1, 64), st.integers(0, 60)
).filter(lambda one: one[1] <= one[0])


@given(st.dictionaries(SHAPES, st.integers(1, 9), max_size=5))
def test_steps_of_the_largest_graph_stay_as_they_are(shapes: dict[PrefillShape, float]) -> None:
    shapes = {(r, t, c, min(p, 64 - r)): num for (r, t, c, p), num in shapes.items()}
    steps = Steps(shapes, {(1, 2): 3.0}, 0.0, 0.0, 0)

    assert cut_steps(steps, FILL, LIMITS).prefill_shapes == shapes


@given(st.dictionaries(SHAPES, st.integers(1, 9), max_size=5))
def test_cutting_keeps_rows_and_tokens(shapes: dict[PrefillShape, float]) -> None:
    steps = Steps(shapes, {}, 0.0, 0.0, 0)

    cut = cut_steps(steps, COVER, LIMITS).prefill_shapes

    for column in (0, 1):
        before = sum(shape[column] * num for shape, num in shapes.items())
        assert sum(shape[column] * num for shape, num in cut.items()) == before
    assert all(r <= 32 and c <= 64 and p + r <= 64 for r, _, c, p in cut)


def counters(**changes: object) -> Counters:
    data = json.dumps({**COUNTED, **changes}).encode()
    return read_counters(TraceText.read(BytesIO(data), "counters.json"))


def test_counted_steps_are_read() -> None:
    steps = counted_steps(counters(), ASKED)

    assert steps.prefill_shapes == {(16, 16, 16, 0): 3, (40, 40, 60, 20): 2}
    assert steps.decode_shapes == {(1, 20): 5, (3, 30): 7}


def test_prompts_stand_for_what_waited_where_it_was_covered_by_chunks() -> None:
    covering = replace(ASKED, limits=PlanLimits(64, 4, 128, 4, 16), policy="cover")

    steps = counted_steps(counters(), covering)

    assert steps.prefill_shapes == {(16, 16, 16, 0): 3, (64, 64, 64, 0): 1, (36, 36, 100, 64): 1}
    assert counted_steps(counters(prompts=[]), covering).prefill_shapes == {
        (16, 16, 16, 0): 3,
        (40, 40, 60, 20): 2,
    }


@pytest.mark.parametrize(
    ("message", "changes"),
    [
        (
            "hold a prefill step of 65 tokens; the limits are 64 tokens",
            {"prefill": [[65, 65, 1, 1]]},
        ),
        ("hold a decode step of 5 requests", {"decode": [[5, 20, 1]]}),
        ("hold a context of 65 tokens", {"decode": [[3, 65, 1]]}),
        ("hold no decode steps", {"decode": []}),
        ("hold no prefill steps", {"prefill": []}),
    ],
)
def test_counters_of_another_engine_are_refused(message: str, changes: dict[str, object]) -> None:
    with pytest.raises(PlanFileError, match=message):
        counted_steps(counters(**changes), ASKED)


def test_prompts_beyond_the_limit_are_refused() -> None:
    with pytest.raises(PlanFileError, match="hold a prompt of 100 tokens"):
        counted_steps(counters(), replace(ASKED, policy="cover"))


def counters_of(engine: CountedEngine, **changes: object) -> Counters:
    """Return counters that say which engine they are of."""
    return counters(noria_counters=2, engine=engine.to_mapping(), **changes)


def shapes_of(counted: Counters, asked: CountedEngine) -> tuple[object, object]:
    steps = counted_steps(counted, asked)
    return steps.prefill_shapes, steps.decode_shapes


def test_counters_of_the_same_engine_are_read_without_a_word() -> None:
    found = counters_of(ASKED)

    assert shapes_of(found, ASKED) == shapes_of(counters(), ASKED)
    assert list(counted_notes(found, ASKED)) == []


OTHER_LIMITS = {limit.name: getattr(LIMITS, limit.name) + 1 for limit in fields(PlanLimits)}
OTHER_LIMITS |= {"max_num_prefill_seqs": 3}  # no more than requests may run


@pytest.mark.parametrize(
    ("message", "changes"),
    [
        *(
            (
                f"{name} is {value} where this was counted, and {getattr(LIMITS, name)} here: ",
                {"limits": replace(LIMITS, **{name: value})},
            )
            for name, value in OTHER_LIMITS.items()
        ),
        ("backend is neuron where this was counted, and cpu here: ", {"backend": "neuron"}),
        (
            r"model is tiny \(22222222\) where this was counted, and tiny \(11111111\) here: ",
            {"model_key": "2" * 16},
        ),
    ],
)
def test_counters_of_another_configuration_are_refused(
    message: str, changes: dict[str, Any]
) -> None:
    with pytest.raises(PlanFileError, match=f"^{message}the counters are of another conf"):
        counted_steps(counters_of(replace(ASKED, **changes)), ASKED)


def test_what_is_not_known_is_not_compared() -> None:
    unknown = replace(ASKED, backend=None, model=None, model_key=None, policy=None, plan_key=None)

    assert shapes_of(counters_of(unknown), ASKED) == shapes_of(counters_of(ASKED), unknown)
    assert [*counted_notes(counters_of(unknown), ASKED)] == []
    assert [*counted_notes(counters_of(ASKED), unknown)] == []


def test_counters_of_another_plan_are_read_as_its_policy_ran_them() -> None:
    asked = replace(ASKED, limits=PlanLimits(64, 4, 128, 4, 16))
    covering = replace(asked, policy="cover", plan_key="b")

    by_chunks, filled = counters_of(covering), counters_of(asked)

    assert shapes_of(by_chunks, asked) == shapes_of(counters(), covering)
    assert shapes_of(filled, covering) == shapes_of(counters(), asked)
    (note,) = counted_notes(by_chunks, asked)
    assert note.endswith("policy cover and plan b, here fill and a")
    assert len([*counted_notes(counters_of(replace(ASKED, plan_key="c")), ASKED)]) == 1


def test_old_counters_do_not_say_of_which_engine_they_are() -> None:
    (note,) = counted_notes(counters(), ASKED)

    assert note == ("the counters do not say of which engine they are, as those of format 1 do not")
