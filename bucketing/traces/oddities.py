"""What is odd about a trace that can be used all the same, in sentences for people."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import ceil

import numpy as np

from .trace import Floats, Ints, Trace

FEW_REQUESTS = 1_000
"""With as many, a plan comes within about one point of its optimum."""
OUTLIER_SHARE = 0.999
OUTLIER_RATIO = 10


def with_oddities(trace: Trace) -> Trace:
    """Return the trace with a warning for each oddity that it does not name yet."""
    return replace(trace, warnings=tuple(dict.fromkeys((*trace.warnings, *oddities(trace)))))


def other_warnings(trace: Trace) -> tuple[str, ...]:
    """Return the warnings of a trace but for its oddities, which a part of it need not have."""
    own = set(oddities(trace))
    return tuple(warning for warning in trace.warnings if warning not in own)


def oddities(trace: Trace) -> Iterator[str]:
    """Yield what is odd about the lengths and their number."""
    if trace.num_requests < FEW_REQUESTS:
        yield (
            f"only {requests_text(trace.num_requests)}, so that a plan may miss its optimum for "
            f"others like them by several points; {FEW_REQUESTS:,} come within one"
        )
    yield from _outlier("prompt", trace.prompt_lens, trace.weights)
    if trace.output_lens is not None:
        yield from _outlier("output", trace.output_lens, trace.weights)


def count_text(count: float) -> str:
    """Write a number of requests, which weights may make fractional.

    >>> count_text(1234.0), count_text(0.5)
    ('1,234', '0.5')
    """
    return f"{count:,.0f}" if float(count).is_integer() or count >= FEW_REQUESTS else f"{count:.3g}"


def requests_text(count: float) -> str:
    """Write how many requests there are.

    >>> requests_text(1234.0), requests_text(1.0)
    ('1,234 requests', '1 request')
    """
    return f"{count_text(count)} request{'' if count == 1 else 's'}"


def _outlier(name: str, lens: Ints, weights: Floats | None) -> Iterator[str]:
    longest = int(lens.max())
    usual = _low_quantile(lens, weights, OUTLIER_SHARE)
    if longest > OUTLIER_RATIO * usual:
        yield (
            f"the longest {name} has {longest:,} tokens, more than {OUTLIER_RATIO} times the "
            f"99.9th percentile, {usual:,}: an outlier, for which the largest graph is there"
        )


def _low_quantile(lens: Ints, weights: Floats | None, share: float) -> int:
    """Return the observed length that this share of the requests does not exceed.

    Of few requests it is that of all but the longest one.
    """
    if weights is None:
        at = max(0, ceil(_wanted(len(lens), share)) - 1)
        return int(np.partition(lens, at)[at])
    order = np.argsort(lens, kind="stable")
    below = np.cumsum(weights[order])
    return int(lens[order[int(np.searchsorted(below, _wanted(below[-1], share)))]])


def _wanted(total: float, share: float) -> float:
    return min(share * total, total - 1) if total >= 2 else share * total
