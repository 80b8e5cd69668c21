"""Which engine counted: what its steps depend on besides its requests.

Counters tell of the plan and the configuration that they are asked about only if both are the same
engine's, or differ in nothing but their graphs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import get_args

from ..plan import PlanLimits
from ..plan_file import PlanFile, PlanFileError, PolicyName, read_limits

KEY_DIGITS = 16
ABOUT_KEY = "engine"
"""Where a plan file says it of the engine that it was made for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedEngine:
    """An engine, as far as its steps depend on it; None: not known, and not compared.

    Attributes:
        limits: with the alignment of its backend.
        backend: name of its kernels.
        model: what people call its model.
        model_key: digest of the sizes of the model: of two that have the same, steps cost the same.
        policy: how prompts fill steps.
        plan_key: see ``plan_key``.

    >>> engine = CountedEngine(limits=PlanLimits(512, 4, 512, 4, 16), backend="cpu", policy="fill")
    >>> CountedEngine.from_mapping(engine.to_mapping()) == engine
    True
    """

    limits: PlanLimits
    backend: str | None = None
    model: str | None = None
    model_key: str | None = None
    policy: PolicyName | None = None
    plan_key: str | None = None

    @classmethod
    def of_plan(cls, plan: PlanFile) -> CountedEngine:
        """Return the engine that a plan was made for, running it.

        Raises:
            PlanFileError: what the file says of it is no text.
        """
        place = f"about.{ABOUT_KEY}"
        given = plan.about.get(ABOUT_KEY, {})
        if not isinstance(given, Mapping):
            raise PlanFileError(f"{place}: is {given!r:.60}; it must be a mapping")
        names = ("backend", "model", "model_key")
        texts = {name: _text(f"{place}.{name}", given.get(name)) for name in names}
        labels = (graph.bucket.label for graph in (*plan.prefill, *plan.decode))
        key = plan_key(labels, plan.chunks)
        return cls(limits=plan.limits, policy=plan.policy, plan_key=key, **texts)

    @classmethod
    def from_mapping(cls, data: object) -> CountedEngine:
        """Read what ``to_mapping`` gave.

        Raises:
            PlanFileError: names the place, its value and what would fit.
        """
        place = "engine"
        if not isinstance(data, Mapping):
            raise PlanFileError(f"{place}: is {data!r:.60}; it must be a mapping")
        names = {field.name for field in fields(cls)} - {"limits"}
        texts = {name: _text(f"{place}.{name}", data.get(name)) for name in sorted(names)}
        policies = get_args(PolicyName)
        if texts["policy"] not in (*policies, None):
            fits = f"must be {' or '.join(policies)}"
            raise PlanFileError(f"{place}.policy: is {texts['policy']!r:.60}; {fits}")
        limits = read_limits(f"{place}.limits", data.get("limits"))
        return cls(limits=limits, **texts)  # type: ignore[arg-type]

    def about_mapping(self) -> dict[str, object]:
        """Return what a plan file says of the engine, besides its limits and its graphs."""
        return {"backend": self.backend, "model": self.model, "model_key": self.model_key}

    def to_mapping(self) -> dict[str, object]:
        """Return plain data."""
        return asdict(self)

    def difference(self, other: CountedEngine) -> tuple[str, str, str] | None:
        """Return the first thing that makes steps differ: its name, and both values as texts.

        Graphs and how prompts fill them do not count, see ``has_plan_of``.
        """
        return next(self._differences(other), None)

    def has_plan_of(self, other: CountedEngine) -> bool:
        """Tell whether both run the same graphs in the same way, as far as that is known."""
        pairs = (self.policy, other.policy), (self.plan_key, other.plan_key)
        return not any(_differ(one, another) for one, another in pairs)

    @property
    def model_text(self) -> str:
        """The model, and a few digits by which others of its name can be told from it."""
        return f"{self.model} ({str(self.model_key)[:8]})"

    def _differences(self, other: CountedEngine) -> Iterator[tuple[str, str, str]]:
        if _differ(self.backend, other.backend):
            yield "backend", str(self.backend), str(other.backend)
        if _differ(self.model_key, other.model_key):
            yield "model", self.model_text, other.model_text
        for limit in fields(PlanLimits):
            one, another = (getattr(engine.limits, limit.name) for engine in (self, other))
            if one != another:
                yield limit.name, str(one), str(another)


def plan_key(labels: Iterable[str], chunks: Sequence[tuple[int, int]] = ()) -> str:
    """Return a digest of graphs, whatever their order, and of the chunks that cover prompts."""
    text = f"{sorted(labels)} {[list(pair) for pair in chunks]}"
    return hashlib.sha256(text.encode()).hexdigest()[:KEY_DIGITS]


def _differ(one: str | None, other: str | None) -> bool:
    return None not in (one, other) and one != other


def _text(place: str, value: object) -> str | None:
    if value is not None and not isinstance(value, str):
        raise PlanFileError(f"{place}: is {value!r:.60}; it must be a text")
    return value
