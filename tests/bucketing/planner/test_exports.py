"""Plans for other engines: their names, their rules as their own code has them, and the price."""

from __future__ import annotations

import ast
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from given_costs import LaunchAndWork
from hypothesis import given, settings
from hypothesis import strategies as st
from row_seconds import MODEL as SHAPE
from small_plan import STEPS, small_plan

from noria.bucketing import (
    DecodeBucket,
    PlanFile,
    PlanLimits,
    PlannedGraph,
    PrefillBucket,
)
from noria.bucketing.costs.cost import GraphFees
from noria.bucketing.costs.devices import device_sheet
from noria.bucketing.costs.reads import DecodeReads, Prefix
from noria.bucketing.costs.saved import SavedCosts
from noria.bucketing.plan_file import PolicyName
from noria.bucketing.planner.about import about_plan
from noria.bucketing.planner.evaluation import Shapes, use_of_decode, use_of_prefill
from noria.bucketing.planner.exports import Export, Price, export, saved_traffic
from noria.bucketing.planner.outcome import outcome
from noria.bucketing.planner.planner import make_plan
from noria.bucketing.planner.problem import Problem
from noria.bucketing.planner.restrictions import RESTRICTIONS, ExportError, Traffic
from noria.bucketing.planner.saved_problem import saved_problem
from noria.bucketing.planner.settings import PlanSettings
from noria.bucketing.planner.simulation import Steps
from noria.bucketing.planner.targets import TARGETS
from noria.bucketing.traces.trace import Trace

LIMITS = PlanLimits(2048, 8, 2048, 4, 16)
CHUNKED = replace(LIMITS, max_num_batched_tokens=1024)
COSTS = LaunchAndWork()
FEES = GraphFees(base_compile_s=10.0, row_compile_s=0.0, base_bytes=1e6, row_bytes=0.0)
RAGGED = ((1, 512), (4, 2048), (8, 256), (8, 2048))
DECODE = {(1, 400): 9, (3, 300): 5, (4, 1900): 3, (7, 200): 8, (7, 900): 1}


def plan(
    sizes: tuple[int, ...] = (128, 512, 2048),
    pairs: tuple[tuple[int, int], ...] = RAGGED,
    limits: PlanLimits = LIMITS,
    chunks: tuple[tuple[int, int], ...] = (),
) -> PlanFile:
    context = limits.max_model_len
    return PlanFile(
        limits=limits,
        prefill=tuple(
            PlannedGraph(PrefillBucket(size, context), float(COSTS.prefill_s(size)))
            for size in sizes
        ),
        decode=tuple(
            PlannedGraph(DecodeBucket(*pair), float(COSTS.decode_s(*pair))) for pair in pairs
        ),
        policy="cover" if chunks else "fill",
        chunks=chunks,
    )


def steps(rows: dict[int, int], decode: dict[tuple[int, int], int] | None = None) -> Steps:
    prefill = {(size, size, size, 0): num for size, num in rows.items()}
    return Steps(Counter(prefill), Counter(DECODE if decode is None else decode), 9.0, 9.0, 0)


def traffic(own: Steps, demand: Steps | None = None) -> Traffic:
    return Traffic(own, demand or own, COSTS, FEES)


ROWS = {100: 4, 128: 3, 300: 2, 512: 1, 2000: 1}
COVERED = traffic(steps({128: 7, 512: 5}), steps({100: 4, 300: 2, 640: 3, 2048: 1}))


def seconds_of(text: str, target: str, given: Traffic, limits: PlanLimits = LIMITS) -> float:
    """Return the seconds of all steps as the target's own code chooses its graphs."""
    return SECONDS[target](text, given, limits)


def _neuron_seconds(text: str, given: Traffic, limits: PlanLimits) -> float:
    config = json.loads(text)["neuron_config"]
    contexts = [*config.get("decode_context_length_buckets", []), limits.max_model_len]
    sizes, seqs = config["num_batched_tokens_buckets"], config["num_seqs_buckets"]
    total = 0.0
    for (rows, _, _, prefix), num in given.demand.prefill_shapes.items():
        total += num * float(COSTS.prefill_s(first(sizes, rows), prefix))
    for (num_seqs, context), num in given.steps.decode_shapes.items():
        total += num * float(COSTS.decode_s(first(seqs, num_seqs), first(contexts, context)))
    return total


