"""Samplers over logits that are given: which one a step takes, and what its rows get."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from noria.kernels.cpu import CpuKernels
from noria.kernels.kernel_set import KernelSet
from noria.kernels.reference import ReferenceKernels
from noria.runtime.sampled_token import MIN_LOGPROB, SampledToken
from noria.runtime.sampler import SamplerSet, compile_scorer, needed_features
from noria.runtime.sampler_features import sampler_variants
from noria.runtime.sampler_stages import SamplerShape
from noria.runtime.sampling_params import SamplingParams
from noria.runtime.sampling_state import SamplerRow, SamplingState

VOCAB = 61
ALL = ("greedy", "top_k_top_p", "penalties", "logit_bias", "structured_output", "logprobs")
REFERENCE, CPU = ReferenceKernels(), CpuKernels()
TARGETS = pytest.mark.parametrize("kernels", [REFERENCE, CPU], ids=["reference", "cpu"])
GREEDY = SamplingParams(temperature=0)


def random_logits(rows: int, seed: int = 0, vocab: int = VOCAB) -> Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * 3


@cache
def compiled(kernels: KernelSet, rows: int, vocab: int, num: int) -> tuple[Tensor, SamplerSet]:
    logits = torch.zeros(rows, vocab)
    shape = SamplerShape(rows, vocab, max_model_len=64, max_logprobs=num)
    return logits, SamplerSet(kernels, logits, shape, ALL)


def samplers(logits_RV: Tensor, kernels: KernelSet = CPU, num: int = 20) -> SamplerSet:
    """Return the samplers of this size, which other tests have used, over these logits."""
    buffer, one = compiled(kernels, *logits_RV.shape, num)
    buffer.copy_(logits_RV)
    return one


def row(params: SamplingParams, *, position: int = 9, seed: int = 7, **state: Any) -> SamplerRow:
    """Return what a request asks for after a prompt and an output."""
    output = state.pop("output", ())
    one = SamplingState(
        params,
        seed=seed,
        prompt_token_ids=state.pop("prompt", (3, 4)),
        end_token_ids=state.pop("end", ()),
        vocab_size=VOCAB,
        constraint=state.pop("constraint", None),
    )
    for token_id in output:
        one.append(token_id)
    return one.row(position)


class Allowed:
    """A constraint that always allows the same tokens."""

    is_complete = False

    def __init__(self, *token_ids: int) -> None:
        bits = np.zeros(64, dtype=np.uint8)
        bits[list(token_ids)] = 1
        self._mask = np.packbits(bits, bitorder="little").view(np.int32)

    def bitmask(self) -> np.ndarray[Any, np.dtype[np.int32]]:
        return self._mask

    def accept(self, token_id: int) -> None:
        pass


EXTRAS: list[dict[str, Any]] = [
    {"params": {}},
    {"params": {"temperature": 0}},
    {"params": {"repetition_penalty": 1.5}, "output": (5, 9, 9)},
    {"params": {"presence_penalty": 1.0, "frequency_penalty": 0.5}, "output": (5, 9, 9)},
    {"params": {"logit_bias": {5: 100}}},
    {"params": {"bad_word_ids": [[9, 8], [7]], "temperature": 0}, "output": (5, 9)},
    {"params": {"min_tokens": 3}, "end": (1, 2)},
    {"params": {"top_k": 4, "min_p": 0.05}, "constraint": Allowed(3, 17, 40)},
    {"params": {"logprobs": 3, "top_p": 0.7}},
]


def extra(index: int, seed: int = 7) -> SamplerRow:
    given = dict(EXTRAS[index])
    return row(SamplingParams(**given.pop("params")), seed=seed, **given)


@pytest.mark.parametrize(
    ("features", "variants"),
    [
        (["greedy"], [{"greedy"}]),
        (["top_k_top_p", "greedy"], [{"greedy"}, {"greedy", "top_k_top_p"}]),
        (["greedy", "logprobs"], [{"greedy"}, {"greedy", "logprobs"}]),
        (["greedy", "prompt_logprobs"], [{"greedy"}]),
        (list(ALL), [{"greedy"}, {"greedy", "top_k_top_p"}, set(ALL)]),
    ],
    ids=["greedy", "draws", "greedy_logprobs", "prompt_logprobs", "all"],
)
def test_one_sampler_takes_one_draws_and_one_does_all(features, variants):
    assert [set(one) for one in sampler_variants(features)] == variants


def test_a_step_takes_the_least_sampler_that_covers_its_rows():
    one = samplers(random_logits(4))

    def taken(*indices: int) -> int:
        needed = {name for i in indices for name in needed_features(extra(i))}
        return one.graphs.index(one.covering(needed))

    assert taken(1) == 0
    assert taken(1, 0) == 1
    assert [taken(1, i) for i in range(2, len(EXTRAS))] == [2] * (len(EXTRAS) - 2)


def test_a_request_that_needs_nothing_more_is_served_by_less():
    """After ``min_tokens`` tokens no end token is banned any more."""
    params = SamplingParams(temperature=0, min_tokens=2)

    assert set(needed_features(row(params, end=(1,), output=(5,)))) == {"greedy", "logit_bias"}
    assert set(needed_features(row(params, end=(1,), output=(5, 6)))) == {"greedy"}


@TARGETS
@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.dictionaries(st.integers(0, 3), st.integers(0, len(EXTRAS) - 1), min_size=1),
        min_size=1,
        max_size=6,
    )
)
def test_i11_rows_come_move_and_go_and_nothing_of_an_earlier_step_remains(kernels, steps):
    """Every step on used samplers is the step on new ones, down to every padded input."""
    logits = random_logits(4, seed=3)
    used = samplers(logits, kernels)
    for step in steps:
        rows = {place: extra(index, seed=index) for place, index in step.items()}
        new = compiled.__wrapped__(ReferenceKernels(), 4, VOCAB, 20)
        new[0].copy_(logits)

        sampled, expected = used.sample(rows), new[1].sample(rows)

        assert [one.token_id for one in sampled] == [one.token_id for one in expected]
        needed = {name for one in rows.values() for name in needed_features(one)}
        for name, tensor in new[1].covering(needed).inputs.items():
            assert torch.equal(tensor, used.covering(needed).inputs[name]), name


@TARGETS
@pytest.mark.parametrize("index", range(len(EXTRAS)))
def test_i04_i11_a_row_gets_the_same_in_any_place_beside_any_neighbours(kernels, index: int):
    logits_V = random_logits(1, seed=index)[0]
    (alone,) = samplers(logits_V[None], kernels).sample({0: extra(index)})
    rng = random.Random(index)

    for num_rows in (1, 2, 8):
        for _ in range(4):
            place = rng.randrange(num_rows)
            logits = random_logits(num_rows, seed=rng.randrange(99))
            logits[place] = logits_V
            rows = {at: extra(rng.randrange(len(EXTRAS)), seed=at) for at in range(num_rows)}
            rows[place] = extra(index)
            sampled = dict(zip(rows, samplers(logits, kernels).sample(rows), strict=True))

            assert sampled[place] == alone


@TARGETS
def test_i11_a_forced_row_is_forced_to_the_end(kernels: KernelSet):
    """Plain, repetition penalty and forced rows; one joins later, one leaves, rows move."""
    names = ["plain", "repetition", "forced"]
    settings = {
        "plain": SamplingParams(),
        "repetition": SamplingParams(repetition_penalty=1.3),
        "forced": SamplingParams(logit_bias={5: 100}),
        "joined": SamplingParams(temperature=0),
    }
    states = {
        name: SamplingState(
            params, seed=1, prompt_token_ids=(3,), end_token_ids=(), vocab_size=VOCAB
        )
        for name, params in settings.items()
    }
    forced = []
    for step in range(12):
        if step == 4:
            names = ["joined", *names]
        if step == 8:
            names.remove("plain")
        one = samplers(random_logits(4, seed=step), kernels)
        sampled = one.sample({at: states[name].row(1 + step) for at, name in enumerate(names)})
        for name, token in zip(names, sampled, strict=True):
            states[name].append(token.token_id)
        forced.append(sampled[names.index("forced")].token_id)

    assert forced == [5] * 12


@TARGETS
def test_i08_rows_without_a_usable_logit_get_no_token_and_harm_no_others(kernels: KernelSet):
    logits = random_logits(5)
    rows = {at: row(SamplingParams(logprobs=2), seed=at) for at in range(5)}
    clean = samplers(logits, kernels).sample(rows)
    logits[0], logits[1, 7], logits[2, 9], logits[3] = math.nan, math.inf, math.nan, -math.inf

    sampled = samplers(logits, kernels).sample(rows)

    assert [sampled[at] for at in (0, 2, 3)] == [SampledToken(-1, None)] * 3
    assert sampled[1].token_id == 7
    assert sampled[4] == clean[4]


@TARGETS
def test_i08_a_row_whose_every_token_is_banned_gets_none(kernels: KernelSet):
    banned = row(SamplingParams(bad_word_ids=[[3]]), constraint=Allowed(3))

    assert samplers(random_logits(1), kernels).sample({0: banned}) == [SampledToken(-1)]


@TARGETS
@pytest.mark.parametrize("vocab", [61, 64])
def test_h08_ids_are_those_of_the_vocabulary_though_all_its_logits_are_negative(kernels, vocab):
    """A padded head would win with its zeros; rows beside hold large logits."""
    params = [replace(GREEDY), SamplingParams(temperature=50), SamplingParams(temperature=50)]
    logits = torch.full((4, vocab), 1e4)
    logits[1::2] = -random_logits(2, vocab=vocab).abs() - 1

    for seed in range(40):
        for one in params:
            sampled = samplers(logits, kernels).sample({1: row(one, seed=seed)})
            assert 0 <= sampled[0].token_id < vocab


@TARGETS
def test_i01_zero_and_tiny_temperatures_share_a_step_with_others_and_a_banned_token(kernels):
    """The likeliest token is banned; 0 and tiny temperatures always take the next one."""
    logits = random_logits(1, seed=8).repeat(5, 1)
    best, second = logits[0].topk(2).indices.tolist()
    settings: list[dict[str, float]] = [{"temperature": t} for t in (0, 1e-6, 1e-4, 2.0)]
    settings.append({"top_p": 1e-4})
    params = [SamplingParams(bad_word_ids=[[best]], **one) for one in settings]

    for seed in range(50):
        rows = {at: row(one, seed=seed) for at, one in enumerate(params)}
        ids = [one.token_id for one in samplers(logits, kernels).sample(rows)]

        assert [ids[at] for at in (0, 1, 2, 4)] == [second] * 4
        assert ids[3] != best


@TARGETS
def test_i02_greedy_small_off_and_huge_top_k_share_a_step(kernels: KernelSet):
    logits = random_logits(1, seed=4).repeat(4, 1)
    one = samplers(logits, kernels)
    params = [GREEDY, *(SamplingParams(temperature=9, top_k=k) for k in (5, None, 10**7))]

    draws = [
        one.sample({at: row(p, position=position) for at, p in enumerate(params)})
        for position in range(400)
    ]

    greedy, top_5, off, huge = ([token.token_id for token in c] for c in zip(*draws, strict=True))
    assert set(greedy) == {int(logits[0].argmax())}
    assert set(top_5) == set(logits[0].topk(5).indices.tolist())
    assert off == huge
    assert len(set(off)) > VOCAB * 3 // 4


def test_i03_top_k_of_0_minus_1_and_none_is_off_and_1_is_greedy():
    one = samplers(torch.zeros(4, VOCAB).index_fill_(1, torch.tensor([17]), 0.1))
    params = [SamplingParams(top_k=k) for k in (0, -1, None, 1)]

    draws = [
        [
            token.token_id
            for token in one.sample({at: row(p, seed=s) for at, p in enumerate(params)})
        ]
        for s in range(500)
    ]

    zero, minus, none, first = (set(column) for column in zip(*draws, strict=True))
    assert zero == minus == none
    assert len(zero) > 50
    assert first == {17}


@TARGETS
def test_i06_a_penalty_is_the_same_beside_a_neighbour_with_a_longer_history(kernels: KernelSet):
    """The pad id of a naive history, 0, is the likeliest token of the request."""
    logits = random_logits(2, seed=6)
    logits[0, 0] = 9.0
    penalised = row(SamplingParams(frequency_penalty=1.0, logprobs=5), output=(5, 9, 9))
    longer = row(SamplingParams(frequency_penalty=1.0), output=tuple(range(50)))

    alone = samplers(logits, kernels).sample({0: penalised})
    beside = samplers(logits, kernels).sample({0: penalised, 1: longer})

    assert beside[0] == alone[0]


@TARGETS
@pytest.mark.parametrize("index", range(len(EXTRAS)))
def test_rows_get_what_a_loop_over_the_vocabulary_gives(kernels: KernelSet, index: int):
    logits = random_logits(1, seed=50 + index)
    for seed in range(20):
        asked = extra(index, seed=seed)
        (sampled,) = samplers(logits, kernels).sample({0: asked})

        assert sampled.token_id == expected_token(logits[0], asked)


def expected_token(logits_V: Tensor, asked: SamplerRow) -> int:
    """Apply bitmask, bias and penalties one token at a time, then draw by the reference."""
    values = logits_V.tolist()
    history = dict(zip(*(a.tolist() for a in asked.history), strict=True)) if asked.history else {}
    bias = dict(zip(*(a.tolist() for a in asked.bias), strict=True)) if asked.bias else {}
    params = asked.params
    for token in range(len(values)):
        if asked.bitmask is not None and not asked.bitmask[token // 32] >> token % 32 & 1:
            values[token] = -math.inf
        values[token] += bias.get(token, 0.0)
        if token in history:
            is_above = values[token] > 0
            rate = params.repetition_penalty
            values[token] = values[token] / rate if is_above else values[token] * rate
            values[token] -= params.frequency_penalty * history[token]
            values[token] -= params.presence_penalty * (history[token] > 0)
    plain = SamplerRow(params, asked.seed, asked.position)
    (sampled,) = samplers(torch.tensor([values]), REFERENCE).sample({0: plain})
    return sampled.token_id


@TARGETS
@pytest.mark.parametrize("count", [0, 5, 61, 100])
def test_i09_logprobs_are_finite_numbers_of_the_raw_logits(kernels: KernelSet, count: int):
    """With top_k 1 all other tokens are filtered, yet theirs are the model's own."""
    logits = random_logits(2)
    logits[:, 7] = -math.inf
    params = SamplingParams(top_k=1, logprobs=count, logit_bias={7: 100, 9: -100})
    expected = logits[0].double().log_softmax(0)

    (sampled, _) = samplers(logits, kernels, num=100).sample({0: row(params), 1: row(GREEDY)})

    found = sampled.logprobs
    assert found is not None
    assert len(found.top) == min(count, VOCAB)
    ranked = [token_id for token_id, _ in found.top]
    assert ranked == expected.argsort(descending=True, stable=True).tolist()[:count]
    for token_id, logprob in (*found.top, (sampled.token_id, found.logprob)):
        wanted = MIN_LOGPROB if token_id == 7 else float(expected[token_id])
        assert logprob == pytest.approx(wanted, abs=1e-5)
    json.dumps(found.top, allow_nan=False)


