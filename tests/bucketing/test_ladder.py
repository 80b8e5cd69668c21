import pickle
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from noria.bucketing import (
    MAX_NUM_GRAPHS,
    SEQS,
    SPACING,
    TOKENS,
    Axis,
    Ladder,
    NoBucketError,
    exponential,
    linear,
    powers_of_two,
)

SIZES = st.sets(st.integers(1, 5000), min_size=1, max_size=12).map(lambda s: tuple(sorted(s)))


@given(SIZES, st.integers(1, 5000))
def test_pick_is_the_smallest_size_that_holds_the_need(sizes: tuple[int, ...], need: int) -> None:
    assume(need <= sizes[-1])

    picked = Ladder(sizes).pick(need)

    assert picked == min(size for size in sizes if size >= need)


@given(SIZES, st.integers(1, 5000))
def test_a_need_above_the_largest_size_is_an_error_with_both_numbers(
    sizes: tuple[int, ...], excess: int
) -> None:
    need = sizes[-1] + excess

    with pytest.raises(NoBucketError) as caught:
        Ladder(sizes, "num_seqs").pick(need)

    assert (caught.value.need, caught.value.largest) == (need, sizes[-1])
    assert str(caught.value) == (
        f"num_seqs {need} has no bucket: the largest is {sizes[-1]}, of {list(sizes)}"
    )


def test_b08_lengths_at_bucket_edges_pick_inclusively() -> None:
    ladder = Ladder((128, 256, 512), "num_batched_tokens")

    picked = [ladder.pick(n) for n in (1, 127, 128, 129, 255, 256, 257, 512)]

    assert picked == [128, 128, 128, 256, 256, 256, 512, 512]
    with pytest.raises(NoBucketError, match=r"num_batched_tokens 513 .* largest is 512"):
        ladder.pick(513)


def test_one_to_eight_active_requests_pick_the_documented_buckets() -> None:
    ladder = Ladder((1, 2, 4, 8))

    table = [(n, ladder.pick(n), ladder.pick(n) - n) for n in range(1, 9)]

    assert table == [
        (1, 1, 0),
        (2, 2, 0),
        (3, 4, 1),
        (4, 4, 0),
        (5, 8, 3),
        (6, 8, 2),
        (7, 8, 1),
        (8, 8, 0),
    ]


def test_a_single_size_holds_every_legal_need() -> None:
    assert [Ladder((8,)).pick(n) for n in range(1, 9)] == [8] * 8


