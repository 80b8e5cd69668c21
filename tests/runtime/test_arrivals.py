"""Graphs that arrive while an engine serves: what changes is where steps run, and no token."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
from arriving_graphs import SHAPE, Arriving, Workshop
from hypothesis import given, settings
from hypothesis import strategies as st
from local_sets import warnings_in

from noria.bucketing import Bucket, DecodeBucket, PrefillBucket
from noria.runtime.errors import SetError
from noria.runtime.sampling_params import SamplingParams

GREEDY = SamplingParams(temperature=0, max_tokens=6)
SMALL = DecodeBucket(1, 16)
MIDDLE = DecodeBucket(2, 32)
PROMPTS = PrefillBucket(8, 32)
NUM_LATER = 6
"""Of the plan: two prefill graphs, six decode graphs and one for prompts' logprobs."""


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    """Compiles once."""
    return Workshop(tmp_path_factory.mktemp("sets") / "set")


ASKS = st.lists(
    st.tuples(
        st.lists(st.integers(0, 60), min_size=1, max_size=20),
        st.builds(
            SamplingParams,
            temperature=st.sampled_from([0, 0.9]),
            max_tokens=st.integers(1, 9),
            seed=st.integers(0, 3),
            logprobs=st.sampled_from([None, 2]),
            prompt_logprobs=st.sampled_from([None, None, 1]),
            n=st.sampled_from([1, 1, 2]),
        ),
        st.integers(0, 12),
    ),
    min_size=1,
    max_size=5,
)


def answers(arriving: Arriving) -> list[tuple[Any, ...]]:
    """Return all that requests got, to the bit."""
    return [
        (one.output_token_ids, one.output_logprobs, one.prompt_logprobs, one.finish_reason)
        for one in arriving.requests
    ]


def serve(
    arriving: Arriving, asks: list[Any], arrive: Callable[[int], None] = lambda step: None
) -> None:
    """Submit each prompt before the step that it names, and run to the end."""
    left = sorted(asks, key=lambda ask: ask[2])
    step = 0
    while left or arriving.engine.has_unfinished:
        while left and left[0][2] <= step:
            prompt, params, _ = left.pop(0)
            arriving.submit(prompt, params)
        arrive(step)
        arriving.step()
        step += 1


@settings(deadline=None, max_examples=30)
@given(
    asks=ASKS,
    places=st.lists(st.none() | st.integers(0, 20), min_size=NUM_LATER, max_size=NUM_LATER),
    order=st.permutations(range(NUM_LATER)),
)
def test_what_requests_get_does_not_depend_on_when_graphs_arrive(
    workshop: Workshop, asks, places, order
) -> None:
    """The pool is small: requests are preempted, and often no block is free for the probe."""
    whole, arriving = workshop.engine(workshop.tiny.plan.buckets), workshop.engine()
    plan = workshop.tiny.plan
    later = [bucket for bucket in plan.buckets if bucket not in plan.limits]
    due = {later[index]: place for index, place in zip(order, places, strict=True)}

    def arrive(step: int) -> None:
        arriving.announce(*(one for one, place in due.items() if place == step))

    serve(whole, asks)
    serve(arriving, asks, arrive)

    assert answers(arriving) == answers(whole)
    never = {bucket for bucket, place in due.items() if place is None}
    assert arriving.used.isdisjoint(never)
    assert arriving.warm_up.report.is_invariant
    assert set(arriving.kv_cache.num_free_blocks) == {SHAPE.num_blocks - 1}


def test_steps_run_in_a_graph_from_the_step_after_its_arrival_on(workshop: Workshop) -> None:
    arriving = workshop.engine()
    limit = workshop.tiny.plan.decode[-1]

    def num_steps(bucket: Bucket) -> int:
        step = arriving.runner.padding.by_bucket.get(bucket)
        return 0 if step is None else step.num_steps

    arriving.submit([1, 2, 3], SamplingParams(temperature=0, max_tokens=9))
    for _ in range(4):
        arriving.step()
    assert (num_steps(limit), num_steps(SMALL)) == (3, 0)
    arriving.announce(SMALL)
    for _ in range(3):
        arriving.step()

    assert (num_steps(limit), num_steps(SMALL)) == (3, 3)
    assert arriving.arrivals.num_pending == NUM_LATER - 1
    assert arriving.warm_up.report.num_graphs == 4


