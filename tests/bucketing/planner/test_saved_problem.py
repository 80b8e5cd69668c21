"""Numbers of a plan file that are computed with: each is one that can be, or is refused by name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import asdict
from math import inf, nan
from typing import Any

import pytest
from small_plan import small_plan

from noria.bucketing import PlanFile, PlanFileError
from noria.bucketing.planner.budget import Budget
from noria.bucketing.planner.saved_problem import saved_problem
from noria.bucketing.planner.settings import PlanSettings

Place = tuple[str | int, ...]
STEPS = {"seconds": 9.0, "busy_s": 4.0, "num_preemptions": 2, "prefill": "16 16 16 0 3"}
STEPS["decode"] = "1 20 5"
BUDGET = {"compile_s": 60.0, "num_bytes": 1e9, "max_num_graphs": 9}


def plan_data() -> dict[str, Any]:
    """Return a plan file in which all settings and every part of the budget are written."""
    data: Any = deepcopy(small_plan().to_mapping())
    data["about"] = deepcopy(dict(data["about"]))
    data["about"]["settings"] = {**asdict(PlanSettings(max_ratio=3.0)), "must_have": [16]}
    data["about"]["budget"] = {**asdict(Budget()), **BUDGET}
    data["about"]["demand"] = dict(STEPS)
    return data  # type: ignore[no-any-return]


def numbers_in(value: object, place: Place = ()) -> Iterator[Place]:
    """Yield the places of all numbers."""
    if isinstance(value, dict | list | tuple):
        entries = value.items() if isinstance(value, dict) else enumerate(value)
        for key, entry in entries:
            yield from numbers_in(entry, (*place, key))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield place


def read(data: object) -> None:
    """Read all that commands compute with."""
    plan = PlanFile.from_mapping(data)
    saved_problem(plan)


def changed(place: Place, value: object) -> dict[str, Any]:
    data = plan_data()
    part: Any = data
    for key in place[:-1]:
        part = part[key]
    part[place[-1]] = value
    return data


PLACES = [
    place
    for place in numbers_in(plan_data())
    if place[0] != "about" or place[1] in ("settings", "budget", "demand")
]
WRONG: Sequence[object] = (-1, -0.5, nan, inf, -inf, "x", True, [1])


def test_the_plan_itself_is_read() -> None:
    read(plan_data())

    assert len(PLACES) > 30


@pytest.mark.parametrize("place", PLACES, ids=lambda place: ".".join(map(str, place)))
def test_what_is_no_amount_is_refused(place: Place) -> None:
    for value in WRONG:
        with pytest.raises(PlanFileError) as caught:
            read(changed(place, value))

        named = [part for part in place if isinstance(part, str)]
        assert str(caught.value).isprintable()
        assert named[-1] in str(caught.value)


ZERO = [("demand", key) for key in ("seconds", "busy_s")]
REFUSED_ZERO = [("budget", key) for key in asdict(Budget())]
REFUSED_ZERO += [("settings", key) for key in ("granularity", "max_num_graphs", "max_ratio")]


@pytest.mark.parametrize(("part", "key"), [*ZERO, ("settings", "search_s")])
def test_no_time_is_a_time(part: str, key: str) -> None:
    read(changed(("about", part, key), 0))


@pytest.mark.parametrize(("part", "key"), REFUSED_ZERO)
def test_what_there_must_be_some_of_is_not_zero(part: str, key: str) -> None:
    with pytest.raises(PlanFileError, match=rf"^about\.{part}\.{key}: is 0; must be "):
        read(changed(("about", part, key), 0))


@pytest.mark.parametrize("key", asdict(Budget()))
def test_null_is_no_limit_where_there_may_be_none(key: str) -> None:
    data = changed(("about", "budget", key), None)
    if key in BUDGET:
        assert getattr(saved_problem(PlanFile.from_mapping(data)).budget, key) == inf
        return
    with pytest.raises(PlanFileError, match=rf"^about\.budget\.{key}: is None; must be "):
        read(data)


@pytest.mark.parametrize("key", ["granularity", "max_ratio", "search_s"])
def test_numbers_without_an_end_are_numbers(key: str) -> None:
    read(changed(("about", "settings", key), 10**30))
