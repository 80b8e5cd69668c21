"""The problem that a plan solves, from what its file says of itself: no traffic is needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import nan
from types import MappingProxyType
from typing import Any, get_args

from ..costs.numbers import finite_number
from ..costs.reads import Prefix
from ..costs.saved import SavedCosts
from ..plan_file import PlanFile, PlanFileError
from .about import read_demand
from .budget import Budget
from .problem import Problem
from .settings import DecodeShape, PlanSettings, Policy

Rule = tuple[str, Callable[[Any], bool]]
"""What would fit, in words, and whether a value does."""
CHOICES = {
    "policy": get_args(Policy),
    "prefix": get_args(Prefix),
    "decode_shape": get_args(DecodeShape),
}

COUNT = ("an integer above 0", lambda value: type(value) is int and value > 0)
ABOVE_0 = ("a finite number above 0", lambda value: _number(value) > 0)
SECONDS = ("a finite number that is not negative", lambda value: _number(value) >= 0)
SETTINGS: Mapping[str, Rule] = MappingProxyType(
    {
        "granularity": COUNT,
        "max_num_graphs": COUNT,
        "search_s": SECONDS,
        "prove_s": SECONDS,
        "min_saving": ("at least 0 and below 1", lambda value: 0 <= _number(value) < 1),
        "unseen_share": ("at least 0 and below 1", lambda value: 0 <= _number(value) < 1),
        "max_ratio": ("a number above 1, or null", lambda one: one is None or _number(one) > 1),
    }
)
BUDGET: Mapping[str, Rule] = MappingProxyType(
    {
        "compile_s": ABOVE_0,
        "workers": COUNT,
        "num_bytes": ABOVE_0,
        "max_num_graphs": COUNT,
        "horizon_s": ABOVE_0,
    }
)
UNLIMITED = ("compile_s", "num_bytes", "max_num_graphs")
"""Null there says that there is no limit."""


def saved_problem(plan: PlanFile) -> Problem:
    """Return the problem of a plan, with the steps that the plan was chosen for.

    Raises:
        PlanFileError: the plan does not say all of it; one line.
    """
    about = plan.about
    try:
        costs = SavedCosts.read(_part(about, "costs"))
        return Problem(
            trace=None,
            limits=plan.limits,
            costs=costs.steps,
            fees=costs.fees,
            budget=_budget(_part(about, "budget")),
            settings=_settings(_part(about, "settings")),
            steps=read_demand(about),
        )
    except PlanFileError:
        raise
    except (TypeError, ValueError) as error:
        raise PlanFileError(f"about: {' '.join(str(error).split())}") from None


def _part(about: Mapping[str, object], key: str) -> Mapping[str, object]:
    found = about.get(key)
    if not isinstance(found, Mapping):
        raise PlanFileError(f"about.{key}: is missing; the plan was not made by noria plan")
    return found


def _settings(given: Mapping[str, object]) -> PlanSettings:
    for key, choices in CHOICES.items():
        if given.get(key) not in choices:
            raise PlanFileError(
                f"about.settings.{key}: is {given.get(key)!r:.60}; must be one of "
                f"{', '.join(choices)}"
            )
    must_have = given.get("must_have", ())
    if not isinstance(must_have, list | tuple) or not all(map(COUNT[1], must_have)):
        raise PlanFileError(f"about.settings.must_have: is {must_have!r:.60}; must be sizes")
    _check_numbers("settings", given, SETTINGS)
    settings = {**given, "must_have": tuple(must_have)}
    if "max_ratio" in given:
        settings["max_ratio"] = finite_number(given["max_ratio"])  # no integer is too large then
    return PlanSettings(**settings)  # type: ignore[arg-type]


def _budget(given: Mapping[str, object]) -> Budget:
    limited = {k: v for k, v in given.items() if v is not None or k not in UNLIMITED}
    _check_numbers("budget", limited, BUDGET)
    return Budget(**limited)  # type: ignore[arg-type]


def _check_numbers(part: str, given: Mapping[str, object], rules: Mapping[str, Rule]) -> None:
    for key, value in given.items():
        wanted, fits = rules.get(key, ("", lambda _: True))
        if not fits(value):
            raise PlanFileError(f"about.{part}.{key}: is {value!r:.60}; must be {wanted}")


def _number(value: object) -> float:
    """Return a finite number as a float; NaN, which fits no rule, for whatever else."""
    number = finite_number(value)
    return nan if number is None else number