def test_one_graph_is_taken_between_two_steps(workshop: Workshop) -> None:
    """So that no request waits long for its next token."""
    arriving = workshop.engine()
    arriving.announce(*workshop.tiny.plan.buckets)
    arriving.submit([1, 2, 3], GREEDY)

    pending = []
    for _ in range(NUM_LATER + 1):
        pending.append(arriving.arrivals.num_pending)
        arriving.step()

    assert pending == list(range(NUM_LATER, -1, -1))


def test_a_graph_without_one_of_its_samplers_has_not_arrived(workshop: Workshop) -> None:
    arriving = workshop.engine()
    names = arriving.graphs.listing(SMALL)
    assert len(names) > 1
    for missing in names:
        arriving.compiling.ready = frozenset(names) - {missing}
        arriving.step()
        assert SMALL not in arriving.graphs.models

    arriving.compiling.ready = frozenset(names)
    arriving.step()

    assert SMALL in arriving.graphs.models


def test_the_cache_is_as_it_was_after_a_graph_was_taken(workshop: Workshop) -> None:
    arriving = workshop.engine()
    arriving.announce(SMALL, PROMPTS)
    caches = (*workshop.tiny.cache.keys, *workshop.tiny.cache.values)
    for cache in caches:
        cache.zero_()

    arriving.step()
    arriving.step()

    assert {SMALL, PROMPTS} <= arriving.graphs.models.keys()
    assert all(bool((cache == 0).all()) for cache in caches)


def test_a_graph_waits_for_a_free_block(workshop: Workshop) -> None:
    """And is taken at the first step before which there is one."""
    arriving = workshop.engine()
    with arriving.kv_cache.borrowed((16,)) as all_blocks:
        assert all_blocks is not None
        arriving.announce(SMALL)
        assert not arriving.arrivals.adopt(arriving.kv_cache)
        assert arriving.arrivals.num_pending == NUM_LATER
        assert SMALL not in arriving.graphs.models

    arriving.step()

    assert arriving.arrivals.num_pending == NUM_LATER - 1
    assert SMALL in arriving.graphs.models


@pytest.mark.parametrize("culprit", [SMALL, MIDDLE, PROMPTS], ids=lambda one: one.label)
def test_a_graph_of_other_bits_is_kept_out_with_a_warning(
    workshop: Workshop, caplog: pytest.LogCaptureFixture, culprit: Bucket
) -> None:
    made: list[Arriving] = []

    def change(name: str, run: Callable[[], None]) -> Callable[[], None]:
        if name != culprit.label:
            return run

        def other() -> None:
            run()
            graph = made[0].graphs.models.get(culprit)
            assert graph is not None
            graph.logits_RV.add_(1e-3)

        return other

    made.append(workshop.engine(change=change))
    (arriving,) = made
    arriving.announce(*workshop.tiny.plan.buckets)
    for _ in range(NUM_LATER + 1):
        arriving.step()
    asks = [([1, 2, 3], GREEDY, 0), ([4] * 15, GREEDY, 12), ([5] * 15, GREEDY, 12)]
    serve(arriving, asks)

    whole = workshop.engine(workshop.tiny.plan.buckets)
    serve(whole, asks)
    assert answers(arriving) == answers(whole)
    (warning,) = warnings_in(caplog)
    assert warning.startswith(f"graph {culprit.label} is not used")
    assert culprit not in arriving.graphs.models
    assert culprit not in arriving.used
    assert culprit in whole.used
    assert arriving.arrivals.num_pending == 0
    assert arriving.warm_up.report.is_invariant
    assert arriving.warm_up.report.num_graphs == len(workshop.tiny.plan.buckets) - 1
    arriving.engine.wait_for_graphs()


def broken() -> None:
    raise RuntimeError("device lost")


