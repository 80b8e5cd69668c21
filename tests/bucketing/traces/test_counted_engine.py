"""Which engine counted: what is written is read, and what is not one is refused."""

from __future__ import annotations

import io
import json
from dataclasses import asdict, replace
from typing import Any

import pytest

from noria.bucketing import PlanFile, PlanFileError, PlanLimits
from noria.bucketing.traces.counted_engine import CountedEngine, plan_key
from noria.bucketing.traces.counters import read_counters
from noria.bucketing.traces.text import TraceText
from noria.bucketing.traces.trace import TraceError

LIMITS = PlanLimits(64, 4, 64, 4, 16)
ENGINE = CountedEngine(limits=LIMITS, backend="cpu", model="tiny", policy="cover", plan_key="a")
PLAN = PlanFile.from_mapping(
    {
        "noria_plan": 1,
        "limits": asdict(LIMITS),
        "prefill": {"policy": "cover", "graphs": [[16, 64, 1.0]], "chunks": [[1, 16]]},
        "decode": {"graphs": [[1, 64, 1.0], [4, 64, 2.0]]},
        "about": {"engine": {"backend": "cpu", "model": "tiny", "model_key": "f"}},
    }
)


def test_a_plan_says_of_which_engine_it_is() -> None:
    labels = ["decode_s4_c64", "prefill_t16_c64", "decode_s1_c64"]

    engine = CountedEngine.of_plan(PLAN)

    assert engine == CountedEngine(
        limits=LIMITS,
        backend="cpu",
        model="tiny",
        model_key="f",
        policy="cover",
        plan_key=plan_key(labels, [(1, 16)]),
    )
    assert CountedEngine.of_plan(replace(PLAN, about={})) == replace(
        engine, backend=None, model=None, model_key=None
    )


def test_plans_have_the_same_key_only_if_they_run_the_same() -> None:
    labels, chunks = ["decode_s1_c64", "prefill_t16_c64"], [(1, 16)]
    key = plan_key(labels, chunks)

    assert key == plan_key(reversed(labels), tuple(chunks))
    others = [plan_key(labels), plan_key(labels, [(2, 16)]), plan_key(labels[:1], chunks)]
    assert len({key, *others}) == 4


WRONG: list[tuple[object, str]] = [
    (None, "engine: is None; it must be a mapping"),
    (7, "engine: is 7; it must be a mapping"),
    ({}, "engine.limits: is None; it must be a mapping"),
    ({"limits": {}}, "engine.limits: lacks block_size, max_model_len, "),
    ({"limits": asdict(LIMITS) | {"x\ny": 1}}, "engine.limits: does not know x y; it has "),
    (
        {"limits": asdict(LIMITS) | {"block_size": 0}},
        "engine.limits: block_size must be a positive integer, got 0",
    ),
    ({"limits": asdict(LIMITS), "backend": 7}, "engine.backend: is 7; it must be a text"),
    (
        {"limits": asdict(LIMITS), "policy": "best"},
        "engine.policy: is 'best'; must be fill or cover",
    ),
]


@pytest.mark.parametrize(("engine", "message"), WRONG)
def test_what_is_no_engine_is_refused(engine: object, message: str) -> None:
    data = json.dumps({"noria_counters": 2, "engine": engine}).encode()

    with pytest.raises(TraceError) as caught:
        read_counters(TraceText.read(io.BytesIO(data), "c.json"))

    assert str(caught.value).startswith(f"c.json: {message}")
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("about", [[], {"backend": 1}])
def test_a_plan_that_names_no_engine_is_refused(about: Any) -> None:
    with pytest.raises(PlanFileError, match=r"^about\.engine"):
        CountedEngine.of_plan(replace(PLAN, about={"engine": about}))


def test_counters_of_an_engine_are_read() -> None:
    data = json.dumps({"noria_counters": 2, "engine": ENGINE.to_mapping()}).encode()

    assert read_counters(TraceText.read(io.BytesIO(data), "c.json")).engine == ENGINE
