import pytest
from hypothesis import given
from hypothesis import strategies as st

from noria.bucketing import (
    DecodeBucket,
    PaddingCounter,
    PrefillBucket,
    StepPadding,
    aligned_starts,
    num_pad_tokens,
    packed_len,
    waste_share,
)

LENGTHS = st.lists(st.integers(1, 300), min_size=1, max_size=8)
TILES = st.sampled_from([1, 2, 16, 128])


def test_a_hundred_tokens_in_a_bucket_of_128_leave_28_padding() -> None:
    assert num_pad_tokens(100, PrefillBucket(128, 2048)) == 28


def test_two_requests_in_a_bucket_of_eight_leave_six_padding() -> None:
    assert num_pad_tokens(2, DecodeBucket(8, 2048)) == 6


def test_b10_three_requests_with_three_drafts_leave_four_padded_rows() -> None:
    assert num_pad_tokens(12, DecodeBucket(4, 2048, query_len=4)) == 4


@pytest.mark.parametrize("num_tokens", [-1, 129])
def test_tokens_outside_the_bucket_are_refused(num_tokens: int) -> None:
    with pytest.raises(ValueError, match=r"outside 0\.\.128 of prefill_t128_c2048"):
        num_pad_tokens(num_tokens, PrefillBucket(128, 2048))


@given(LENGTHS, TILES)
def test_packed_requests_start_at_tiles_that_nobody_else_touches(
    lengths: list[int], tile: int
) -> None:
    starts = aligned_starts(lengths, tile)

    ends = [start + length for start, length in zip(starts, lengths, strict=True)]
    tiles = [set(range(s // tile, -(-e // tile))) for s, e in zip(starts, ends, strict=True)]
    assert starts[0] == 0
    assert all(start % tile == 0 for start in starts)
    assert sum(map(len, tiles)) == len(set().union(*tiles)) == 1 + max(tiles[-1])
    assert packed_len(lengths, tile) == ends[-1]


@given(LENGTHS)
def test_requests_pack_without_gaps_at_a_tile_of_one(lengths: list[int]) -> None:
    assert packed_len(lengths) == sum(lengths)


@given(LENGTHS, TILES)
def test_rounding_the_last_request_up_never_leaves_a_bucket_of_whole_tiles(
    lengths: list[int], tile: int
) -> None:
    need = packed_len(lengths, tile)
    smallest_bucket = -(-need // tile) * tile

    assert aligned_starts([*lengths, 1], tile)[-1] == smallest_bucket


@pytest.mark.parametrize(("lengths", "tile"), [([0], 1), ([5, -1], 1), ([5], 0), ([True], 1)])
def test_lengths_and_tiles_must_be_positive_integers(lengths: list[int], tile: int) -> None:
    with pytest.raises(ValueError, match="positive integer"):
        aligned_starts(lengths, tile)


def test_shares_of_nothing_are_zero() -> None:
    assert waste_share(0, 0) == StepPadding().waste_share == PaddingCounter().total.waste_share == 0


def test_the_counter_sums_steps_by_bucket() -> None:
    prefill, decode = PrefillBucket(128, 2048), DecodeBucket(8, 2048)
    counter = PaddingCounter()

    counter.add(prefill, 100)
    counter.add(decode, 2)
    counter.add(decode, 8)

    assert counter.by_bucket == {prefill: StepPadding(1, 100, 128), decode: StepPadding(2, 10, 16)}
    assert counter.total == StepPadding(3, 110, 144)
    assert counter.total.num_pad_tokens == 34
    assert counter.by_bucket[decode].waste_share == 6 / 16


def test_a_step_that_does_not_fit_its_bucket_is_not_counted() -> None:
    counter = PaddingCounter()

    with pytest.raises(ValueError, match=r"num_tokens 9 is outside 0\.\.8 of decode_s8_c2048"):
        counter.add(DecodeBucket(8, 2048), 9)

    assert counter.by_bucket == {}
    assert counter.total == StepPadding()


def test_reading_the_counter_gives_a_copy() -> None:
    counter = PaddingCounter()
    before = counter.by_bucket

    counter.add(DecodeBucket(8, 2048), 1)

    assert before == {}
