"""The reference sampler against a brute-force one, and at its edges."""

import math

import pytest
import torch
from brute_sampler import draw, kept_tokens, midpoints
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from noria.kernels.reference import ReferenceKernels

KERNELS = ReferenceKernels()
LARGEST_UNIFORM = 1 - 2**-24
VOCAB = 61


def sample(
    logits_RV: Tensor,
    *,
    temperature: float | list[float] = 1.0,
    top_k: int | list[int] = 0,
    top_p: float | list[float] = 1.0,
    min_p: float | list[float] = 0.0,
    uniform: float | list[float] = 0.5,
) -> list[int]:
    def rows(value: float | list[float], dtype: torch.dtype = torch.float32) -> Tensor:
        values = value if isinstance(value, list) else [value] * logits_RV.shape[0]
        return torch.tensor(values, dtype=dtype)

    token_ids = KERNELS.sample(
        logits_RV,
        rows(temperature),
        rows(top_k, torch.int32),
        rows(top_p),
        rows(min_p),
        rows(uniform),
    )

    assert token_ids.dtype == torch.int32
    assert token_ids.shape == logits_RV.shape[:1]
    result: list[int] = token_ids.tolist()
    return result


def random_logits(rows: int, seed: int = 0, vocab: int = VOCAB) -> Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * 3


logits_strategy = st.lists(st.integers(-12, 12), min_size=1, max_size=12).map(
    lambda eighths: [value / 2 for value in eighths]
)


@settings(max_examples=150, deadline=None)
@given(
    logits=logits_strategy,
    temperature=st.sampled_from([0.25, 0.5, 1.0, 2.0]),
    top_k=st.sampled_from([0, 1, 2, 3, 5, 100]),
    top_p=st.sampled_from([0.0, 0.1, 0.3, 0.5, 0.75, 0.9, 0.99, 1.0]),
    min_p=st.sampled_from([0.0, 0.01, 0.1, 0.3, 0.7, 1.0]),
)
def test_kept_set_is_exactly_the_brute_force_one(
    logits: list[float], temperature: float, top_k: int, top_p: float, min_p: float
):
    """Ties included: the small grid of logits makes them common."""
    top_p, min_p = float(torch.tensor(top_p)), float(torch.tensor(min_p))
    filters = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    kept = kept_tokens(logits, **filters)
    assume(min(kept.values()) > 1e-6)

    inside = midpoints(kept)
    tokens = sample(torch.tensor([logits] * len(kept)), **filters, uniform=list(inside.values()))
    first_and_last = sample(torch.tensor([logits] * 2), **filters, uniform=[0.0, LARGEST_UNIFORM])

    assert tokens == list(kept)
    assert first_and_last == [min(kept), max(kept)]


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), uniform=st.floats(0, LARGEST_UNIFORM, width=32))
def test_draw_is_the_brute_force_one(seed: int, uniform: float):
    logits = random_logits(1, seed)
    kept = kept_tokens(logits[0].tolist(), temperature=0.75, top_k=20, top_p=0.875)
    ends = [sum(list(kept.values())[: i + 1]) for i in range(len(kept))]
    assume(all(abs(end - uniform) > 1e-9 for end in ends))

    token = sample(logits, temperature=0.75, top_k=20, top_p=0.875, uniform=uniform)

    assert token == [draw(kept, uniform)]


@pytest.mark.parametrize(
    ("top_p", "kept"),
    [(0.25, [0]), (0.26, [0, 1]), (0.5, [0, 1]), (0.75, [0, 1, 2]), (1.0, [0, 1, 2, 3])],
)
def test_top_p_stops_when_the_mass_is_reached_exactly(top_p: float, kept: list[int]):
    logits = torch.zeros(1, 4)

    reached = {sample(logits, top_p=top_p, uniform=i / 64)[0] for i in range(64)}

    assert sorted(reached) == kept


def test_top_p_of_one_drops_nothing_however_small():
    """The mass of token 0 is lost when fp64 adds it to 1, so the others reach the whole mass."""
    logits = torch.tensor([[-50.0, 0.0]])

    assert sample(logits, top_p=1.0, uniform=0.0) == [0]
    assert sample(logits, top_p=0.999, uniform=0.0) == [1]


def test_top_p_counts_the_mass_of_the_top_k_only():
    """Of ten equal tokens top_k keeps four; half of their mass is two tokens, not five."""
    logits = torch.zeros(1, 10)

    reached = {sample(logits, top_k=4, top_p=0.5, uniform=i / 64)[0] for i in range(64)}

    assert reached == {0, 1}


def test_equal_logits_rank_by_id():
    logits = torch.tensor([[1.0, 5.0, 5.0, 5.0, 0.0]])

    assert KERNELS.greedy(logits).tolist() == [1]
    assert sample(logits, top_k=2, uniform=0.25) == [1]
    assert sample(logits, top_k=2, uniform=0.75) == [2]


def test_greedy_takes_the_lowest_id_of_the_largest_in_every_dtype():
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        logits = random_logits(5, vocab=4099).to(dtype)
        logits[:, [70, 4000]] = 1000

        assert KERNELS.greedy(logits).tolist() == [70] * 5
        assert KERNELS.greedy(logits).dtype == torch.int32


@pytest.mark.parametrize("temperature", [0.0, 1e-45, 1e-6, 1e-4])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_zero_and_tiny_temperatures_are_greedy_i01(temperature: float, dtype: torch.dtype):
    logits = random_logits(8, seed=1).to(dtype)
    logits[torch.arange(8), torch.arange(8) * 7] += 20

    for uniform in (0.0, 0.5, LARGEST_UNIFORM):
        tokens = sample(logits, temperature=temperature, uniform=uniform)
        assert tokens == [7 * row for row in range(8)]


