"""Steps that are known without a simulation: of lengths alone, and of other chunks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ..padding import round_up
from ..plan import PlanLimits
from ..plan_file import PlanFileError, PolicyName
from ..policy import StepPolicy
from ..sets.demand import DecodeDemand
from ..traces.counted_engine import CountedEngine
from ..traces.counters import Counters
from ..traces.trace import Trace
from .evaluation import Shapes
from .simulation import PrefillShape, Steps


def steps_of_lengths(trace: Trace, limits: PlanLimits) -> Steps:
    """Return the prefill steps of prompts that each run alone, in chunks of the largest step.

    This is what can be said where outputs are not known or only how often each length comes.
    There are no decode steps.

    Args:
        trace: prompts, which fit ``max_model_len``; rows may stand for any number of requests.
        limits: of the engine.
    """
    counts = np.ones(len(trace.prompt_lens)) if trace.weights is None else trace.weights
    lens, index = np.unique(trace.prompt_lens, return_inverse=True)
    nums = np.bincount(index.reshape(-1), weights=counts)
    most = limits.max_prefill_tokens
    shapes: dict[PrefillShape, float] = {}
    for length, num in zip(lens.tolist(), nums.tolist(), strict=True):
        for start in range(0, length, most):
            tokens = min(most, length - start)
            rows = min(most, round_up(tokens, limits.prefill_tile))
            shape = (rows, tokens, start + tokens, start * tokens // rows)
            shapes[shape] = shapes.get(shape, 0.0) + num
    arrivals = trace.arrivals_s
    seconds = 0.0 if arrivals is None else float(arrivals[-1])
    return Steps(shapes, {}, seconds, 0.0, 0)


def cut_steps(steps: Steps, policy: StepPolicy, limits: PlanLimits) -> Steps:
    """Return the steps as an engine with this policy and these limits would run them.

    The rows of each prefill step wait alone and run in the chunks that the policy takes. Contexts
    beyond ``max_model_len`` end there, as do requests beyond ``max_num_seqs``.
    """
    prefill: dict[PrefillShape, float] = {}
    for shape, num in steps.prefill_shapes.items():
        for chunk in _chunks(shape, policy, limits):
            prefill[chunk] = prefill.get(chunk, 0.0) + num
    given = steps.decode
    found = DecodeDemand.of(
        np.minimum(given.num_seqs, limits.max_num_seqs),
        np.minimum(given.context_lens, limits.max_model_len),
        given.weights,
        np.minimum(given.live_lens, limits.max_model_len),
    )
    shapes = list(zip(found.num_seqs.tolist(), found.context_lens.tolist(), strict=True))
    return replace(
        steps,
        prefill_shapes=prefill,
        decode_shapes=dict(zip(shapes, found.weights.tolist(), strict=True)),
        live_lens=dict(zip(shapes, found.live_lens.tolist(), strict=True)),
    )


def counted_steps(counters: Counters, asked: CountedEngine) -> Steps:
    """Return the steps that an engine counted, as prompts fill the largest graph.

    Where its policy covers prompts by several chunks, what waited for these is not counted: then
    the finished prompts stand for it, each alone.

    Args:
        counters: of an engine that may have run other graphs.
        asked: the engine that they are to tell of; its policy counts where they name none.

    Raises:
        PlanFileError: they are another engine's, there are no steps, or larger ones than the
            limits allow.
    """
    limits = asked.limits
    counted = counters.engine
    if counted is not None:
        _check_engine(counted, asked)
    policy = (counted and counted.policy) or asked.policy or "fill"
    decode: dict[tuple[int, int], float] = {}
    if counters.decode is not None:
        demand = counters.decode
        rows = zip(
            demand.num_seqs.tolist(),
            demand.context_lens.tolist(),
            demand.weights.tolist(),
            strict=True,
        )
        decode = {(num_seqs, context): num for num_seqs, context, num in rows}
    prefill = _counted_prefill(counters, limits, policy)
    if not prefill or not decode:
        phase = "decode" if prefill else "prefill"
        raise PlanFileError(f"the counters hold no {phase} steps; let the engine run for a while")
    steps = Steps(prefill, decode, 0.0, 0.0, 0)
    _check_limits(steps, limits)
    return steps


def counted_notes(counters: Counters, asked: CountedEngine) -> Iterator[str]:
    """Yield what to know of counters beside an engine, in sentences."""
    if counters.engine is None:
        yield "the counters do not say of which engine they are, as those of format 1 do not"
    elif not counters.engine.has_plan_of(asked):
        yield (
            "the steps were counted with other graphs, or other chunks of prompts, than those that "
            f"they are asked about: policy {counters.engine.policy} and plan "
            f"{counters.engine.plan_key}, here {asked.policy} and {asked.plan_key}"
        )


def _check_engine(counted: CountedEngine, asked: CountedEngine) -> None:
    difference = counted.difference(asked)
    if difference is not None:
        name, value, wanted = difference
        raise PlanFileError(
            f"{name} is {value} where this was counted, and {wanted} here: the counters are of "
            "another configuration"
        )


def _counted_prefill(
    counters: Counters, limits: PlanLimits, policy: PolicyName
) -> dict[PrefillShape, float]:
    if policy == "cover" and counters.requests is not None:
        longest = int(counters.requests.prompt_lens.max())
        if longest >= limits.max_model_len:
            raise PlanFileError(_too_large(f"a prompt of {longest} tokens", limits))
        return dict(steps_of_lengths(counters.requests, limits).prefill_shapes)
    found: dict[PrefillShape, float] = {}
    for rows, context, num_steps, _ in counters.prefill_steps.tolist():
        # Of several requests in a step, the longest may be the only one that had any cached.
        shape = (rows, rows, max(rows, context), max(0, context - rows))
        found[shape] = found.get(shape, 0.0) + num_steps
    return found


def _check_limits(steps: Steps, limits: PlanLimits) -> None:
    prefill, decode = Shapes.of_prefill(steps), Shapes.of_decode(steps)
    context = max(prefill.contexts.max(), decode.contexts.max())
    for what, largest, limit in (
        ("a prefill step of {} tokens", prefill.sizes.max(), limits.max_prefill_tokens),
        ("a decode step of {} requests", decode.sizes.max(), limits.max_num_seqs),
        ("a context of {} tokens", context, limits.max_model_len),
    ):
        if largest > limit:
            raise PlanFileError(_too_large(what.format(int(largest)), limits))


def _too_large(what: str, limits: PlanLimits) -> str:
    return (
        f"the counters hold {what}; the limits are {limits.max_prefill_tokens} tokens, "
        f"{limits.max_num_seqs} requests and contexts of {limits.max_model_len}: they are of "
        "another configuration"
    )


def _chunks(shape: PrefillShape, policy: StepPolicy, limits: PlanLimits) -> list[PrefillShape]:
    """Cut one step; its real tokens and its prefix are spread evenly over its rows."""
    num_rows, num_tokens, context, prefix = shape
    longest = limits.max_model_len
    found: list[PrefillShape] = []
    done = 0
    while done < num_rows:
        rows = policy.pack([num_rows - done])[0]
        left = num_rows - done - rows
        tokens = num_tokens * (done + rows) // num_rows - num_tokens * done // num_rows
        end = min(longest, max(min(context, rows), context - left))
        read = min(prefix + done, max(prefix, end - rows), max(0, longest - rows))
        found.append((rows, tokens, end, read))
        done += rows
    return found
