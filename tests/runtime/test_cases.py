"""Cases that only an engine with all its parts can show: B09, B12."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from noria.kernels.reference import ReferenceKernels
from noria.runtime.request import FinishReason
from noria.runtime.sampling_params import SamplingParams


def test_b09_a_request_of_max_model_len_fills_a_last_block_that_the_limit_cuts(
    make_engine, make_shape, make_dense, tiny_architecture
):
    """max_model_len 1000 in blocks of 48: 21 blocks, of which the last holds 40 tokens."""
    architecture = replace(tiny_architecture, max_position_embeddings=1024)
    shape = make_shape(
        max_num_batched_tokens=1000,
        max_model_len=1000,
        block_size=48,
        num_blocks=1 + 21 + 4,
        tokens=(128, 1000),
        decode_context=(128,),
    )
    engine = make_engine(shape, architecture=architecture)
    greedy = SamplingParams(temperature=0)
    rng = random.Random(9)
    prompts = [[rng.randrange(61) for _ in range(length)] for length in (999, 996)]
    dense = make_dense(architecture)

    whole, longer = (engine.submit(prompt, greedy) for prompt in prompts)
    engine.engine.step()
    arrays = engine.graphs.models[engine.plan.pick_prefill(999, 999)].arrays
    table, slots = arrays["block_table_0"][0], arrays["slot_mapping_0"]
    assert len(set(table.tolist()) - {-1}) == 21
    assert slots[960:999].tolist() == [table[20] * 48 + offset for offset in range(39)]
    engine.run()

    assert whole.output_token_ids == dense.generate(prompts[0], greedy, 1)
    assert longer.output_token_ids == dense.generate(prompts[1], greedy, 4)
    assert {whole.finish_reason, longer.finish_reason} == {FinishReason.LENGTH}
    with pytest.raises(ValueError, match="1000"):
        engine.submit([1] * 1000, greedy)


class CountingKernels(ReferenceKernels):
    """Reference kernels that count what is compiled."""

    def __init__(self) -> None:
        super().__init__()
        self.num_compiled = 0

    def compile(self, graph, inputs, outputs):
        self.num_compiled += 1
        return super().compile(graph, inputs, outputs)


def test_b12_a_request_that_leaves_a_full_bucket_leaves_every_array_whole(make_engine, make_shape):
    """4 requests in the bucket of 4, each with its own sampler; one ends, 3 go on."""
    shape = make_shape(seqs=(4, 8))
    params = [
        SamplingParams(temperature=0.7, top_k=5, seed=1, max_tokens=9),
        SamplingParams(temperature=1.4, top_k=None, top_p=0.8, seed=2, max_tokens=9),
        SamplingParams(temperature=0, max_tokens=9),
        SamplingParams(temperature=1.0, top_k=20, seed=4, max_tokens=9),
    ]
    leaving = 1
    params[leaving] = replace(params[leaving], max_tokens=3)
    prompts = [[5, 6, 7], [1] * 6, [2, 9], [3, 1, 4, 1]]
    solo = [
        make_engine(shape).generate([p], one)[0] for p, one in zip(prompts, params, strict=True)
    ]
    kernels = CountingKernels()
    tiny = make_engine(shape, kernels=kernels)
    num_warm = kernels.num_compiled
    bucket = tiny.plan.pick_decode(4, 16)
    sampler = tiny.graphs.sampler(4, {"top_k_top_p"})

    requests = [tiny.submit(p, one) for p, one in zip(prompts, params, strict=True)]
    for _ in range(1 + 2):
        tiny.engine.step()
    assert [request.is_finished for request in requests] == [False, True, False, False]
    assert sampler.inputs["top_k"].tolist() == [5, 0, 0, 20], "all four rows are in use"
    tiny.engine.step()

    graph = tiny.graphs.models[bucket]
    assert bucket.num_seqs == 4
    assert {name: len(array) for name, array in graph.arrays.items()} == dict.fromkeys(
        graph.arrays, 4
    )
    assert graph.arrays["query_lens"].tolist() == [1, 1, 1, 0]
    assert graph.arrays["slot_mapping_0"][3] == -1
    assert {len(tensor) for tensor in sampler.inputs.values()} == {4}
    temperatures = np.array([0.7, 0.0, 1.0, 0.0], dtype=np.float32)
    assert np.array_equal(sampler.inputs["temperature"].numpy(), temperatures)
    assert sampler.inputs["top_k"].tolist() == [5, 0, 20, 0], "the last row is padding again"
    assert sampler.inputs["top_p"].tolist() == [1.0] * 4

    tiny.run()
    assert [request.output_token_ids for request in requests] == solo
    assert kernels.num_compiled == num_warm
