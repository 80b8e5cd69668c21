"""Synthetic traffic is the same for the same seed, and the trace that is shipped is such."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from noria.bucketing.traces.csv_traces import trace_csv
from noria.bucketing.traces.families import FAMILIES, draw_trace
from noria.bucketing.traces.trace import TraceError

SHIPPED = Path(__file__).resolve().parents[3] / "examples" / "traces" / "chat.csv.gz"


@pytest.mark.parametrize("name", FAMILIES)
def test_a_seed_decides_all(name: str) -> None:
    first, again, other = (draw_trace(name, num_requests=2_000, seed=s) for s in (3, 3, 4))

    assert trace_csv(first) == trace_csv(again)
    assert first.sha256 == again.sha256
    assert trace_csv(first) != trace_csv(other)
    assert first.sha256 != other.sha256


@pytest.mark.parametrize("name", FAMILIES)
def test_arrivals_are_poisson_at_the_rate_of_the_family(name: str) -> None:
    trace = draw_trace(name, num_requests=20_000)

    assert trace.arrivals_s is not None
    gaps = np.diff(trace.arrivals_s) * FAMILIES[name].requests_per_s
    assert gaps.mean() == pytest.approx(1, rel=0.03)
    assert gaps.std() == pytest.approx(1, rel=0.03)


def test_lengths_are_spread_as_the_family_says() -> None:
    trace = draw_trace("summarization", num_requests=20_000)

    assert np.median(trace.prompt_lens) == pytest.approx(2500, rel=0.02)
    assert np.log(trace.prompt_lens).std() == pytest.approx(0.4, rel=0.03)
    assert trace.prompt_lens.max() == 8_000
    assert trace.output_lens is not None
    assert np.median(trace.output_lens) == pytest.approx(150, rel=0.02)


def test_uniform_lengths_reach_both_ends() -> None:
    lens = draw_trace("uniform", num_requests=60_000).prompt_lens

    assert (lens.min(), lens.max()) == (1, 4_096)
    assert lens.mean() == pytest.approx(2048.5, rel=0.02)


def test_synthetic_traffic_says_that_it_is() -> None:
    assert draw_trace("code").warnings == (
        "synthetic: drawn from the family code, seed 0; not the traffic of a service",
    )


def test_an_unknown_family_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(TraceError, match="named chats; there are chat, code, summarization, uni"):
        draw_trace("chats")


@pytest.mark.parametrize("arguments", [{"num_requests": 0}, {"seed": -1}], ids=str)
def test_impossible_draws_are_refused(arguments: dict[str, int]) -> None:
    with pytest.raises(TraceError, match="must be at least 1 and 0"):
        draw_trace("chat", **arguments)


def test_the_shipped_trace_is_drawn_by_this_code() -> None:
    shipped = gzip.decompress(SHIPPED.read_bytes()).decode()

    assert shipped == trace_csv(draw_trace("chat", num_requests=4_000, seed=0))
    assert SHIPPED.stat().st_size < 100_000
