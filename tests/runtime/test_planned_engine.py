"""Engines that run planned graphs: the tokens of any other engine, and no step without a graph."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from local_sets import num_compilations
from plans import LIMITS, plan_data
from thread_workers import start_thread

from noria.runtime import LLM, SamplingParams, engine_start
from noria.runtime.compiled_set import worker
from noria.runtime.compiled_set.compiling import compile_set
from noria.runtime.compiled_set.local_cache import cached_sets
from noria.runtime.config import load_config, parse_config

SETTINGS: dict[str, Any] = {
    "model": {
        "vocab_size": 300,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
    },
    "dtype": "float32",
    "num_blocks": 29,
    "num_threads": 1,
    **LIMITS,
}
FILL = plan_data()
COVER = plan_data((5, 16, 40), chunks=((1, 5), (6, 16), (17, 5), (30, 40)))
PROMPTS = [
    [7 * row % 300 + k for k in range(length)]
    for row, length in enumerate([1, 2, 5, 6, 17, 29, 41, 63, 3, 40])
]
PARAMS = [
    SamplingParams(
        temperature=0 if row % 2 else 0.9, seed=row, max_tokens=3 + 5 * row, ignore_eos=True
    )
    for row in range(len(PROMPTS))
]


def tokens_of(llm: LLM) -> list[tuple[int, ...]]:
    before = num_compilations(llm)
    found = [output.token_ids for output in llm.generate(PROMPTS, PARAMS)]
    assert num_compilations(llm) == before
    return found


@pytest.fixture(scope="module", autouse=True)
def keep_num_threads():
    """Undo the configuration's ``num_threads``, which holds for the whole process."""
    num_threads = torch.get_num_threads()
    yield
    torch.set_num_threads(num_threads)


@pytest.fixture(scope="module", autouse=True)
def sets(tmp_path_factory: pytest.TempPathFactory):
    """A local set, so that what plans have alike is compiled once; all of it before serving."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NORIA_SETS", str(tmp_path_factory.mktemp("sets")))
        patch.setattr(engine_start, "WORKER_START_S", 1e9)
        yield


@pytest.fixture(scope="module")
def powers() -> LLM:
    return LLM(SETTINGS)


@pytest.fixture(scope="module")
def fill() -> LLM:
    return LLM({**SETTINGS, "buckets": FILL})


@pytest.fixture(scope="module")
def cover() -> LLM:
    return LLM({**SETTINGS, "buckets": COVER})


def test_tokens_are_those_of_powers_of_two(powers: LLM, fill: LLM, cover: LLM) -> None:
    expected = tokens_of(powers)

    assert tokens_of(fill) == expected
    assert tokens_of(cover) == expected
    assert fill.loaded.invariance.num_graphs == cover.loaded.invariance.num_graphs == 8


def test_tokens_are_those_of_powers_of_two_in_bfloat16() -> None:
    settings = {**SETTINGS, "dtype": "bfloat16"}

    assert tokens_of(LLM({**settings, "buckets": COVER})) == tokens_of(LLM(settings))


def test_every_planned_graph_runs_where_it_is_the_cheapest_that_fits(fill: LLM) -> None:
    def ran() -> set[str]:
        return {bucket.label for bucket in fill.loaded.runner.padding.by_bucket}

    tokens_of(fill)
    for num_seqs in (1, 2, 3):
        fill.generate([[1, 2]] * num_seqs, SamplingParams(temperature=0, max_tokens=3))

    assert ran() == {bucket.label for bucket in fill.loaded.plan.buckets}


def test_no_prefill_step_is_longer_than_the_largest_graph_where_chunks_cover_prompts(
    cover: LLM,
) -> None:
    padding = cover.loaded.runner.padding
    before = padding.by_bucket

    cover.generate([[1] * 63], SamplingParams(temperature=0, max_tokens=1))

    steps = {
        bucket.label: step.num_steps - getattr(before.get(bucket), "num_steps", 0)
        for bucket, step in padding.by_bucket.items()
        if bucket.phase == "prefill"
    }
    assert steps == {
        "prefill_t40_c64": 1,  # 63 tokens wait
        "prefill_t5_c64": 2,  # 23, 18
        "prefill_t16_c64": 1,  # 13
    }


def test_tables_are_as_wide_as_the_context_of_their_graph(fill: LLM) -> None:
    widths = {
        bucket.label: graph.arrays["block_table_0"].shape[1]
        for bucket, graph in fill.loaded.graphs.models.items()
    }

    assert widths["decode_s2_c16"] == 2
    assert widths["decode_s1_c32"] == 4
    assert widths["decode_s3_c40"] == 5
    assert widths["prefill_t16_c64"] == 8


def test_prompts_are_scored_in_a_planned_engine() -> None:
    features = ["greedy", "top_k_top_p", "prompt_logprobs"]
    params = SamplingParams(temperature=0, max_tokens=4, prompt_logprobs=0)
    settings = {**SETTINGS, "sampler_features": features}

    expected = LLM(settings).generate(PROMPTS, params)
    found = LLM({**settings, "buckets": COVER}).generate(PROMPTS, params)

    for one, other in zip(found, expected, strict=True):
        assert one.token_ids == other.token_ids
        assert one.prompt_logprobs == other.prompt_logprobs


def test_engines_of_several_plans_share_a_local_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NORIA_SETS", str(tmp_path))

    first = LLM({**SETTINGS, "buckets": plan_data((16, 64), ((2, 16), (4, 64)))})
    other = LLM({**SETTINGS, "buckets": plan_data((64,), ((2, 16), (4, 64)), chunks=((1, 64),))})
    more = LLM({**SETTINGS, "buckets": plan_data((40, 64), ((4, 64),))})

    assert num_compilations(first) > 0
    assert num_compilations(other) == 0
    assert num_compilations(more) == 1
    assert len(cached_sets(tmp_path)) == 1


def test_a_compiled_set_holds_its_plan(
    cover: LLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "start_process", start_thread)
    config = parse_config({**SETTINGS, "buckets": COVER})
    path = tmp_path / "set"
    compile_set(config, path, workers=1)
    assert load_config(path / "config.yaml") == config

    llm = LLM({**load_config(path / "config.yaml").to_mapping(), "compiled": str(path)})

    assert num_compilations(llm) == 0
    assert tokens_of(llm) == tokens_of(cover)


def test_chunks_are_whole_tiles_where_the_backend_has_tiles() -> None:
    sizes = {"max_num_batched_tokens": 256, "max_model_len": 256, "block_size": 16}
    tiles = {"prefill_tile": 128, "fold_blocks": 128}
    settings = {**SETTINGS, **sizes, "backend": "neuron-sim", "num_blocks": 80}
    settings["model"] = {**SETTINGS["model"], "hidden_size": 64, "max_position_embeddings": 256}
    plan = plan_data((128,), ((1, 128), (4, 256)), chunks=((1, 128),), **sizes, **tiles)
    prompts, params = [[7] * 5, [9] * 140], SamplingParams(temperature=0, max_tokens=3)

    planned = LLM({**settings, "buckets": plan})
    found = [one.token_ids for one in planned.generate(prompts, params)]

    assert found == [one.token_ids for one in LLM(settings).generate(prompts, params)]
    # A tile of the first prompt leaves no room beside it in a chunk of one tile.
    assert planned.counters["prefill"] == [[5, 5, 1, 1], [12, 140, 1, 1], [128, 128, 1, 1]]
