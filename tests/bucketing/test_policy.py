from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from noria.bucketing import FillPolicy, decode_context_need, packed_len


@given(
    st.lists(st.integers(1, 512), max_size=20),
    st.sampled_from([1, 16, 128]),
    st.integers(1, 10),
)
def test_a_step_is_filled_in_order_and_only_the_last_prompt_is_cut(
    waiting: list[int], tile: int, max_num_seqs: int
) -> None:
    taken = FillPolicy(512, max_num_seqs, prefill_tile=tile).pack(waiting)

    assert list(taken[:-1]) == waiting[: len(taken)][:-1]
    assert all(0 < count <= whole for count, whole in zip(taken, waiting, strict=False))
    assert len(taken) <= max_num_seqs
    assert packed_len(taken, tile) <= 512
    is_whole = list(taken) == waiting[: len(taken)]
    if not is_whole:
        assert packed_len(taken, tile) == 512
    elif len(taken) < min(len(waiting), max_num_seqs):
        assert packed_len([*taken, 1], tile) > 512


def test_any_prompt_runs_in_as_many_steps_as_it_takes() -> None:
    policy, left, steps = FillPolicy(512, 8), 1300, []
    while left:
        steps += policy.pack([left])
        left -= steps[-1]

    assert steps == [512, 512, 276]


def test_alignment_gaps_count_against_the_largest_bucket() -> None:
    assert FillPolicy(256, 8).pack([1, 129, 200]) == (1, 129, 126)
    assert FillPolicy(256, 8, prefill_tile=128).pack([1, 129, 100]) == (1, 128)
    assert FillPolicy(256, 8, prefill_tile=128).pack([1, 128, 100]) == (1, 128)


def test_nothing_is_packed_only_if_nothing_waits() -> None:
    assert FillPolicy(512, 8).pack([]) == ()
    assert FillPolicy(512, 1).pack([512]) == (512,)


def test_the_queue_is_read_only_as_far_as_needed() -> None:
    queue: Iterator[int] = iter([200, 200, 200, 6, 7])

    FillPolicy(512, 8).pack(queue)

    assert list(queue) == [7]


@pytest.mark.parametrize("bad", [0, -1, True])
def test_limits_and_lengths_must_be_positive_integers(bad: int) -> None:
    with pytest.raises(ValueError, match="max_num_tokens must be a positive integer"):
        FillPolicy(bad, 8)
    with pytest.raises(ValueError, match="max_num_seqs must be a positive integer"):
        FillPolicy(512, bad)
    with pytest.raises(ValueError, match="prefill_tile must be a positive integer"):
        FillPolicy(512, 8, prefill_tile=bad)
    with pytest.raises(ValueError, match="waiting prompt length must be a positive integer"):
        FillPolicy(512, 8).pack([bad])


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
