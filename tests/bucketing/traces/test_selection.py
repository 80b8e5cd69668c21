"""Parts of traces: nothing is dropped or cut without being counted, and shapes are kept."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from noria.bucketing.traces.oddities import with_oddities
from noria.bucketing.traces.selection import fit_to_limits, halves, head, scale
from noria.bucketing.traces.trace import Trace, TraceError

LENS = st.integers(1, 2**31 - 1)


def trace_of(
    prompts: list[int], outputs: list[int] | None = None, weights: list[float] | None = None
) -> Trace:
    """Make a trace of one request per second, of whose prompts one token was not seen before."""
    lens = np.array(prompts)
    return Trace(
        lens,
        None if outputs is None else np.array(outputs),
        np.arange(float(len(lens))),
        lens - 1,
        None if weights is None else np.array(weights),
        sha256="abc",
        warnings=("as it was",),
    )


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    rows = draw(st.lists(st.tuples(LENS, LENS, st.floats(0.01, 1e6)), min_size=1, max_size=9))
    prompts, outputs, weights = (list(column) for column in zip(*rows, strict=True))
    return trace_of(
        prompts,
        outputs if draw(st.booleans()) else None,
        weights if draw(st.booleans()) else None,
    )


def test_the_head_is_the_first_requests_with_all_that_is_known_of_them() -> None:
    part = head(trace_of([5, 6, 7], [1, 2, 3], [1.0, 2.0, 4.0]), 2)

    assert part.prompt_lens.tolist() == [5, 6]
    assert part.output_lens is not None
    assert part.output_lens.tolist() == [1, 2]
    assert part.arrivals_s is not None
    assert part.arrivals_s.tolist() == [0, 1]
    assert part.prefix_lens is not None
    assert part.prefix_lens.tolist() == [4, 5]
    assert part.weights is not None
    assert part.weights.tolist() == [1, 2]
    assert part.warnings[0] == "as it was"
    assert any(warning.startswith("only 3 requests, ") for warning in part.warnings)


def test_a_part_has_oddities_of_its_own_and_none_of_the_whole() -> None:
    whole = with_oddities(Trace(np.array([5] * 40 + [500]), np.array([5] * 41), warnings=("odd",)))
    long = Trace(whole.prompt_lens, np.array([5] * 40 + [500]), warnings=whole.warnings)

    short, scaled = head(whole, 30), scale(with_oddities(long), 100)

    assert [text[:7] for text in whole.warnings] == ["odd", "only 41", "the lon"]
    assert [text[:7] for text in short.warnings] == ["odd", "only 30"]
    assert scaled.warnings[0] == "odd"
    assert len([text for text in scaled.warnings if text.startswith("only 41")]) == 1
    for name in ("prompt", "output"):
        (outlier,) = (text for text in scaled.warnings if f"the longest {name}" in text)
        assert outlier.startswith(f"the longest {name} has 50 tokens")


def test_an_outlier_that_is_left_out_needs_no_graph() -> None:
    whole = with_oddities(Trace(np.array([5] * 40 + [500]), np.array([5] * 40 + [1])))
    ends = with_oddities(Trace(np.array([5] * 41), np.array([5] * 40 + [500])))

    fitting, cut = fit_to_limits(whole, 100), fit_to_limits(ends, 100)

    assert [text[:7] for text in fitting.warnings] == ["1 of 41", "only 40"]
    assert [text[:25] for text in cut.warnings] == [
        "1 of 41 requests (2.44%) ",
        "only 41 requests, so that",
        "the longest output has 95",
    ]


def test_a_head_longer_than_the_trace_is_all_of_it() -> None:
    assert head(trace_of([5, 6]), 9).prompt_lens.tolist() == [5, 6]


def test_a_head_of_nothing_is_refused() -> None:
    with pytest.raises(TraceError, match="must be at least 1"):
        head(trace_of([5]), 0)


def test_halves_hold_the_earlier_and_the_later_requests_from_their_first_on() -> None:
    first, second = halves(trace_of([5, 6, 7, 8, 9]))

    assert first.prompt_lens.tolist() == [5, 6]
    assert second.prompt_lens.tolist() == [7, 8, 9]
    assert second.arrivals_s is not None
    assert second.arrivals_s.tolist() == [0, 1, 2]


def test_windows_are_not_cut_in_halves() -> None:
    windows = Trace(
        np.array([5, 6, 7, 8]),
        arrivals_s=np.array([0.0, 0, 0, 60]),
        weights=np.array([1.0, 9, 1, 2]),
    )

    first, second = halves(windows)

    assert (first.num_requests, second.num_requests) == (11, 2)


def test_halves_meet_at_the_window_that_is_nearest_to_the_middle() -> None:
    windows = Trace(
        np.array([5, 6, 7]), arrivals_s=np.array([0.0, 60, 120]), weights=np.array([1.0, 5, 6])
    )

    first, second = halves(windows)

    assert (first.num_requests, second.num_requests) == (6, 6)


def test_halves_of_a_histogram_have_equal_counts_as_far_as_rows_allow() -> None:
    histogram = Trace(np.array([5, 6, 7, 8]), weights=np.array([1.0, 1, 8, 10]))

    first, second = halves(histogram)

    assert (first.num_requests, second.num_requests) == (10, 10)


@pytest.mark.parametrize("weights", [None, np.array([2.0])], ids=["request", "count"])
def test_one_row_has_no_halves(weights: np.ndarray | None) -> None:
    with pytest.raises(TraceError, match="has no halves"):
        halves(Trace(np.array([5]), weights=weights))


def test_one_window_has_no_halves() -> None:
    with pytest.raises(TraceError, match="has no halves"):
        halves(Trace(np.array([5, 6]), arrivals_s=np.zeros(2), weights=np.ones(2)))


@given(traces())
def test_halves_join_to_the_whole(trace: Trace) -> None:
    if len(trace.prompt_lens) > 1:
        first, second = halves(trace)

        joined = np.concatenate([first.prompt_lens, second.prompt_lens])
        assert joined.tolist() == trace.prompt_lens.tolist()
        assert len({first.sha256, second.sha256, trace.sha256}) == 3


def test_what_the_limit_admits_is_left_as_it_is() -> None:
    trace = trace_of([5, 63], [59, 1])

    assert fit_to_limits(trace, 64) is trace


def test_requests_beyond_the_limit_are_counted_and_named() -> None:
    fitted = fit_to_limits(trace_of([5, 64, 10, 900], [60, 1, 54, 1]), 64)

    assert fitted.prompt_lens.tolist() == [5, 10]
    assert fitted.output_lens is not None
    assert fitted.output_lens.tolist() == [59, 54]
    assert fitted.warnings[1:3] == (
        "2 of 4 requests (50.00%) have prompts of more than the 63 tokens that max_model_len 64 "
        "allows and are left out; the longest is request 4 with 900",
        "1 of 4 requests (25.00%) have more than max_model_len 64 tokens of prompt and output, the "
        "first is request 1; their outputs end at the limit",
    )


def test_weights_are_counted_not_rows() -> None:
    fitted = fit_to_limits(trace_of([5, 64], None, [9_998.0, 2.0]), 64)

    assert fitted.warnings[1].startswith("2 of 10,000 requests (0.02%) have prompts")


def test_a_trace_of_which_nothing_fits_is_refused() -> None:
    with pytest.raises(TraceError, match=r"shortest has 64 tokens; max_model_len 64 allows 63"):
        fit_to_limits(trace_of([70, 64]), 64)


@given(traces(), st.integers(2, 2**31))
def test_a_scaled_trace_fits_in_order_and_in_proportion(trace: Trace, limit: int) -> None:
    scaled = scale(trace, limit)

    assert fit_to_limits(scaled, limit) is scaled
    order = np.argsort(trace.prompt_lens, kind="stable")
    assert (np.diff(scaled.prompt_lens[order]) >= 0).all()
    totals = trace.prompt_lens + (1 if trace.output_lens is None else trace.output_lens)
    factor = min(1.0, limit / totals.max())
    assert np.abs(scaled.prompt_lens - trace.prompt_lens * factor).max() <= 1
    if trace.output_lens is not None:
        assert scaled.output_lens is not None
        assert np.abs(scaled.output_lens - trace.output_lens * factor).max() <= 1
    assert scaled.prefix_lens is not None
    assert (scaled.prefix_lens < scaled.prompt_lens).all()
    assert scaled.num_requests == trace.num_requests


def test_a_scaled_trace_says_so_and_has_a_digest_of_its_own() -> None:
    trace = trace_of([1000, 10], [24, 7])

    scaled = scale(trace, 512)

    assert scaled.prompt_lens.tolist() == [500, 5]
    assert scaled.output_lens is not None
    assert scaled.output_lens.tolist() == [12, 3]
    assert "lengths are scaled by 512 / 1024, so that all requests fit" in scaled.warnings
    assert scaled.sha256 != trace.sha256
    assert scale(trace, 512).sha256 == scaled.sha256


def test_a_trace_that_fits_is_not_scaled() -> None:
    trace = trace_of([500], [12])

    assert scale(trace, 512) is trace


def test_no_trace_is_scaled_to_less_than_a_request() -> None:
    with pytest.raises(TraceError, match="at least 2 tokens"):
        scale(trace_of([5]), 1)