@pytest.mark.parametrize("need", [0, -1, True, 1.0, "1", None])
def test_a_need_that_is_no_positive_integer_is_refused(need: object) -> None:
    with pytest.raises(ValueError, match="positive integer") as caught:
        Ladder((1, 2)).pick(need)  # type: ignore[arg-type]
    assert not isinstance(caught.value, NoBucketError)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((), "at least one size"),
        ((0, 1), "positive integer, got 0"),
        ((-1,), "positive integer, got -1"),
        ((True, 2), "positive integer, got True"),
        ((1.0, 2), "positive integer, got 1.0"),
        ("128", "positive integer, got '1'"),
        ((4, 2), "strictly increasing, got 2 after 4"),
        ((2, 2), "strictly increasing, got 2 after 2"),
    ],
)
def test_impossible_sizes_are_refused(sizes: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Ladder(sizes)


def test_a_list_is_kept_as_a_tuple_so_that_ladders_hash_and_compare() -> None:
    ladder = Ladder([1, 2, 4])  # type: ignore[arg-type]

    assert ladder == Ladder((1, 2, 4), "other axis")
    assert hash(ladder) == hash(Ladder((1, 2, 4)))
    assert (list(ladder), len(ladder), ladder.largest) == ([1, 2, 4], 3, 4)


def test_no_bucket_error_survives_a_process_boundary() -> None:
    error = pickle.loads(pickle.dumps(NoBucketError("num_seqs", 9, (4, 8))))

    assert (error.axis, error.need, error.largest) == ("num_seqs", 9, 8)


@pytest.mark.parametrize(
    ("minimum", "maximum", "sizes"),
    [
        (128, 512, (128, 256, 512)),
        (128, 1000, (128, 256, 512, 1000)),
        (128, 129, (128, 129)),
        (128, 128, (128,)),
        (128, 100, (100,)),
        (1, 8, (1, 2, 4, 8)),
        (1, 33, (1, 2, 4, 8, 16, 32, 33)),
        (1, 1, (1,)),
        (3, 20, (3, 6, 12, 20)),
    ],
)
def test_powers_of_two_double_and_always_end_with_the_limit(
    minimum: int, maximum: int, sizes: tuple[int, ...]
) -> None:
    assert powers_of_two(minimum, maximum) == sizes


@given(
    st.integers(1, 300),
    st.integers(1, 4000),
    st.floats(1.1, 4.0),
    st.integers(1, 200),
)
def test_every_rule_is_strictly_increasing_and_ends_with_the_limit(
    minimum: int, maximum: int, growth: float, step: int
) -> None:
    for sizes in (
        powers_of_two(minimum, maximum),
        exponential(minimum, maximum, growth, granularity=step),
        linear(minimum, maximum, step),
    ):
        assert Ladder(sizes).largest == maximum
        assert sizes[0] == min(minimum, maximum)


@given(st.integers(1, 300), st.integers(1, 5000), st.floats(1.1, 4.0), st.integers(1, 200))
def test_growing_sizes_are_multiples_that_pass_the_ratio_by_less_than_one(
    minimum: int, maximum: int, growth: float, granularity: int
) -> None:
    sizes = exponential(minimum, maximum, growth, granularity=granularity)

    for before, after in pairwise(sizes[:-1]):
        exact = before * Fraction(str(growth))
        assert after % granularity == 0
        assert exact <= after < exact + 1 + granularity


@given(st.integers(1, 300), st.integers(1, 4000), st.integers(1, 200))
def test_even_steps_are_all_the_multiples_between_the_ends(
    minimum: int, maximum: int, step: int
) -> None:
    between = {n for n in range(minimum + 1, maximum) if n % step == 0}
    ends = {min(minimum, maximum), maximum}

    assert set(linear(minimum, maximum, step)) == between | ends


def test_more_even_steps_than_a_plan_may_have_graphs_are_refused_before_they_are_made() -> None:
    assert len(linear(1, MAX_NUM_GRAPHS, 1)) == MAX_NUM_GRAPHS

    for maximum in (MAX_NUM_GRAPHS + 1, 10**18):
        with pytest.raises(ValueError, match=f"^{maximum} sizes from 1 to {maximum} in steps of 1"):
            linear(1, maximum, 1)


def test_a_decimal_ratio_is_exact() -> None:
    assert exponential(10, 13, 1.1) == (10, 11, 13)
    assert exponential(10, 13, Fraction(11, 10)) == (10, 11, 13)


@pytest.mark.parametrize("growth", [1, 1.0, 0.5, -2, float("nan"), float("inf"), True])
def test_a_ratio_that_does_not_grow_is_refused(growth: float) -> None:
    with pytest.raises(ValueError, match="growth must be a number above 1"):
        exponential(1, 8, growth)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [((0, 8, 2), "minimum"), ((1, 0, 2), "maximum"), ((1, 8, 0), "step"), ((1, True, 2), "max")],
)
def test_ends_and_steps_must_be_positive_integers(
    arguments: tuple[int, int, int], name: str
) -> None:
    with pytest.raises(ValueError, match=f"{name}.* must be a positive integer"):
        linear(*arguments)


@pytest.mark.parametrize(
    ("rule", "axis", "limit", "sizes"),
    [
        ("powers_of_two", TOKENS, 2048, (128, 256, 512, 1024, 2048)),
        ("powers_of_two", TOKENS, 100, (100,)),
        ("powers_of_two", SEQS, 6, (1, 2, 4, 6)),
        ("exponential", TOKENS, 1024, (128, 256, 384, 640, 1024)),
        ("exponential", SEQS, 32, (1, 4, 8, 12, 20, 32)),
        ("linear", TOKENS, 1000, (128, 256, 512, 768, 1000)),
        ("linear", SEQS, 20, (1, 8, 16, 20)),
    ],
)
def test_named_rules_fill_each_axis(
    rule: str, axis: Axis, limit: int, sizes: tuple[int, ...]
) -> None:
    assert SPACING[rule](axis, limit) == sizes


@given(st.sampled_from(sorted(SPACING)), st.sampled_from([TOKENS, SEQS]))
def test_named_rules_end_with_every_limit(rule: str, axis: Axis) -> None:
    for limit in range(1, 700):
        assert Ladder(SPACING[rule](axis, limit)).largest == limit