def test_i09_a_token_that_only_a_bias_made_possible_has_the_least_logprob():
    logits = torch.full((1, VOCAB), -1e30)
    logits[0, 3] = 0
    banned = row(SamplingParams(logprobs=1, bad_word_ids=[[3]], temperature=0))

    (sampled,) = samplers(logits).sample({0: banned})

    assert sampled.token_id == 0
    assert sampled.logprobs is not None
    assert sampled.logprobs.logprob == MIN_LOGPROB
    assert sampled.logprobs.rank == 2
    assert sampled.logprobs.top == ((3, 0.0),)


def test_only_rows_that_ask_get_logprobs():
    rows = {0: row(GREEDY), 2: row(replace(GREEDY, logprobs=0))}

    plain, asking = samplers(random_logits(3)).sample(rows)

    assert plain.logprobs is None
    assert asking.logprobs is not None
    assert (asking.logprobs.rank, asking.logprobs.top) == (1, ())


@TARGETS
def test_a_step_that_draws_nothing_runs_nothing(kernels: KernelSet):
    assert samplers(random_logits(2), kernels).sample({}) == []


@TARGETS
def test_a_scorer_gives_the_logprobs_of_given_tokens(kernels: KernelSet):
    logits = random_logits(6)
    scorer = compile_scorer(kernels, logits, 5)
    expected = logits.double().log_softmax(1)
    first = scorer.score({0: 3, 1: 4, 5: 60}, {0: 5, 1: 0, 5: 2})
    logits.copy_(logits.flip(0))

    second = scorer.score({0: 60}, {0: 2})

    assert [len(one.top) for one in first] == [5, 0, 2]
    assert second == first[2:]
    for place, token_id, found in zip((0, 1, 5), (3, 4, 60), first, strict=True):
        assert found.logprob == pytest.approx(float(expected[place, token_id]), abs=1e-5)
        assert found.rank == 1 + int(
            (logits.flip(0)[place] > logits.flip(0)[place, token_id]).sum()
        )
