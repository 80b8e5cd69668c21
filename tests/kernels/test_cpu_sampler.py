"""The C++ sampler against brute force and the reference, and at its edges."""

import math

import pytest
import torch
from brute_sampler import kept_tokens, midpoints
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from noria.kernels.cpu import CpuKernels
from noria.kernels.reference import ReferenceKernels

KERNELS = CpuKernels()
LARGEST_UNIFORM = 1 - 2**-24


def arguments(
    rows: int, temperature=1.0, top_k=0, top_p=1.0, uniform=0.5, min_p=0.0
) -> list[Tensor]:
    def per_row(value: float | list[float], dtype: torch.dtype) -> Tensor:
        return torch.tensor(value if isinstance(value, list) else [value] * rows, dtype=dtype)

    return [
        per_row(temperature, torch.float32),
        per_row(top_k, torch.int32),
        per_row(top_p, torch.float32),
        per_row(min_p, torch.float32),
        per_row(uniform, torch.float32),
    ]


def sample(logits_RV: Tensor, **params: float | list[float]) -> list[int]:
    token_ids = KERNELS.sample(logits_RV, *arguments(logits_RV.shape[0], **params))
    assert token_ids.dtype == torch.int32
    result: list[int] = token_ids.tolist()
    return result


def random_logits(rows: int, seed: int = 0, vocab: int = 61) -> Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * 3


@settings(max_examples=150, deadline=None)
@given(
    logits=st.lists(st.integers(-12, 12).map(lambda n: n / 2), min_size=1, max_size=12),
    temperature=st.sampled_from([0.25, 0.5, 1.0, 2.0]),
    top_k=st.sampled_from([0, 1, 2, 3, 5, 100]),
    top_p=st.sampled_from([0.0, 0.1, 0.3, 0.5, 0.75, 0.9, 0.99, 1.0]),
    min_p=st.sampled_from([0.0, 0.01, 0.1, 0.3, 0.7, 1.0]),
)
def test_kept_set_is_exactly_the_brute_force_one(logits, temperature, top_k, top_p, min_p):
    """Ties included: the small grid of logits makes them common."""
    top_p, min_p = float(torch.tensor(top_p)), float(torch.tensor(min_p))
    filters = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    kept = kept_tokens(logits, **filters)
    assume(min(kept.values()) > 1e-6)

    inside = list(midpoints(kept).values())
    tokens = sample(torch.tensor([logits] * len(kept)), **filters, uniform=inside)
    ends = sample(torch.tensor([logits] * 2), **filters, uniform=[0.0, LARGEST_UNIFORM])

    assert tokens == list(kept)
    assert ends == [min(kept), max(kept)]


