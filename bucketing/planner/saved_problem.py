"""The problem that a plan solves, from what its file says of itself: no traffic is needed."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import get_args

from ..costs.reads import Prefix
from ..costs.saved import SavedCosts
from ..plan_file import PlanFile, PlanFileError
from .about import read_steps
from .budget import Budget
from .problem import Problem
from .settings import DecodeShape, PlanSettings, Policy

CHOICES = {
    "policy": get_args(Policy),
    "prefix": get_args(Prefix),
    "decode_shape": get_args(DecodeShape),
}

INTEGERS = ("granularity", "max_num_graphs")
NUMBERS = ("unseen_share", "search_s", "prove_s", "max_ratio")


def saved_problem(plan: PlanFile) -> Problem:
    """Return the problem of a plan, with the steps that the plan was chosen for.

    Raises:
        PlanFileError: the plan does not say all of it; one line.
    """
    about = plan.about
    try:
        costs = SavedCosts.read(_part(about, "costs"))
        budget = {
            name: inf if value is None else value for name, value in _part(about, "budget").items()
        }
        return Problem(
            trace=None,
            limits=plan.limits,
            costs=costs.steps,
            fees=costs.fees,
            budget=Budget(**budget),  # type: ignore[arg-type]
            settings=_settings(_part(about, "settings")),
            steps=read_steps(about, "demand"),
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
    if not isinstance(must_have, list | tuple) or any(type(size) is not int for size in must_have):
        raise PlanFileError(f"about.settings.must_have: is {must_have!r:.60}; must be sizes")
    _check_numbers(given)
    return PlanSettings(**{**given, "must_have": tuple(must_have)})  # type: ignore[arg-type]


def _check_numbers(given: Mapping[str, object]) -> None:
    for key, value in given.items():
        if key in INTEGERS and (type(value) is not int or value < 1):
            wanted = "an integer above 0"
        elif key in NUMBERS and not _is_number(value) and (key, value) != ("max_ratio", None):
            wanted = "a number that is not negative"
        else:
            continue
        raise PlanFileError(f"about.settings.{key}: is {value!r:.60}; must be {wanted}")


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and 0 <= float(str(value)) < inf
