import pytest
from hypothesis import given
from hypothesis import strategies as st

from noria.bucketing import (
    BucketPlan,
    DecodeBucket,
    NoBucketError,
    PrefillBucket,
    bucket_work,
    cost_order,
)

PREFILL = (PrefillBucket(128, 2048), PrefillBucket(256, 2048))
DECODE = (DecodeBucket(4, 2048), DecodeBucket(8, 2048))
NUMBERS = st.integers(1, 64)


@st.composite
def ragged_shapes(draw: st.DrawFn) -> set[tuple[int, int]]:
    shapes = draw(st.sets(st.tuples(NUMBERS, NUMBERS.map(lambda n: 1024 * n)), max_size=10))
    shapes.add((64, 64 * 1024))
    return shapes


def test_labels_name_phase_rows_and_context() -> None:
    assert PrefillBucket(128, 2048).label == "prefill_t128_c2048"
    assert DecodeBucket(8, 2048).label == "decode_s8_c2048"
    assert DecodeBucket(8, 2048, query_len=4).label == "decode_s8_c2048_q4"


@pytest.mark.parametrize(("num_seqs", "num_rows"), [(1, 4), (2, 8), (4, 16)])
def test_b10_rows_are_requests_times_query_length(num_seqs: int, num_rows: int) -> None:
    assert DecodeBucket(num_seqs, 2048, query_len=4).num_rows == num_rows


def test_b10_three_requests_with_three_drafts_run_sixteen_rows() -> None:
    decode = tuple(DecodeBucket(n, 512, query_len=4) for n in (1, 2, 4))
    plan = BucketPlan(PREFILL, decode)

    assert plan.pick_decode(3, 100).num_rows == 16


def test_buckets_order_by_size_then_context_and_hash_by_value() -> None:
    assert PrefillBucket(128, 4096) < PrefillBucket(256, 128) < PrefillBucket(256, 256)
    assert len({DecodeBucket(8, 2048), DecodeBucket(8, 2048), DecodeBucket(8, 2048, 2)}) == 2


@pytest.mark.parametrize("bad", [0, -1, True, 1.5, "8"])
def test_a_shape_that_is_no_positive_integer_is_refused(bad: int) -> None:
    with pytest.raises(ValueError, match="num_tokens must be a positive integer"):
        PrefillBucket(bad, 2048)
    with pytest.raises(ValueError, match="query_len must be a positive integer"):
        DecodeBucket(8, 2048, bad)


@given(ragged_shapes(), NUMBERS, st.integers(1, 64 * 1024))
def test_the_cheapest_bucket_of_a_ragged_set_is_picked(
    shapes: set[tuple[int, int]], size: int, context_len: int
) -> None:
    plan = BucketPlan(
        tuple(PrefillBucket(*shape) for shape in shapes),
        tuple(DecodeBucket(*shape) for shape in shapes),
    )

    prefill = plan.pick_prefill(size, context_len)
    decode = plan.pick_decode(size, context_len)

    fitting = [(n, c) for n, c in shapes if n >= size and c >= context_len]
    assert (prefill.num_tokens, prefill.context_len) in fitting
    assert prefill.work == decode.work == min(bucket_work(n, c) for n, c in fitting)


@given(ragged_shapes())
def test_every_bucket_runs_a_step_that_fills_it(shapes: set[tuple[int, int]]) -> None:
    buckets = tuple(DecodeBucket(*shape) for shape in shapes)
    plan = BucketPlan(PREFILL, buckets)

    for bucket in buckets:
        assert plan.pick_decode(bucket.num_seqs, bucket.context_len) == bucket


def test_more_rows_lose_against_a_longer_context_until_the_context_outweighs_them() -> None:
    decode = (DecodeBucket(8, 4096), DecodeBucket(16, 1024), DecodeBucket(16, 131072))
    short = BucketPlan(PREFILL, decode)
    long = BucketPlan(PREFILL, (DecodeBucket(8, 131072), *decode[1:]))

    assert short.pick_decode(5, 1000) == DecodeBucket(8, 4096)
    assert long.pick_decode(5, 1000) == DecodeBucket(16, 1024)


@pytest.mark.parametrize(
    ("num_seqs", "context_len", "label"),
    [
        (1, 1, "decode_s4_c512"),
        (4, 512, "decode_s4_c512"),
        (5, 512, "decode_s8_c512"),
        (4, 513, "decode_s4_c2048"),
        (8, 2048, "decode_s8_c2048"),
    ],
)
def test_both_needs_are_inclusive(num_seqs: int, context_len: int, label: str) -> None:
    decode = tuple(DecodeBucket(s, c) for s in (4, 8) for c in (512, 2048))

    assert BucketPlan(PREFILL, decode).pick_decode(num_seqs, context_len).label == label


def test_a_need_beyond_the_limit_bucket_names_its_axis_and_the_sizes() -> None:
    plan = BucketPlan(PREFILL, DECODE)

    with pytest.raises(NoBucketError, match=r"^num_batched_tokens 257 .* is 256, of \[128, 256\]$"):
        plan.pick_prefill(257, 1)
    with pytest.raises(NoBucketError, match=r"^num_seqs 9 .* largest is 8, of \[4, 8\]$"):
        plan.pick_decode(9, 1)
    with pytest.raises(NoBucketError, match=r"^decode context_len 2049 .* largest is 2048"):
        plan.pick_decode(8, 2049)
    with pytest.raises(NoBucketError, match=r"^prefill context_len 2049 .* largest is 2048"):
        plan.pick_prefill(1, 2049)