def test_mixed_temperatures_in_one_batch_i01():
    logits = random_logits(1, seed=2).repeat(4, 1)
    largest = int(logits[0].argmax())

    tokens = sample(logits, temperature=[0.0, 1e-6, 1e-4, 2.0], uniform=LARGEST_UNIFORM)

    assert tokens[:3] == [largest] * 3
    assert tokens[3] == VOCAB - 1


@pytest.mark.parametrize("top_p", [0.0, 1e-4])
def test_one_token_survives_the_smallest_top_p_i01(top_p: float):
    logits = random_logits(6, seed=3)
    logits[torch.arange(6), torch.arange(6)] += 30

    for uniform in (0.0, LARGEST_UNIFORM):
        assert sample(logits, top_p=top_p, uniform=uniform) == list(range(6))


def test_banned_tokens_are_never_drawn_i01():
    logits = torch.zeros(1, 8)
    logits[0, [0, 3, 7]] = -math.inf

    reached = {
        sample(logits, top_k=top_k, uniform=i / 64)[0] for top_k in (0, 7) for i in range(64)
    }
    reached |= set(sample(logits, uniform=LARGEST_UNIFORM))

    assert reached == {1, 2, 4, 5, 6}


def test_top_k_off_small_and_huge_share_a_batch_i02():
    logits = random_logits(1, seed=4).repeat(4, 1)
    five = kept_tokens(logits[0].tolist(), temperature=1, top_k=5, top_p=1)

    draws = [
        sample(logits, temperature=[0.0, 9, 9, 9], top_k=[0, 5, 0, 10**7], uniform=i / 512)
        for i in range(512)
    ]

    greedy, top_5, off, huge = (set(column) for column in zip(*draws, strict=True))
    assert greedy == {int(logits[0].argmax())}
    assert top_5 == set(five)
    assert off == huge
    assert len(off) > VOCAB * 3 // 4


def test_top_k_zero_keeps_all_and_one_keeps_the_largest_i03():
    flat = torch.zeros(1, VOCAB)
    uneven = random_logits(1, seed=5)

    assert {sample(flat, top_k=0, uniform=i / 500)[0] for i in range(500)} == set(range(VOCAB))
    assert {sample(uneven, top_k=1, uniform=i / 50)[0] for i in range(50)} == {int(uneven.argmax())}


CHI_SQUARE_7_AT_1_IN_1000 = 24.32


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"), [(1.0, 0, 1.0), (0.5, 0, 1.0), (1.0, 5, 1.0), (1.0, 0, 0.9)]
)
def test_draws_follow_the_distribution(temperature: float, top_k: int, top_p: float):
    num_draws = 20_000
    logits = torch.tensor([1.0, -1.0, 0.5, 2.0, 0.0, 1.5, -0.5, 1.0])
    kept = kept_tokens(logits.tolist(), temperature=temperature, top_k=top_k, top_p=top_p)
    uniform = torch.rand(num_draws, generator=torch.Generator().manual_seed(11)).tolist()

    tokens = sample(
        logits.repeat(num_draws, 1),
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        uniform=uniform,
    )

    counts = {token: tokens.count(token) for token in set(tokens)}
    assert set(counts) == set(kept)
    statistic = sum(
        (counts[token] - num_draws * p) ** 2 / (num_draws * p) for token, p in kept.items()
    )
    assert statistic < CHI_SQUARE_7_AT_1_IN_1000


def test_a_row_draws_the_same_alone_and_beside_any_neighbours():
    logits = random_logits(9, seed=6)
    uniform = torch.rand(9, generator=torch.Generator().manual_seed(7)).tolist()
    temperature, top_k, top_p = [0.0, 0.5, 2.0] * 3, [0, 3, 7] * 3, [1.0, 0.9, 0.5] * 3
    logits[4] = math.nan

    together = sample(logits, temperature=temperature, top_k=top_k, top_p=top_p, uniform=uniform)

    for row in range(9):
        alone = sample(
            logits[row : row + 1],
            temperature=temperature[row],
            top_k=top_k[row],
            top_p=top_p[row],
            uniform=uniform[row],
        )
        assert alone == [together[row]]


@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_i08_a_row_without_a_usable_logit_gives_no_token(value: float):
    logits = torch.full((2, VOCAB), value)

    for uniform in (0.0, LARGEST_UNIFORM):
        assert sample(logits, temperature=[0.0, 1.0], uniform=uniform) == [-1, -1]
    assert KERNELS.greedy(logits).tolist() == [-1, -1]


def test_i08_one_nan_gives_no_token_and_harms_no_other_row():
    logits = random_logits(3, seed=9)
    clean = sample(logits, top_p=0.9)
    logits[1, 40] = math.nan

    assert sample(logits, top_p=0.9) == [clean[0], -1, clean[2]]
    assert KERNELS.greedy(logits).tolist()[1] == -1


def test_an_infinite_logit_wins():
    logits = random_logits(2, seed=8)
    logits[:, 17] = math.inf

    assert sample(logits, temperature=[0.0, 5.0], uniform=0.999) == [17, 17]


def test_logits_stay_as_they_were():
    logits = random_logits(3)
    before = logits.clone()

    sample(logits, top_k=5, top_p=0.5)

    assert torch.equal(logits, before)


@pytest.mark.parametrize(
    "index", range(1, 6), ids=["temperature", "top_k", "top_p", "min_p", "uniform"]
)
def test_parameters_of_another_row_count_are_refused(index: int):
    arguments = [random_logits(3), *(torch.ones(3) for _ in range(5))]
    arguments[2] = arguments[2].int()
    arguments[index] = arguments[index][:2]

    with pytest.raises(ValueError, match=r"has shape \(2,\), expected \(3,\)"):
        KERNELS.sample(*arguments)
