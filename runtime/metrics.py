"""The counters of an engine as metrics for Prometheus: its text format, to be scraped or kept.

Real tokens, tokens with padding and padding alone have names of their own, so that nobody adds
padding to work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from .errors import NoriaError
from .step_counters import GraphCounts, StepCounters

if TYPE_CHECKING:
    from prometheus_client.core import CounterMetricFamily

LABELS = ("graph", "phase")
OF_GRAPHS: Mapping[str, tuple[str, Callable[[GraphCounts], float]]] = MappingProxyType(
    {
        "steps": ("Steps that ran.", lambda one: one.num_steps),
        "step_seconds": ("Seconds of steps: inputs, graph, sampling.", lambda one: one.seconds),
        "real_tokens": ("Tokens of requests that ran.", lambda one: one.real_tokens),
        "padded_tokens": ("Rows that ran, padding included.", lambda one: one.padded_tokens),
        "waste_tokens": ("Rows of padding that ran.", lambda one: one.waste_tokens),
    }
)
"""What each graph counts, with its meaning."""


def metrics_text(counters: StepCounters) -> str:
    """Return all counters in the text format of Prometheus, graphs in the order of their labels.

    Raises:
        NoriaError: prometheus_client is not installed.
    """
    require_metrics()
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry()
    registry.register(_Families(counters))
    return generate_latest(registry).decode()


def require_metrics() -> None:
    """Raise the error that says what metrics need, if it is not there."""
    try:
        import prometheus_client  # noqa: F401  # only whether it is there
    except ImportError as error:
        raise NoriaError(
            f"metrics need the package {error.name}: pip install 'noria[metrics]'"
        ) from None


class _Families:
    """What the library asks for the metrics; these are counted elsewhere, not by the library."""

    def __init__(self, counters: StepCounters) -> None:
        self._counters = counters

    def collect(self) -> Iterator[CounterMetricFamily]:
        yield from self._of_graphs()
        yield from self._of_requests()

    def _of_graphs(self) -> Iterator[CounterMetricFamily]:
        ran = self._counters.graphs
        for name, (meaning, value_of) in OF_GRAPHS.items():
            family = _counter(name, meaning, LABELS)
            for bucket, counts in ran.items():
                family.add_metric((bucket.label, bucket.phase), value_of(counts))
            yield family

    def _of_requests(self) -> Iterator[CounterMetricFamily]:
        counters = self._counters
        for name, meaning, value in (
            ("requests", "Requests that finished, each sample one.", counters.num_requests),
            ("prompt_tokens", "Prompt tokens of these.", counters.num_prompt_tokens),
            ("output_tokens", "Tokens that these generated.", counters.num_output_tokens),
        ):
            family = _counter(f"finished_{name}", meaning, ())
            family.add_metric((), value)
            yield family


def _counter(name: str, meaning: str, labels: tuple[str, ...]) -> CounterMetricFamily:
    from prometheus_client.core import CounterMetricFamily

    return CounterMetricFamily(f"noria_{name}", meaning, labels=labels)