@pytest.mark.parametrize("needs", [(0, 1), (1, 0), (-1, 1), (True, 1)])
def test_a_step_without_requests_or_context_is_refused(needs: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="positive integer"):
        BucketPlan(PREFILL, DECODE).pick_decode(*needs)


def test_warm_up_runs_both_limit_graphs_first_then_the_others_by_falling_work() -> None:
    decode = tuple(DecodeBucket(s, c) for s in (4, 8) for c in (512, 2048))
    plan = BucketPlan(tuple(reversed(PREFILL)), decode)

    labels = [bucket.label for bucket in plan.buckets]

    assert labels == [
        "prefill_t256_c2048",
        "decode_s8_c2048",
        "prefill_t128_c2048",
        "decode_s8_c512",
        "decode_s4_c2048",
        "decode_s4_c512",
    ]


@given(ragged_shapes())
def test_warm_up_visits_every_bucket_once(shapes: set[tuple[int, int]]) -> None:
    prefill = tuple(PrefillBucket(*shape) for shape in shapes)
    decode = tuple(DecodeBucket(*shape) for shape in shapes)

    order = BucketPlan(prefill, decode).buckets

    assert sorted(order, key=str) == sorted((*prefill, *decode), key=str)
    assert {order[0], order[1]} == {PrefillBucket(64, 65536), DecodeBucket(64, 65536)}
    assert list(order[2:]) == sorted(order[2:], key=cost_order, reverse=True)


@pytest.mark.parametrize(
    ("prefill", "decode", "message"),
    [
        ((), DECODE, "at least one prefill bucket"),
        (PREFILL, (), "at least one decode bucket"),
        ((*PREFILL, PREFILL[0]), DECODE, "prefill_t128_c2048 is in the plan twice"),
        (
            PREFILL,
            (DecodeBucket(4, 2048), DecodeBucket(8, 512)),
            "no decode bucket has both the largest size 8 and the largest context 2048, and takes "
            "most",
        ),
        (PREFILL, (DecodeBucket(4, 64, 1), DecodeBucket(8, 64, 4)), r"one query_len, got \[1, 4\]"),
    ],
)
def test_a_plan_that_leaves_a_need_without_a_bucket_is_refused(
    prefill: tuple[PrefillBucket, ...], decode: tuple[DecodeBucket, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        BucketPlan(prefill, decode)


def test_known_seconds_decide_before_the_work_does() -> None:
    wide, long, limit = DecodeBucket(8, 256), DecodeBucket(4, 2048), DecodeBucket(8, 2048)
    by_work = BucketPlan((PrefillBucket(8, 2048),), (wide, long, limit))
    by_seconds = BucketPlan(
        (PrefillBucket(8, 2048),), (wide, long, limit), seconds={wide: 1.0, long: 0.5, limit: 2.0}
    )

    picks = {plan.pick_decode(2, 100) for plan in (by_work, by_seconds)}

    assert by_seconds.pick_decode(2, 100) == long
    assert picks == {min((wide, long), key=lambda bucket: bucket.work), long}
    assert by_seconds.pick_decode(5, 100) == wide


def test_a_limit_graph_that_is_not_the_slowest_is_refused() -> None:
    small, limit = DecodeBucket(4, 256), DecodeBucket(8, 2048)

    with pytest.raises(ValueError, match="takes most; decode_s4_c256 does"):
        BucketPlan((PrefillBucket(8, 2048),), (small, limit), seconds={small: 2.0, limit: 1.0})


def test_warm_up_follows_the_given_order_behind_the_limits() -> None:
    prefill = tuple(PrefillBucket(size, 512) for size in (64, 128, 512))
    decode = (DecodeBucket(2, 512), DecodeBucket(4, 512))
    order = ("decode_s2_c512", "prefill_t128_c512", "decode_s4_c512")

    plan = BucketPlan(prefill, decode, order=order)

    assert [bucket.label for bucket in plan.buckets] == [
        "prefill_t512_c512",
        "decode_s4_c512",
        "decode_s2_c512",
        "prefill_t128_c512",
        "prefill_t64_c512",
    ]


@given(ragged_shapes(), ragged_shapes(), st.data())
def test_with_its_limits_and_any_others_a_plan_has_a_bucket_for_every_step(
    prefill: set[tuple[int, int]], decode: set[tuple[int, int]], data: st.DataObject
) -> None:
    """And it picks the cheapest of those that are left."""
    whole = BucketPlan(
        tuple(PrefillBucket(*one) for one in prefill), tuple(DecodeBucket(*one) for one in decode)
    )
    others = data.draw(st.sets(st.sampled_from(whole.buckets)))
    plan = whole.restricted_to({*whole.limits, *others})

    assert {*plan.buckets} == {*whole.limits, *others}
    for bucket in whole.buckets:
        need = bucket.size, bucket.context_len
        picked = plan.pick_prefill(*need) if bucket.phase == "prefill" else plan.pick_decode(*need)
        fitting = [
            one
            for one in plan.buckets
            if one.phase == bucket.phase
            and one.size >= bucket.size
            and one.context_len >= bucket.context_len
        ]
        assert picked == min(fitting, key=cost_order)