@pytest.mark.parametrize("top_k", [0, 1, 7, 50, 1000, 4000, 10**7])
@pytest.mark.parametrize("top_p", [0.0, 0.3, 0.9, 0.999, 1.0])
@pytest.mark.parametrize("min_p", [0.0, 0.02, 1.0])
@pytest.mark.parametrize("vocab", [5, 4099])
def test_draws_are_those_of_the_reference(top_k: int, top_p: float, min_p: float, vocab: int):
    logits = random_logits(40, seed=top_k, vocab=vocab)
    logits[1] = (logits[1] * 2).round() / 2
    logits[2] = 0
    logits[3, vocab // 2 :] = -math.inf
    uniform = torch.rand(40, generator=torch.Generator().manual_seed(3)).tolist()
    temperature = [[0.0, 0.3, 1.0, 3.0][row % 4] for row in range(40)]
    params = arguments(40, temperature, top_k, top_p, uniform, min_p)

    assert torch.equal(KERNELS.sample(logits, *params), ReferenceKernels().sample(logits, *params))


@pytest.mark.parametrize("top_k", [1, 2, 50, 150, 195, 196, 2000])
@pytest.mark.parametrize("top_p", [0.6, 1.0])
def test_draws_of_a_large_vocabulary_are_those_of_the_reference(top_k: int, top_p: float):
    """50,000 tokens are 196 blocks: both ways to find the candidates, with ties and few tokens."""
    logits = random_logits(6, seed=top_k, vocab=50_000)
    logits[1] = (logits[1] * 2).round() / 2
    logits[2] = 0
    logits[3, 300:] = -math.inf
    logits[4] = logits[4].sort().values
    uniform = torch.rand(6, generator=torch.Generator().manual_seed(3)).tolist()
    params = arguments(6, [1.0, 0.3, 1.0, 3.0, 5.0, 2.0], top_k, top_p, uniform)

    assert torch.equal(KERNELS.sample(logits, *params), ReferenceKernels().sample(logits, *params))


@pytest.mark.parametrize("vocab", [1, 15, 16, 63, 64, 65, 1000, 4099])
def test_greedy_finds_the_largest_wherever_it_is(vocab: int):
    places = sorted({0, vocab // 3, vocab // 2, max(0, vocab - 17), vocab - 1})
    logits = random_logits(len(places), vocab=vocab)
    logits[torch.arange(len(places)), places] = 1000

    assert KERNELS.greedy(logits).tolist() == places
    assert sample(logits, temperature=0.0) == places


def test_equal_logits_rank_by_id():
    logits = torch.zeros(1, 4099)
    logits[0, [70, 4000]] = 5.0
    signed = torch.tensor([[-0.0, 0.0, -0.0, -1.0]])

    assert KERNELS.greedy(logits).tolist() == [70]
    assert [sample(logits, top_k=2, uniform=u)[0] for u in (0.25, 0.75)] == [70, 4000]
    assert [sample(logits, top_k=3, temperature=9, uniform=u)[0] for u in (0, 0.99)] == [0, 4000]
    assert [sample(signed, top_k=2, uniform=u)[0] for u in (0.25, 0.75)] == [0, 1]


@pytest.mark.parametrize(
    ("top_p", "kept"),
    [(0.25, [0]), (0.26, [0, 1]), (0.5, [0, 1]), (0.75, [0, 1, 2]), (1.0, [0, 1, 2, 3])],
)
def test_top_p_stops_when_the_mass_is_reached_exactly(top_p: float, kept: list[int]):
    reached = {sample(torch.zeros(1, 4), top_p=top_p, uniform=i / 64)[0] for i in range(64)}

    assert sorted(reached) == kept


def test_top_p_counts_the_mass_of_the_top_k_only():
    logits = torch.zeros(1, 10)

    reached = {sample(logits, top_k=4, top_p=0.5, uniform=i / 64)[0] for i in range(64)}

    assert reached == {0, 1}


def test_top_p_of_one_drops_nothing_however_small():
    logits = torch.tensor([[-50.0, 0.0]])

    assert sample(logits, top_p=1.0, uniform=0.0) == [0]
    assert sample(logits, top_p=0.999, uniform=0.0) == [1]


@pytest.mark.parametrize("temperature", [0.0, 1e-45, 1e-6, 1e-4])
def test_zero_and_tiny_temperatures_are_greedy_i01(temperature: float):
    logits = random_logits(8, seed=1)
    logits[torch.arange(8), torch.arange(8) * 7] += 20

    for uniform in (0.0, 0.5, LARGEST_UNIFORM):
        tokens = sample(logits, temperature=temperature, uniform=uniform)
        assert tokens == [7 * row for row in range(8)]


@pytest.mark.parametrize("value", [math.nan, -math.inf])
@pytest.mark.parametrize("top_k", [0, 3])
def test_i08_a_row_without_a_usable_logit_gives_no_token(value: float, top_k: int):
    logits = torch.full((2, 61), value)

    for top_p in (0.5, 1.0):
        for uniform in (0.0, LARGEST_UNIFORM):
            tokens = sample(
                logits, temperature=[0.0, 1.0], top_k=top_k, top_p=top_p, uniform=uniform
            )
            assert tokens == [-1, -1]
    assert KERNELS.greedy(logits).tolist() == [-1, -1]


@pytest.mark.parametrize("vocab", [1, 16, 61, 1000])
def test_i08_one_nan_anywhere_gives_no_token_and_harms_no_other_row(vocab: int):
    places = sorted({0, vocab // 3, max(0, vocab - 17), vocab - 1})
    logits = random_logits(2 * len(places), vocab=vocab)
    clean = sample(logits, top_p=0.9, min_p=0.01)
    logits[2 * torch.arange(len(places)), places] = math.nan

    tokens = sample(logits, top_p=0.9, min_p=0.01)

    assert tokens == [token if row % 2 else -1 for row, token in enumerate(clean)]
    assert [token < 0 for token in KERNELS.greedy(logits)] == [True, False] * len(places)


def test_an_infinite_logit_wins_and_banned_tokens_are_never_drawn_i01():
    logits = random_logits(2, seed=8)
    logits[:, 17] = math.inf
    banned = torch.zeros(1, 8)
    banned[0, [0, 3, 7]] = -math.inf

    reached = {sample(banned, top_k=k, uniform=i / 64)[0] for k in (0, 7) for i in range(64)}

    assert sample(logits, temperature=[0.0, 5.0], uniform=0.999) == [17, 17]
    assert reached | set(sample(banned, uniform=LARGEST_UNIFORM)) == {1, 2, 4, 5, 6}


def test_a_row_draws_the_same_alone_and_beside_any_neighbours():
    logits = random_logits(9, seed=6)
    logits[4] = math.nan
    uniform = torch.rand(9, generator=torch.Generator().manual_seed(7)).tolist()
    params = arguments(9, [0.0, 0.5, 2.0] * 3, [0, 3, 7] * 3, [1.0, 0.9, 0.5] * 3, uniform, 0.02)

    together = KERNELS.sample(logits, *params).tolist()

    for row in range(9):
        one = [param[row : row + 1] for param in params]
        assert KERNELS.sample(logits[row : row + 1], *one).tolist() == [together[row]]


def test_uniforms_may_be_doubles():
    """In fp32 this uniform would round up to 0.5 and draw the second token."""
    params = arguments(1, uniform=0.0)
    params[4] = torch.tensor([0.5 - 1e-12], dtype=torch.float64)

    assert KERNELS.sample(torch.zeros(1, 2), *params).tolist() == [0]


@pytest.mark.parametrize(
    "index", range(1, 6), ids=["temperature", "top_k", "top_p", "min_p", "uniform"]
)
def test_parameters_of_another_row_count_or_dtype_are_refused(index: int):
    params = [random_logits(3), *arguments(3)]
    wrong = [*params[:index], params[index].long(), *params[index + 1 :]]
    params[index] = params[index][:2]

    with pytest.raises(ValueError, match=r"has shape \(2,\), expected \(3,\)"):
        KERNELS.sample(*params)
    with pytest.raises(ValueError, match=r"has dtype torch.int64"):
        KERNELS.sample(*wrong)


@pytest.mark.parametrize("outputs", [61, 64])
def test_h08_a_head_that_is_padded_inside_never_gives_a_token_beyond_it(outputs: int):
    """All logits are negative: the zeros of a padded panel would win."""
    weight = -torch.rand(outputs, 32, generator=torch.Generator().manual_seed(1)) - 0.1
    head = KERNELS.make_linear(weight, None, torch.float32)
    logits = head(torch.rand(40, 32, generator=torch.Generator().manual_seed(2)))
    uniform = [row / 40 for row in range(39)] + [LARGEST_UNIFORM]

    assert logits.shape == (40, outputs)
    assert (logits < 0).all()
    drawn = sample(logits, temperature=100.0, uniform=uniform)
    assert all(0 <= token < outputs for token in (*drawn, *KERNELS.greedy(logits).tolist()))
