from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from noria.bucketing import (
    BucketLists,
    BucketPlan,
    DecodeBucket,
    PlanLimits,
    PrefillBucket,
    describe,
    packed_len,
    plan_buckets,
)
from noria.kernels.contract import table_width

LIMITS = PlanLimits(
    max_num_batched_tokens=512,
    max_num_seqs=8,
    max_model_len=1024,
    max_num_prefill_seqs=4,
    block_size=16,
)
LISTS = BucketLists((128, 256, 512), (1, 2, 4, 8))


def ladder_to(draw: st.DrawFn, limit: int, multiple: int = 1) -> tuple[int, ...]:
    steps = st.integers(1, limit // multiple).map(lambda n: n * multiple)
    return tuple(sorted(draw(st.sets(steps, max_size=4)) | {limit}))


@st.composite
def plans(draw: st.DrawFn) -> tuple[PlanLimits, BucketLists]:
    tile = draw(st.sampled_from([1, 16]))
    limits = PlanLimits(
        max_num_batched_tokens=tile * draw(st.integers(1, 20)),
        max_num_seqs=draw(st.integers(4, 16)),
        max_model_len=tile * draw(st.integers(1, 20)),
        max_num_prefill_seqs=draw(st.integers(1, 4)),
        block_size=16,
        prefill_tile=tile,
        num_speculative_tokens=draw(st.sampled_from([0, 3])),
    )
    lists = BucketLists(
        ladder_to(draw, limits.max_prefill_tokens, tile),
        ladder_to(draw, limits.max_num_seqs),
        ladder_to(draw, limits.max_model_len),
        ladder_to(draw, limits.max_model_len),
    )
    return limits, lists


@given(plans(), st.data())
def test_every_legal_prefill_runs_in_the_smallest_listed_sizes(
    drawn: tuple[PlanLimits, BucketLists], data: st.DataObject
) -> None:
    limits, lists = drawn
    lengths = st.integers(1, limits.max_prefill_tokens)
    query_lens = data.draw(st.lists(lengths, min_size=1, max_size=limits.max_num_prefill_seqs))
    while packed_len(query_lens, limits.prefill_tile) > limits.max_prefill_tokens:
        query_lens.pop()
    cached = data.draw(st.integers(0, limits.max_model_len - max(query_lens)))
    rows = packed_len(query_lens, limits.prefill_tile)
    context_len = cached + max(query_lens)

    bucket = plan_buckets(limits, lists).pick_prefill(rows, context_len)

    assert bucket.num_tokens == min(n for n in lists.num_batched_tokens if n >= rows)
    assert bucket.context_len == min(c for c in lists.prefill_context if c >= context_len)


@given(plans(), st.data())
def test_every_legal_decode_runs_in_the_smallest_listed_sizes(
    drawn: tuple[PlanLimits, BucketLists], data: st.DataObject
) -> None:
    limits, lists = drawn
    num_seqs = data.draw(st.integers(1, limits.max_num_seqs))
    context_len = data.draw(st.integers(1, limits.max_model_len))

    bucket = plan_buckets(limits, lists).pick_decode(num_seqs, context_len)

    assert bucket == DecodeBucket(
        min(n for n in lists.num_seqs if n >= num_seqs),
        min(c for c in lists.decode_context if c >= context_len),
        limits.query_len,
    )


@given(plans())
def test_a_prefill_graph_is_left_out_only_if_no_packed_step_reaches_it(
    drawn: tuple[PlanLimits, BucketLists],
) -> None:
    limits, lists = drawn
    planned = set(plan_buckets(limits, lists).prefill)

    smaller = 0
    for size in lists.num_batched_tokens:
        for context_len in lists.prefill_context:
            longest = [context_len] * limits.max_num_prefill_seqs
            reached = packed_len(longest, limits.prefill_tile) > smaller
            assert (PrefillBucket(size, context_len) in planned) == reached
        smaller = size


def test_several_requests_may_exceed_their_common_context() -> None:
    plan = plan_buckets(LIMITS, replace(LISTS, prefill_context=(128,)))

    assert plan.pick_prefill(512, 128) == PrefillBucket(512, 128)


def test_the_model_limit_is_a_context_whether_listed_or_not() -> None:
    implicit = plan_buckets(LIMITS, replace(LISTS, decode_context=(256,)))
    explicit = plan_buckets(LIMITS, replace(LISTS, decode_context=(256, 1024)))

    assert implicit == explicit
    assert {bucket.context_len for bucket in implicit.decode} == {256, 1024}
    assert {bucket.context_len for bucket in implicit.prefill} == {1024}


def test_decode_graphs_take_all_drafts() -> None:
    plan = plan_buckets(replace(LIMITS, num_speculative_tokens=3), LISTS)

    assert [bucket.num_rows for bucket in plan.decode] == [4, 8, 16, 32]


def test_b06_a_list_that_ends_below_its_limit_is_refused() -> None:
    with pytest.raises(
        ValueError,
        match=r"num_seqs_buckets \[1, 2, 4\] must end with max_num_seqs = 8, not 4",
    ):
        plan_buckets(LIMITS, replace(LISTS, num_seqs=(1, 2, 4)))


def test_b06_the_largest_prefill_is_the_smaller_of_the_step_and_the_model_limit() -> None:
    limits = replace(LIMITS, max_num_batched_tokens=2048, max_model_len=512)

    assert plan_buckets(limits, LISTS).prefill[-1].num_tokens == 512
    with pytest.raises(
        ValueError,
        match=r"must end with min\(max_num_batched_tokens, max_model_len\) = 512, not 2048",
    ):
        plan_buckets(limits, replace(LISTS, num_batched_tokens=(512, 2048)))


def test_b09_a_block_size_that_does_not_divide_the_limit_rounds_blocks_up() -> None:
    limits = replace(LIMITS, max_model_len=1000, block_size=48)

    assert limits.table_width(1000) == 21
    assert [limits.table_width(n) for n in (1, 48, 49, 960, 961)] == [1, 1, 2, 20, 21]
    assert {row.table_width for row in describe(plan_buckets(limits, LISTS), limits).rows} == {21}


@given(st.integers(1, 5000), st.integers(1, 256), st.sampled_from([1, 2, 128]))
def test_table_widths_are_those_of_the_kernels(context_len: int, block: int, fold: int) -> None:
    limits = replace(LIMITS, block_size=block, fold_blocks=fold)

    expected = table_width(context_len, block_size=block, fold_blocks=fold)

    assert limits.table_width(context_len) == expected


def test_b11_a_bucket_above_the_limit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"num_seqs_buckets .* max_num_seqs = 33, not 34"):
        plan_buckets(
            replace(LIMITS, max_num_seqs=33, num_speculative_tokens=3),
            replace(LISTS, num_seqs=(1, 34)),
        )
    with pytest.raises(ValueError, match=r"num_batched_tokens_buckets .* = 1000, not 1024"):
        plan_buckets(
            replace(LIMITS, max_num_batched_tokens=1000),
            replace(LISTS, num_batched_tokens=(512, 1024)),
        )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_seqs": ()}, "num_seqs_buckets needs at least one size"),
        ({"num_batched_tokens": (256, 128, 512)}, "num_batched_tokens_buckets .* increasing"),
        ({"decode_context": (512, 256)}, "decode_context_length_buckets .* increasing"),
        ({"decode_context": (2048,)}, "decode_context_length_buckets: 2048 is above max_model_len"),
        ({"prefill_context": (2048,)}, "prefill_context_length_buckets: 2048 is above"),
    ],
)
def test_impossible_lists_are_refused_by_the_name_of_their_setting(
    change: dict[str, tuple[int, ...]], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        plan_buckets(LIMITS, replace(LISTS, **change))


def test_token_sizes_must_be_whole_tiles() -> None:
    limits = replace(LIMITS, prefill_tile=128)

    with pytest.raises(ValueError, match=r"200 is not a multiple of .* prefill_tile 128"):
        plan_buckets(limits, replace(LISTS, num_batched_tokens=(128, 200, 512)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_num_seqs": 0}, "max_num_seqs must be a positive integer, got 0"),
        ({"max_model_len": True}, "max_model_len must be a positive integer, got True"),
        ({"block_size": 1.5}, "block_size must be a positive integer, got 1.5"),
        ({"num_speculative_tokens": -1}, "num_speculative_tokens must be"),
        ({"num_speculative_tokens": False}, "num_speculative_tokens must be"),
        ({"max_num_prefill_seqs": 9}, "max_num_prefill_seqs 9 is above max_num_seqs 8"),
    ],
)
def test_impossible_limits_are_refused(change: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(LIMITS, **change)


def test_the_table_has_the_rows_of_a_small_plan() -> None:
    lists = BucketLists((128, 512), (1, 8), decode_context=(256,))

    table = describe(plan_buckets(LIMITS, lists), LIMITS)

    rows = [(r.label, r.phase, r.num_rows, r.context_len, r.table_width) for r in table.rows]
    assert rows == [
        ("prefill_t512_c1024", "prefill", 512, 1024, 64),
        ("decode_s8_c1024", "decode", 8, 1024, 64),
        ("prefill_t128_c1024", "prefill", 128, 1024, 64),
        ("decode_s8_c256", "decode", 8, 256, 16),
        ("decode_s1_c1024", "decode", 1, 1024, 64),
        ("decode_s1_c256", "decode", 1, 256, 16),
    ]
    assert [row.smallest_need for row in table.rows] == [129, 2, 1, 2, 1, 1]
    assert table.rows[0].worst_padding == 383 / 512
    assert table.rows[1].expected_padding == 3 / 8
    assert table.rows[2].relative_work == 1 / 4
    assert (table.num_graphs, table.worst_padding) == (6, 127 / 128)


def test_the_largest_plan_that_is_allowed_is_described() -> None:
    """One need smaller than the next: 4096 contexts, then 4096 sizes."""
    contexts = tuple(DecodeBucket(4096, length) for length in range(1, 4097))
    sizes = tuple(DecodeBucket(size, 4096) for size in range(1, 4097))
    prefill = (PrefillBucket(128, 4096),)

    by_context = describe(BucketPlan(prefill, contexts), LIMITS).rows
    by_size = describe(BucketPlan(prefill, sizes), LIMITS).rows

    assert {row.smallest_need for row in by_context} == {1}
    assert all(row.smallest_need == row.num_rows for row in by_size if row.phase == "decode")


@given(st.sets(st.tuples(st.integers(1, 16), st.integers(1, 16)), max_size=8))
def test_padding_shares_agree_with_picking_every_need(shapes: set[tuple[int, int]]) -> None:
    decode = {DecodeBucket(size, 4096 * length) for size, length in shapes | {(16, 16)}}
    plan = BucketPlan((PrefillBucket(128, 65536),), tuple(decode))

    rows = describe(plan, LIMITS).rows

    for row in rows:
        if isinstance(row.bucket, DecodeBucket):
            num_seqs = row.bucket.num_seqs
            needs = [
                n
                for n in range(1, num_seqs + 1)
                if plan.pick_decode(n, row.context_len) == row.bucket
            ]
            shares = [(num_seqs - n) / num_seqs for n in needs]
            assert row.smallest_need == needs[0]
            assert row.worst_padding == pytest.approx(max(shares))
            assert row.expected_padding == pytest.approx(sum(shares) / len(shares))
