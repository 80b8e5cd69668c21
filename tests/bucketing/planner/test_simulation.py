"""The simulation: what arrives when, and how long steps take, decide who runs beside whom."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from noria.bucketing import FillPolicy
from noria.bucketing.planner.simulated_requests import ServiceLimits
from noria.bucketing.planner.simulation import Steps, simulate
from noria.bucketing.planner.step_times import StepTimes
from noria.bucketing.traces.trace import Trace

LIMITS = ServiceLimits(max_num_seqs=3, max_model_len=64)
POLICY = FillPolicy(max_num_tokens=16, max_num_seqs=2)


class Given(StepTimes):
    """Steps of given seconds; a context adds to those of decoding."""

    def __init__(self, prefill_s: float = 1.0, decode_s: float = 1.0, slope: float = 0.0) -> None:
        self._prefill_s, self._decode_s, self._slope = prefill_s, decode_s, slope

    def prefill_s(self, num_rows: int, prefix_len: int, context_len: int) -> float:
        return self._prefill_s

    def decode_s(self, num_seqs: int, context_len: int, mean_context: float) -> float:
        return self._decode_s + self._slope * context_len


def run(requests: list[tuple[int, int, float]], times: StepTimes, context_step: int = 1) -> Steps:
    prompts, outputs, arrivals = (np.array(column) for column in zip(*requests, strict=True))
    trace = Trace(prompts, outputs, arrivals.astype(float))
    return simulate(trace, LIMITS, POLICY, times, context_step=context_step)


def test_a_request_that_comes_later_joins_the_batch_when_it_is_there() -> None:
    steps = run([(4, 6, 0.0), (4, 3, 2.5)], Given())

    # Prefill to 1, decode to 2 and 3, then the second prompt, then both, then the first alone.
    assert steps.decode_shapes == {(1, 5): 1, (1, 6): 1, (2, 7): 1, (2, 8): 1, (1, 9): 1}
    assert steps.seconds == steps.busy_s == 7


def test_idle_time_is_not_busy() -> None:
    steps = run([(4, 1, 0.0), (4, 1, 100.0)], Given())

    assert (steps.seconds, steps.busy_s) == (101, 2)


def test_slower_steps_run_more_requests_at_once() -> None:
    requests = [(4, 10, float(5 * i)) for i in range(20)]

    assert run(requests, Given(decode_s=2.0)).mean_num_seqs > run(requests, Given()).mean_num_seqs


REQUESTS = st.lists(
    st.tuples(st.integers(1, 40), st.integers(1, 30), st.integers(0, 60)), min_size=1, max_size=12
).map(lambda rows: sorted(rows, key=lambda row: row[2]))


@settings(deadline=None)
@given(REQUESTS, st.integers(1, 20))
def test_a_coarser_resolution_counts_the_same_steps(
    requests: list[tuple[int, int, float]], context_step: int
) -> None:
    exact, coarse = run(requests, Given()), run(requests, Given(), context_step)

    rounded: dict[tuple[int, int], int] = {}
    for (num_seqs, need), count in exact.decode_shapes.items():
        top = min(-(-need // context_step) * context_step, LIMITS.max_model_len)
        key = (num_seqs, top)
        rounded[key] = rounded.get(key, 0) + count
    assert coarse.decode_shapes == rounded
    assert coarse.prefill_shapes == exact.prefill_shapes
    assert coarse.seconds == exact.seconds


@settings(deadline=None)
@given(REQUESTS)
def test_every_token_runs_once(requests: list[tuple[int, int, float]]) -> None:
    steps = run(requests, Given(slope=0.01))

    # The last token of a request is drawn, and never run.
    tokens = sum(min(p + o, LIMITS.max_model_len) - 1 for p, o, _ in requests)
    prefilled = sum(shape[1] * count for shape, count in steps.prefill_shapes.items())
    decoded = sum(shape[0] * count for shape, count in steps.decode_shapes.items())
    assert prefilled + decoded == tokens


@settings(deadline=None)
@given(REQUESTS, st.integers(1, 20))
def test_live_tokens_are_all_that_requests_have_in_decode_steps(
    requests: list[tuple[int, int, float]], context_step: int
) -> None:
    prompts, outputs, arrivals = (np.array(column) for column in zip(*requests, strict=True))
    trace = Trace(prompts, outputs, arrivals.astype(float))
    steps = simulate(trace, LIMITS, FillPolicy(64, 1), Given(), context_step=context_step)

    # Prompts of one token have nothing to prefill; the first token else comes with the prompt.
    tokens = 0
    for prompt_len, output_len, _ in requests:
        end = min(prompt_len + output_len, LIMITS.max_model_len)
        tokens += sum(range(prompt_len + (prompt_len > 1), end))
    counted = sum(
        num * shape[0] * steps.live_lens[shape] for shape, num in steps.decode_shapes.items()
    )
    assert counted == pytest.approx(tokens)
    assert all(live <= shape[1] for shape, live in steps.live_lens.items())


@pytest.mark.parametrize(
    ("trace", "message"),
    [
        (Trace(np.array([4])), "output lengths"),
        (Trace(np.array([4]), np.array([1]), weights=np.array([2.0])), "single requests"),
        (Trace(np.array([64]), np.array([1])), "request 0 has a prompt of 64 tokens"),
    ],
)
def test_traffic_that_cannot_be_simulated_is_refused(trace: Trace, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        simulate(trace, LIMITS, POLICY, Given())


def test_a_request_that_no_pool_holds_is_refused() -> None:
    limits = ServiceLimits(max_num_seqs=1, max_model_len=64, block_size=4, num_blocks=9)

    with pytest.raises(ValueError, match="needs 9 blocks; num_blocks 9 gives 8"):
        simulate(Trace(np.array([30]), np.array([5])), limits, POLICY, Given())
