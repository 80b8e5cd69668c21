"""Counters of steps: what is written is read, rounded within bounds, and never too much."""

from __future__ import annotations

import io
import json
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from noria.bucketing import DecodeBucket, PlanLimits, PrefillBucket, ScoreBucket
from noria.bucketing.traces.counted_engine import CountedEngine
from noria.bucketing.traces.counters import Counters, GraphCounts, read_counters
from noria.bucketing.traces.text import TraceText
from noria.runtime.step_counters import Resolution, ShapeTable, StepCounters

SIZES = st.integers(1, 2**20)
UNITS = st.sampled_from([1, 3, 16, 48])


ENGINE = CountedEngine(limits=PlanLimits(512, 8, 1000, 4, 16), backend="cpu", policy="fill")


def read(counters: StepCounters) -> Counters:
    data = json.dumps(counters.to_mapping(ENGINE)).encode()
    return read_counters(TraceText.read(io.BytesIO(data), "counters.json"))


def new_counters() -> StepCounters:
    return StepCounters(max_num_rows=512, max_num_seqs=8, max_model_len=1000, block_size=16)


def test_what_is_counted_is_read_back() -> None:
    counters = new_counters()
    prefill, decode, score = PrefillBucket(64, 1000), DecodeBucket(8, 512), ScoreBucket(64, 1000)

    for context in (40, 41, 12):
        counters.add_step(prefill, 40, context, num_tokens=38, num_requests=2, seconds=0.5)
    counters.add_step(decode, 3, 41, num_tokens=3, num_requests=3, seconds=0.25)
    counters.add_step(decode, 3, 48, num_tokens=3, num_requests=3, seconds=0.25)
    counters.add_step(score, 5, 5, num_tokens=5, num_requests=1, seconds=0.125)
    counters.add_request(40, 9)
    counters.add_request(40, 9)
    counters.add_request(129, 1)

    found = read(counters)

    assert found.engine == ENGINE
    assert found.prefill_steps.tolist() == [[40, 40, 2, 4], [40, 56, 1, 2]]
    assert found.decode is not None
    assert found.decode.num_seqs.tolist() == [3]
    assert found.decode.context_lens.tolist() == [48]
    assert found.decode.weights.tolist() == [2]
    assert found.requests is not None
    assert found.requests.prompt_lens.tolist() == [40, 130]
    assert found.requests.output_lens is not None
    assert found.requests.output_lens.tolist() == [9, 1]
    assert found.requests.num_requests == 3
    assert found.graphs == {
        "decode_s8_c512": GraphCounts(2, 6, 16, 0.5),
        "prefill_t64_c1000": GraphCounts(3, 114, 192, 1.5),
        "score_t64_c1000": GraphCounts(1, 5, 64, 0.125),
    }
    assert (counters.num_requests, counters.num_prompt_tokens, counters.num_output_tokens) == (
        3,
        209,
        19,
    )


def test_nothing_counted_is_read_back() -> None:
    found = read(new_counters())

    assert (found.requests, found.prefill, found.decode, found.graphs) == (None, None, None, {})


@given(SIZES, UNITS, st.integers(0, 6))
def test_sizes_are_rounded_up_to_a_64th_of_them(size: int, unit: int, halvings: int) -> None:
    rounded = Resolution(2**30, unit).round_up(size, halvings)

    assert rounded % unit == 0
    if size <= 128 * unit and not halvings:
        assert rounded - size < unit
    assert 0 <= rounded - size < unit + (size + unit) * 2**halvings / 64


@given(SIZES, UNITS, SIZES, st.integers(0, 9))
def test_what_is_rounded_once_more_is_as_if_rounded_at_once(
    size: int, unit: int, limit: int, halvings: int
) -> None:
    resolution = Resolution(limit, unit)
    once = resolution.round_up(size, halvings)

    assert once <= limit
    assert resolution.round_up(once, halvings + 1) == resolution.round_up(size, halvings + 1)


def num_octaves(shapes: list[tuple[int, int, int]], unit: int) -> int:
    """Return how many pairs there are if sizes are powers of two."""
    firsts = {(first - 1).bit_length() for first, _, _ in shapes}
    seconds = {(-(-second // unit) - 1).bit_length() for _, second, _ in shapes}
    return len(firsts) * len(seconds)


@given(
    st.lists(st.tuples(SIZES, SIZES, st.integers(0, 3)), max_size=60),
    st.integers(1, 12),
    UNITS,
)
def test_a_table_has_room_for_any_shapes_and_loses_none(
    shapes: list[tuple[int, int, int]], max_num: int, unit: int
) -> None:
    table = ShapeTable(Resolution(2**20), Resolution(2**20, unit), max_num=max_num)
    for shape in shapes:
        table.add(*shape)
        num = len(list(table.rows()))
        assert num <= max_num or num <= num_octaves(shapes, unit)

    rows = list(table.rows())
    assert sum(count for _, _, count, _ in rows) == len(shapes)
    assert sum(more for _, _, _, more in rows) == sum(more for _, _, more in shapes)
    for first, second, _ in shapes:
        assert any(row[0] >= first and row[1] >= second for row in rows)
    assert [row[:2] for row in rows] == sorted({row[:2] for row in rows})


def test_a_full_table_stays_as_fine_as_it_can() -> None:
    table = ShapeTable(Resolution(4096), Resolution(4096), max_num=1000)
    draws = random.Random(0)
    shapes = Counter((draws.randint(1, 4096), draws.randint(1, 4096)) for _ in range(5000))
    for shape in shapes.elements():
        table.add(*shape)

    assert 300 < len(list(table.rows())) <= 1000


def test_long_service_takes_bounded_memory() -> None:
    counters = StepCounters(
        max_num_rows=8192, max_num_seqs=512, max_model_len=131072, block_size=16
    )
    draws = random.Random(0)
    prefill, decode = PrefillBucket(8192, 131072), DecodeBucket(512, 131072)
    for _ in range(40_000):
        context = draws.randint(1, 131072)
        rows, seqs = draws.randint(1, min(8192, context)), draws.randint(1, 512)
        counters.add_step(prefill, rows, context, num_tokens=rows, num_requests=1, seconds=1.0)
        counters.add_step(decode, seqs, context, num_tokens=seqs, num_requests=seqs, seconds=1.0)
        counters.add_request(context, draws.randint(1, 4096))

    found = counters.to_mapping(ENGINE)
    assert all(len(found[key]) <= 16384 for key in ("prefill", "decode", "prompts"))  # type: ignore[arg-type]
    assert found["graphs"]["prefill_t8192_c131072"]["num_steps"] == 40_000  # type: ignore[index]
    assert read(counters).requests.num_requests == 40_000  # type: ignore[union-attr]


def test_steps_that_do_not_fit_their_graph_are_refused() -> None:
    counters = new_counters()

    with pytest.raises(ValueError, match="num_tokens 9 is outside"):
        counters.add_step(DecodeBucket(8, 512), 9, 9, num_tokens=9, num_requests=9, seconds=1.0)

    assert counters.graphs == {}