@pytest.mark.parametrize(
    ("trouble", "reason"),
    [
        ("failed", "Error: no such operator"),
        ("removed", "has no graph decode_s1_c16"),
        ("breaks", "RuntimeError: device lost"),
        ("stopped", "no worker can start"),
    ],
)
def test_a_graph_that_never_comes_is_a_warning_and_larger_ones_run(
    workshop: Workshop,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    trouble: str,
    reason: str,
) -> None:
    def change(name: str, run: Callable[[], None]) -> Callable[[], None]:
        return broken if trouble == "breaks" and name == SMALL.label else run

    arriving = workshop.engine(change=change)
    others = [one for one in workshop.tiny.plan.buckets if one != SMALL]
    arriving.announce(*others)
    read = workshop.store.read

    def gone(name: str) -> bytes:
        if name == SMALL.label:
            raise SetError(f"a set has no graph {name}")
        return read(name)

    if trouble == "failed":
        arriving.compiling.failed = {SMALL.label: reason}
    elif trouble == "stopped":
        arriving.compiling.problem, arriving.compiling.over = reason, True
    else:
        arriving.announce(SMALL)
    if trouble == "removed":
        monkeypatch.setattr(workshop.store, "read", gone)

    arriving.submit([1, 2, 3], GREEDY)
    tokens = arriving.finish()
    with pytest.raises(SetError, match=rf"graph decode_s1_c16 is not there: .*{reason}"):
        arriving.engine.wait_for_graphs()

    whole = workshop.engine(others)
    whole.submit([1, 2, 3], GREEDY)
    assert tokens == whole.finish()
    (warning,) = warnings_in(caplog)
    assert reason in warning
    assert warning.endswith("larger graphs run instead")
    assert arriving.graphs.models.keys() == set(others)
    assert arriving.arrivals.num_pending == 0
    arriving.engine.check_invariants()


def test_waiting_takes_every_graph_as_it_comes(workshop: Workshop) -> None:
    """Without a step; each wait of the test's compiler brings one more."""
    arriving = workshop.engine()
    plan = workshop.tiny.plan
    later = [bucket for bucket in plan.buckets if bucket not in plan.limits]
    wait = arriving.compiling.wait_for_news

    def bring_one(num_seen: int, timeout_s: float) -> int:
        arriving.announce(later.pop())
        return wait(num_seen, timeout_s)

    arriving.compiling.wait_for_news = bring_one  # type: ignore[method-assign]

    arriving.engine.wait_for_graphs()

    assert later == []
    assert arriving.compiling.num_waits == NUM_LATER
    assert arriving.graphs.models.keys() == set(plan.buckets)
    arriving.submit([1, 2, 3], GREEDY)
    arriving.finish()
    assert arriving.used == {PROMPTS, SMALL}


def test_waiting_ends_when_nothing_more_is_compiled(workshop: Workshop) -> None:
    arriving = workshop.engine()
    arriving.compiling.over = True

    with pytest.raises(SetError, match=r"decode_s1_c16.* are not there: nobody compiled them"):
        arriving.engine.wait_for_graphs()

    assert arriving.arrivals.num_pending == 0


def test_after_closing_nothing_arrives_and_waiting_says_so(workshop: Workshop, caplog) -> None:
    arriving = workshop.engine()
    arriving.announce(*workshop.tiny.plan.buckets)

    arriving.arrivals.close()
    arriving.submit([1, 2, 3], GREEDY)
    tokens = arriving.finish()

    whole = workshop.engine(workshop.tiny.plan.buckets)
    whole.submit([1, 2, 3], GREEDY)
    assert tokens == whole.finish()
    assert arriving.compiling.is_over
    assert arriving.used == {*workshop.tiny.plan.limits} - {*workshop.tiny.plan.score}
    assert warnings_in(caplog) == []
    with pytest.raises(SetError, match="compiling was stopped"):
        arriving.engine.wait_for_graphs()


def test_what_was_ready_at_the_end_of_compiling_is_taken(workshop: Workshop) -> None:
    arriving = workshop.engine()
    arriving.announce(*workshop.tiny.plan.buckets)
    arriving.compiling.over = True

    arriving.engine.wait_for_graphs()

    assert arriving.graphs.models.keys() == set(workshop.tiny.plan.buckets)


def test_nothing_compiles_in_the_process_that_serves(workshop: Workshop, caplog) -> None:
    caplog.set_level(logging.WARNING)
    arriving = workshop.engine()
    arriving.announce(*workshop.tiny.plan.buckets)

    arriving.engine.wait_for_graphs()

    assert arriving.graphs.num_compilations == 0
    assert warnings_in(caplog) == []


def test_waiting_ends_after_its_time(workshop: Workshop) -> None:
    arriving = workshop.engine()

    arriving.engine.wait_for_graphs(timeout_s=0)

    assert arriving.arrivals.num_pending == NUM_LATER
    assert arriving.compiling.num_waits == 0
