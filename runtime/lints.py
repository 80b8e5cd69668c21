"""Faults of configurations that are valid: settings that cost much, or do nothing.

What is wrong, and not only a waste, is an error of ``config_rules``. Knows no model, no files and
no traffic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ..bucketing import BucketPlan, PlanLimits
from . import lint_rules as rules
from .settings import Config

Lint = Callable[[rules.Linted], rules.Found]


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault.

    Attributes:
        lint: name of the lint that found it.
        setting: where it is.
        text: one sentence with the setting, its value, what it costs and what would fit.
    """

    lint: str
    setting: str
    text: str


OF_ALL: Mapping[str, Lint] = MappingProxyType(
    {"limit-without-effect": rules.limit_without_effect, "small-pool": rules.small_pool}
)
OF_LISTS: Mapping[str, Lint] = MappingProxyType(
    {
        "wide-gap": rules.wide_gap,
        "twin-sizes": rules.twin_sizes,
        "just-below": rules.just_below,
        "large-start": rules.large_start,
        "many-graphs": rules.many_graphs,
        "same-table": rules.same_table,
        "room-in-table": rules.room_in_table,
        "unreachable": rules.unreachable,
    }
)
"""Of bucket lists."""
OF_PLANS: Mapping[str, Lint] = MappingProxyType(
    {"replaced": rules.replaced, "no-saving": rules.no_saving}
)
"""Of plans that were made from traffic, whose sizes were weighed against what they cost."""
LINTS: Mapping[str, Lint] = MappingProxyType({**OF_ALL, **OF_LISTS, **OF_PLANS})
"""All lints by name."""


def lint(config: Config, limits: PlanLimits, plan: BucketPlan) -> tuple[Finding, ...]:
    """Return every fault, in the order of ``LINTS``.

    Args:
        config: valid.
        limits: of the configuration, with the alignment of its target.
        plan: of the configuration; with ``seconds`` where it was made from traffic.
    """
    linted = rules.Linted(config, limits, plan)
    chosen = {**OF_ALL, **(OF_PLANS if plan.seconds else OF_LISTS)}
    return tuple(
        Finding(name, setting, f"{setting}: {text}")
        for name, rule in chosen.items()
        for setting, text in rule(linted)
    )
