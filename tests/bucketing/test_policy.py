from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from noria.bucketing import NoBucketError, WholePrompts, decode_context_need, packed_len


@given(
    st.lists(st.integers(1, 512), max_size=20),
    st.sampled_from([1, 16, 128]),
    st.integers(1, 10),
)
def test_the_longest_head_of_the_queue_that_fits_is_packed(
    waiting: list[int], tile: int, max_num_seqs: int
) -> None:
    policy = WholePrompts(512, max_num_seqs, prefill_tile=tile)

    count = policy.num_to_pack(waiting)

    fitting = [n for n in range(len(waiting) + 1) if packed_len(waiting[:n], tile) <= 512]
    assert count == min(max(fitting), max_num_seqs)
    assert policy.pack(waiting) == tuple(waiting[:count])


def test_a_short_prompt_does_not_overtake_one_that_does_not_fit() -> None:
    assert WholePrompts(512, 8).pack([300, 300, 10]) == (300,)


def test_alignment_gaps_count_against_the_largest_bucket() -> None:
    assert WholePrompts(256, 8).pack([1, 129, 100]) == (1, 129, 100)
    assert WholePrompts(256, 8, prefill_tile=128).pack([1, 129, 100]) == (1,)
    assert WholePrompts(256, 8, prefill_tile=128).pack([1, 128, 100]) == (1, 128)


def test_nothing_is_packed_only_if_nothing_waits() -> None:
    assert WholePrompts(512, 8).pack([]) == ()
    assert WholePrompts(512, 1).pack([512]) == (512,)


def test_b08_a_prompt_longer_than_the_largest_bucket_is_a_named_error() -> None:
    policy = WholePrompts(512, 8)

    with pytest.raises(NoBucketError, match=r"num_batched_tokens 513 .* largest is 512") as caught:
        policy.pack([513, 1])

    assert (caught.value.need, caught.value.largest) == (513, 512)
    assert policy.pack([1, 513]) == (1,)


def test_the_queue_is_read_only_as_far_as_needed() -> None:
    queue: Iterator[int] = iter([200, 200, 200, 7])

    WholePrompts(512, 8).pack(queue)

    assert list(queue) == [7]


@pytest.mark.parametrize("bad", [0, -1, True])
def test_limits_and_lengths_must_be_positive_integers(bad: int) -> None:
    with pytest.raises(ValueError, match="max_num_tokens must be a positive integer"):
        WholePrompts(bad, 8)
    with pytest.raises(ValueError, match="max_num_seqs must be a positive integer"):
        WholePrompts(512, bad)
    with pytest.raises(ValueError, match="prefill_tile must be a positive integer"):
        WholePrompts(512, 8, prefill_tile=bad)
    with pytest.raises(ValueError, match="waiting prompt length must be a positive integer"):
        WholePrompts(512, 8).pack([bad])


@pytest.mark.parametrize(("computed", "drafts", "need"), [(0, 0, 1), (255, 0, 256), (255, 3, 259)])
def test_a_decode_step_needs_the_cache_one_token_and_the_drafts(
    computed: int, drafts: int, need: int
) -> None:
    assert decode_context_need(computed, num_speculative_tokens=drafts) == need


def test_negative_counts_are_refused() -> None:
    with pytest.raises(ValueError, match="got -1 computed and 0 speculative"):
        decode_context_need(-1)
    with pytest.raises(ValueError, match="got 0 computed and -1 speculative"):
        decode_context_need(0, num_speculative_tokens=-1)