def _nxdi_seconds(text: str, given: Traffic, limits: PlanLimits) -> float:
    config = json.loads(text)
    sizes = config["context_encoding_buckets"]
    seqs = config.get("token_generation_batches", [config["tkg_batch_size"]])
    total = 0.0
    for (rows, _, _, prefix), num in given.demand.prefill_shapes.items():
        size = next((size for size in sizes if rows < size), sizes[-1])
        total += num * float(COSTS.prefill_s(size, prefix))
    for (num_seqs, context), num in given.steps.decode_shapes.items():
        graph = first(seqs, num_seqs), first(config["token_generation_buckets"], context)
        total += num * float(COSTS.decode_s(*graph))
    return total


def _gaudi_seconds(text: str, given: Traffic, limits: PlanLimits) -> float:
    buckets = [ast.literal_eval(line) for line in text.splitlines() if line[0] != "#"]
    prompts = sorted(bucket for bucket in buckets if bucket[1] != 1)
    decode = sorted(bucket for bucket in buckets if bucket[1] == 1)
    block = limits.block_size
    total = 0.0
    for (rows, _, _, prefix), num in given.demand.prefill_shapes.items():
        _, size, _ = dominating(prompts, (1, rows, -(-prefix // block)))
        total += num * float(COSTS.prefill_s(size, prefix))
    for (num_seqs, context), num in given.steps.decode_shapes.items():
        seqs, _, blocks = dominating(decode, (num_seqs, 1, num_seqs * -(-context // block)))
        total += num * float(COSTS.decode_s(seqs, blocks // seqs * block))
    return total


def _cudagraph_seconds(text: str, given: Traffic, limits: PlanLimits) -> float:
    sizes = json.loads(text)["cudagraph_capture_sizes"]
    total = 0.0
    for (rows, _, _, prefix), num in given.demand.prefill_shapes.items():
        total += num * float(COSTS.prefill_s(rows, prefix))
    for (num_seqs, context), num in given.steps.decode_shapes.items():
        total += num * float(COSTS.decode_s(first(sizes, num_seqs), context))
    return total


SECONDS: dict[str, Callable[[str, Traffic, PlanLimits], float]] = {
    "vllm-neuron": _neuron_seconds,
    "nxdi": _nxdi_seconds,
    "vllm-gaudi": _gaudi_seconds,
    "cudagraph": _cudagraph_seconds,
}


def first(sizes: list[int], need: int) -> int:
    return next(size for size in sizes if size >= need)


def dominating(
    buckets: list[tuple[int, int, int]], need: tuple[int, int, int]
) -> tuple[int, int, int]:
    return next(b for b in buckets if all(x >= y for x, y in zip(b, need, strict=True)))


@pytest.mark.parametrize("keeps_sizes", [False, True], ids=["chosen", "kept"])
@pytest.mark.parametrize("target", TARGETS)
def test_the_price_is_what_the_engines_own_choice_takes(target: str, keeps_sizes: bool) -> None:
    given = traffic(steps(ROWS))

    found = export(plan(), target, given, keeps_sizes=keeps_sizes)

    priced, real = found.prices[-1].seconds, seconds_of(found.text, target, given)
    if target == "vllm-gaudi":  # counts all blocks of a step, which may fit another graph, too
        assert priced is not None
        assert priced >= real * (1 - 1e-9)
    else:
        assert priced == pytest.approx(real)


SHAPES = st.dictionaries(
    st.tuples(st.integers(1, 8), st.integers(2, 2048)), st.integers(1, 5), min_size=1, max_size=6
)
SIZES = st.dictionaries(st.integers(1, 2048), st.integers(1, 5), min_size=1, max_size=6)
PAIRS = st.sets(st.tuples(st.integers(1, 8), st.integers(2, 2048)), max_size=4)


@settings(deadline=None, max_examples=25)
@given(SIZES, SHAPES, st.sets(st.integers(1, 2047), max_size=3), PAIRS, st.booleans())
def test_any_plan_fits_any_engine_and_is_priced_as_it_chooses(
    rows: dict[int, int],
    decode: dict[tuple[int, int], int],
    sizes: set[int],
    pairs: set[tuple[int, int]],
    keeps_sizes: bool,
) -> None:
    made = plan(tuple(sorted({*sizes, 2048})), tuple(sorted({*pairs, (8, 2048)})))
    given = traffic(steps(rows, decode))

    for target in ("vllm-neuron", "nxdi", "cudagraph"):
        found = export(made, target, given, keeps_sizes=keeps_sizes)
        assert found.prices[-1].seconds == pytest.approx(seconds_of(found.text, target, given))
        if not keeps_sizes:
            assert len(found.sets.decode) <= len(made.decode)


@pytest.mark.parametrize("target", TARGETS)
def test_the_first_price_is_that_of_the_plan(target: str) -> None:
    made, own = plan(), steps(ROWS)
    buckets = made.bucket_plan()
    use = use_of_prefill(buckets, Shapes.of_prefill(own), COSTS)
    decode = use_of_decode(buckets, Shapes.of_decode(own), COSTS)

    found = export(made, target, traffic(own)).prices[0]

    assert (found.num_graphs, found.compile_s) == (7, 70.0)
    assert found.seconds == pytest.approx(use.seconds + decode.seconds)


def test_a_grid_takes_longer_or_has_more_graphs() -> None:
    needs = ((1, 416), (3, 304), (4, 1904), (7, 208), (7, 912))
    made = plan(pairs=(*needs, (8, 2048)))

    found = export(made, "vllm-neuron", traffic(steps(ROWS)))
    kept = export(made, "vllm-neuron", traffic(steps(ROWS)), keeps_sizes=True)

    pairs, whole = (price(one, "decode graphs are all pairs of two lists") for one in (found, kept))
    assert pairs.num_graphs <= found.prices[0].num_graphs == 9
    assert pairs.seconds > found.prices[0].seconds
    assert found.kept == kept.prices[-1]
    assert kept.kept is None
    # All graphs of the plan are among its whole grid of 5 x 6: nothing takes longer.
    assert whole.seconds <= found.prices[0].seconds
    assert (whole.num_graphs, whole.compile_s) == (33, 330.0)


def test_a_product_is_exported_as_it_is() -> None:
    pairs = tuple((n, c) for n in (2, 8) for c in (512, 2048))

    found = export(plan(pairs=pairs), "nxdi", traffic(steps(ROWS)))

    assert (found.sets.decode, found.kept) == (pairs, None)


def test_a_prompt_of_exactly_a_size_runs_in_the_next_graph_of_nxdi() -> None:
    found = export(plan(), "nxdi", traffic(steps(ROWS)))

    row = price(found, "a prompt of exactly a size runs in the next")
    before = found.prices[found.prices.index(row) - 1]
    extra = 3 * (512 - 128) + 1 * (2048 - 512)  # steps of 128 and of 512 rows, 1 ms a row
    assert row.seconds - before.seconds == pytest.approx(extra * 1e-3)


def test_the_smallest_graph_may_not_be_the_cheapest() -> None:
    # 3 requests of 200 tokens fit 8 x 256, which takes less than 4 x 2048.
    found = export(plan(), "vllm-gaudi", traffic(steps(ROWS, {(3, 200): 10})))

    row = price(found, "a step takes the smallest graph, not the cheapest")
    extra = 10 * float(COSTS.decode_s(4, 2048) - COSTS.decode_s(8, 256))
    assert row.seconds - found.prices[0].seconds == pytest.approx(extra)


def test_rules_that_change_nothing_are_not_listed() -> None:
    covered = plan((128, 512), chunks=((1, 128),))

    texts = {
        target: [row.text for row in export(made, target, keeps_sizes=True).prices]
        for target, made in (("vllm-neuron", plan()), ("cudagraph", covered))
    }

    assert texts["vllm-neuron"] == [
        "the plan",
        "decode graphs are all pairs of two lists",
        "a step takes the smallest graph, not the cheapest",
    ]
    assert texts["cudagraph"] == [
        "the plan",
        "prompts run as they are, without graphs",
        "decode graphs are for any context",
        "decode graphs read what is cached",
    ]


def test_limits_stay_as_they_are() -> None:
    limits = PlanLimits(2000, 8, 2000, 4, 16)
    made = plan((1990, 2000), ((4, 1990), (8, 2000)), limits)

    found = export(made, "vllm-neuron", keeps_sizes=True)

    assert found.sets.prefill == (2000,)
    assert found.sets.decode == ((4, 2000), (8, 2000))


def test_captures_hold_the_drafts_of_every_request() -> None:
    limits = replace(LIMITS, num_speculative_tokens=2)
    made = replace(
        plan(limits=limits),
        decode=tuple(PlannedGraph(DecodeBucket(size, 2048, 3), size * 1.0) for size in (2, 8)),
    )

    sizes = json.loads(export(made, "cudagraph").text)["cudagraph_capture_sizes"]

    assert sizes == [6, 24]


@pytest.mark.parametrize("prefix", ["exact", "bucketed", "max"])
@pytest.mark.parametrize("policy", ["fill", "cover"])
def test_the_first_price_is_what_whatif_says_of_the_plan(
    prefix: Prefix, policy: PolicyName
) -> None:
    asked = PlanSettings(policy=policy, prefix=prefix, search_s=60.0)
    costs = SavedCosts.roofline(
        replace(SHAPE, hidden_size=512, intermediate_size=2048, num_heads=8, head_dim=64),
        device_sheet("cpu"),
        "float32",
        reads=DecodeReads("live", "bucket"),
    )
    limits = replace(LIMITS, max_num_batched_tokens=256)
    random = np.random.default_rng(0)
    trace = Trace(random.integers(1, 1500, 30), random.integers(1, 30, 30), np.arange(30.0))
    problem = Problem(trace, limits, costs.steps, costs.fees, settings=asked)
    planned = make_plan(problem)
    made = replace(planned.plan, about=about_plan(problem, planned, costs, trace_name="t"))

    whole = saved_problem(made)
    found = export(made, "nxdi", saved_traffic(made)).prices[0]

    assert found.seconds == pytest.approx(outcome(whole, made).seconds, rel=1e-6)
    assert found.seconds == pytest.approx(
        outcome(replace(problem, steps=planned.demand), made).seconds
    )
    assert "steps" not in made.about


def test_traffic_comes_from_the_plan() -> None:
    made = small_plan()

    found = saved_traffic(made)

    assert found is not None
    assert found.demand.prefill_shapes == found.steps.prefill_shapes == STEPS.prefill_shapes
    assert found.demand.decode_shapes == found.steps.decode_shapes == STEPS.decode_shapes
    assert found.fees.base_compile_s == 1.0
    for key in ("demand", "costs", "settings", "budget"):
        assert saved_traffic(small_plan(**{key: None})) is None


def test_chunks_are_cut_from_what_the_plan_was_chosen_for() -> None:
    covered = replace(small_plan(), policy="cover", chunks=((1, 16),))

    found = saved_traffic(covered)

    assert found is not None
    assert found.demand.prefill_shapes == STEPS.prefill_shapes
    assert found.steps.prefill_shapes == {
        (10, 10, 10, 0): 3,
        (16, 16, 16, 0): 2,
        (16, 16, 32, 16): 2,
        (8, 8, 40, 32): 2,
    }


def test_prompts_that_were_covered_are_padded() -> None:
    made = plan((128, 512), chunks=((1, 128), (129, 512)))

    found = export(made, "vllm-neuron", COVERED)
    kept = export(made, "vllm-neuron", COVERED, keeps_sizes=True)

    assert "prompts are padded, no chunks cover them" in [row.text for row in found.prices]
    for one in (found, kept):
        assert one.sets.prefill[-1] == 2048
        assert one.prices[-1].seconds == pytest.approx(seconds_of(one.text, "vllm-neuron", COVERED))
    assert kept.sets.prefill == (128, 512, 2048)
    assert found.prices[-1].num_graphs <= found.prices[0].num_graphs < kept.prices[-1].num_graphs


def test_padding_takes_graphs_from_decode_where_that_saves_more() -> None:
    pairs = tuple((num_seqs, 2048) for num_seqs in range(1, 9))
    made = plan((2048,), pairs, chunks=((1, 2048),))
    prompts = dict.fromkeys(range(128, 2049, 128), 50)

    found = export(made, "vllm-gaudi", traffic(steps(prompts, {(8, 2000): 1})))

    assert len(found.sets.prefill) > 4
    assert found.sets.decode[-1] == (8, 2048)
    assert found.prices[-1].num_graphs <= 9


def test_sizes_become_multiples_of_what_the_engine_asks() -> None:
    made = plan((48, 200, 2048), ((1, 100), (2, 300), (8, 2048)))

    neuron, gaudi = (export(made, one, keeps_sizes=True) for one in ("vllm-neuron", "vllm-gaudi"))

    assert neuron.sets.prefill == (128, 256, 2048)
    assert neuron.sets.contexts == [128, 384, 2048]
    assert gaudi.sets.prefill == (48, 208, 2048)


def test_configurations_have_the_names_of_their_engines() -> None:
    texts = {target: export(plan(), target, keeps_sizes=True).text for target in TARGETS}

    assert json.loads(texts["vllm-neuron"]) == {
        "neuron_config": {
            "num_batched_tokens_buckets": [128, 512, 2048],
            "num_seqs_buckets": [1, 4, 8],
            "decode_context_length_buckets": [256, 512],
        }
    }
    assert json.loads(texts["nxdi"]) == {
        "enable_bucketing": True,
        "is_continuous_batching": True,
        "seq_len": 2048,
        "max_context_length": 2048,
        "batch_size": 8,
        "ctx_batch_size": 1,
        "tkg_batch_size": 8,
        "context_encoding_buckets": [128, 512, 2048],
        "token_generation_buckets": [256, 512, 2048],
        "token_generation_batches": [1, 4, 8],
    }
    assert json.loads(texts["cudagraph"]) == {
        "cudagraph_mode": "FULL_DECODE_ONLY",
        "cudagraph_capture_sizes": [1, 4, 8],
    }
    assert texts["vllm-gaudi"].splitlines() == [
        "# prompts: requests, tokens, cached blocks of 16",
        *("(1, 128, 0)", "(1, 512, 0)", "(1, 2048, 0)"),
        "# decode: requests, 1 token, blocks of all of them",
        *("(1, 1, 32)", "(4, 1, 512)", "(8, 1, 128)", "(8, 1, 1024)"),
    ]


def test_lists_that_would_hold_only_the_limit_are_left_out() -> None:
    made = plan(pairs=((8, 2048),))

    neuron, nxdi = (json.loads(export(made, one).text) for one in ("vllm-neuron", "nxdi"))

    assert "decode_context_length_buckets" not in neuron["neuron_config"]
    assert "token_generation_batches" not in nxdi


def test_chunks_on_neuron_are_segments() -> None:
    found = export(plan((128, 600, 1024), limits=CHUNKED), "vllm-neuron")

    config = json.loads(found.text)["neuron_config"]
    assert config["num_batched_tokens_buckets"] == [512, 1024]
    assert config["kv_segment_size_buckets"] == [512, 1024]
    assert "releases may take a single segment size, hence prefill size" in found.notes


def test_chunks_that_are_no_segment_are_refused() -> None:
    limits = replace(LIMITS, max_num_batched_tokens=1000)

    with pytest.raises(ExportError) as refusal:
        export(plan((128, 1000), limits=limits), "vllm-neuron")

    assert str(refusal.value) == (
        "vLLM Neuron: the plan's prompts run in chunks of 1000 tokens; must be 512, 1024, 2048, "
        "4096, or max_model_len 2048 for no chunks"
    )


def test_chunks_on_gaudi_have_buckets_with_cached_blocks() -> None:
    found = export(plan((128, 1024), limits=CHUNKED), "vllm-gaudi", traffic(steps({100: 1})))

    buckets = [ast.literal_eval(line) for line in found.text.splitlines() if line[0] != "#"]
    prompts = [bucket for bucket in buckets if bucket[1] != 1]
    assert prompts == [(1, 128, 0), (1, 128, 120), (1, 1024, 0), (1, 1024, 64)]
    # What it filters: more than max_model_len, more than a step, more requests than blocks.
    assert all(size + 16 * blocks <= 2048 and size <= 1024 for _, size, blocks in prompts)
    assert all(num_seqs <= blocks for num_seqs, size, blocks in buckets if size == 1)
    assert found.prices[-1].num_graphs == len(buckets)


def test_chunks_that_leave_no_whole_block_have_one_bucket() -> None:
    limits = replace(LIMITS, max_num_batched_tokens=2040)

    found = export(plan((128, 2040), limits=limits), "vllm-gaudi")

    assert found.sets.prompts == [(128, 0), (128, 120), (2040, 0)]


def test_without_traffic_sizes_are_kept_and_nothing_has_a_price() -> None:
    found = export(plan(), "vllm-neuron")

    assert (len(found.sets.decode), found.kept) == (9, None)
    assert {(price.compile_s, price.seconds) for price in found.prices} == {(None, None)}


def test_traffic_without_decode_steps_is_priced() -> None:
    given = traffic(steps(ROWS, {}))

    for target in TARGETS:
        assert export(plan(), target, given, keeps_sizes=True).prices[-1].seconds


def test_every_rule_has_a_price_somewhere() -> None:
    odd = plan((48, 2048), ((1, 100), (8, 2048)))
    plans = [odd, plan((128, 512), chunks=((1, 128),)), plan((128, 1024), limits=CHUNKED)]
    texts = {
        price.text
        for made in plans
        for target in TARGETS
        for price in export(made, target, keeps_sizes=True).prices[1:]
    }

    assert texts == {rule.text for rule in RESTRICTIONS}


def test_notes_say_what_has_no_price() -> None:
    packed = export(plan(), "nxdi").notes
    alone = export(plan(limits=replace(LIMITS, max_num_prefill_seqs=1)), "nxdi").notes

    assert packed[0] == ("prompts run one by one there, where this plan packs up to 4 into a step")
    assert packed[1:] == alone


@pytest.mark.parametrize("target", TARGETS)
def test_the_same_plan_gives_the_same_bytes(target: str) -> None:
    once, again = (export(plan(), target, traffic(steps(ROWS))) for _ in range(2))

    assert once == again
    assert once.text.isascii()
    assert "{" not in once.usage


def price(found: Export, text: str) -> Price:
    (row,) = [row for row in found.prices if row.text == text]
    return row
