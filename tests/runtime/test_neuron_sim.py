"""The whole engine on simulated NKI kernels, beside the CPU's."""

from __future__ import annotations

from dataclasses import replace
from importlib.resources import files

import pytest
import torch

from noria.kernels.cpu import CpuKernels
from noria.kernels.nki.target import NkiSimKernels
from noria.kernels.reference import ReferenceKernels
from noria.runtime.llm import LLM
from noria.runtime.model_inputs import fill_step
from noria.runtime.models.architecture import LayerKind
from noria.runtime.sampling_params import SamplingParams
from noria.runtime.yaml_reader import parse_yaml

GREEDY = SamplingParams(temperature=0, max_tokens=6)
PROMPTS = [[1, 2, 3, 4, 5], [7] * 20, [9, 8, 7], [3] * 130]
BF16_TOLERANCE = 2e-2
"""Of the largest logit: bf16 keeps 8 bits, and the two targets round between other operators."""


@pytest.fixture(scope="module")
def shape(make_shape):
    return make_shape(
        max_num_batched_tokens=256,
        max_model_len=256,
        max_num_seqs=2,
        max_num_prefill_seqs=2,
        tokens=(128, 256),
        seqs=(1, 2),
        block_size=16,
        num_blocks=48,
    )


def run(tiny, before_run=lambda graph: None):
    """Return tokens and the logits of the real rows of every step."""
    recorded = []

    def run_graph(graph, output):
        fill_step(graph.arrays, output, graph.spec, tiny.graphs.layout)
        before_run(graph)
        graph.run()
        recorded.append(graph.logits_RV[: len(output.requests)].clone())

    tiny.runner.run_graph = run_graph
    return tiny.generate(PROMPTS, GREEDY), recorded


def test_fp32_gives_the_tokens_of_the_cpu_and_of_the_dense_model(make_engine, shape, dense):
    simulated, _ = run(make_engine(shape, kernels=NkiSimKernels(), dtype=torch.float32))
    native, _ = run(make_engine(shape, kernels=CpuKernels(), dtype=torch.float32))

    assert simulated == native
    assert simulated == [dense.generate(prompt, GREEDY, 6) for prompt in PROMPTS]


def test_windows_fp8_chunks_samples_and_preemption_give_the_tokens_of_the_reference(
    make_engine, make_shape, tiny_architecture
):
    """Layers see everything, or 20 tokens; the pools hold the longest request and no more."""
    prompts = [[7] * 62, [5] * 62, [1, 2, 3], [3] * 130]
    layers = (LayerKind(), LayerKind(window=20))
    architecture = replace(tiny_architecture, layers=layers)
    shape = make_shape(
        max_num_batched_tokens=128,
        max_model_len=256,
        max_num_seqs=4,
        max_num_prefill_seqs=1,
        tokens=(128,),
        seqs=(4,),
        block_size=16,
        num_blocks=10,
    )

    def tokens_of(kernels):
        tiny = make_engine(
            shape,
            kernels=kernels,
            dtype=torch.float32,
            cache_dtype=torch.float8_e4m3fn,
            architecture=architecture,
        )
        params = SamplingParams(temperature=1, seed=5, max_tokens=14, n=2)
        samples = [one for prompt in prompts for one in tiny.engine.submit(prompt, params)]
        tiny.run()
        return [one.output_token_ids for one in samples], sum(x.num_preemptions for x in samples)

    simulated, num_preemptions = tokens_of(NkiSimKernels())
    native, _ = tokens_of(CpuKernels())
    reference, _ = tokens_of(ReferenceKernels(prefill_tile=128, fold_blocks=128))

    assert num_preemptions > 0
    assert simulated == reference == native


def test_bf16_logits_agree_with_the_cpu_within_the_tolerance(make_engine, shape):
    _, simulated = run(make_engine(shape, kernels=NkiSimKernels(), dtype=torch.bfloat16))
    _, native = run(make_engine(shape, kernels=CpuKernels(), dtype=torch.bfloat16))

    # The first prefill: later steps follow tokens that a near tie may have changed.
    first, expected = simulated[0], native[0]
    assert (first - expected).abs().max() <= BF16_TOLERANCE * expected.abs().max()


@pytest.mark.parametrize("value", [float("nan"), 1e30], ids=["nan", "huge"])
def test_poison_in_unused_memory_changes_no_bit(make_engine, shape, value):
    tokens, logits = run(make_engine(shape, kernels=NkiSimKernels(), dtype=torch.float32))
    tiny = make_engine(shape, kernels=NkiSimKernels(), dtype=torch.float32)

    def poison(graph):
        size = shape.block_size
        live = torch.zeros(shape.num_blocks * size, dtype=torch.bool)
        for request in tiny.scheduler.running:
            (table,) = tiny.kv_cache.block_tables(request.request_id)
            for position in range(request.num_computed_tokens):
                live[table.block_ids[position // size] * size + position % size] = True
        for cache in (*tiny.cache.keys, *tiny.cache.values):
            cache.flatten(0, 1)[~live] = value

    poisoned_tokens, poisoned_logits = run(tiny, poison)

    assert poisoned_tokens == tokens
    assert all(torch.equal(a, b) for a, b in zip(logits, poisoned_logits, strict=True))


def test_the_null_block_and_the_last_slot_are_never_written(make_engine, shape):
    tiny = make_engine(shape, kernels=NkiSimKernels(), dtype=torch.float32)

    run(tiny)

    assert all((c[0] == 0).all() for c in (*tiny.cache.keys, *tiny.cache.values))
    assert all((c[-1, -1] == 0).all() for c in (*tiny.cache.keys, *tiny.cache.values))


def test_the_shipped_configuration_generates_what_the_cpu_does():
    text = (files("noria.configs") / "tiny-neuron-sim.yaml").read_text(encoding="utf-8")
    settings = parse_yaml(text, source="tiny-neuron-sim.yaml")
    on_cpu = {**settings, "backend": "cpu", "target": None}
    prompts = ["What is a wheel?", "The sea"]

    simulated, native = (
        [output.token_ids for output in LLM(each).generate(prompts)] for each in (settings, on_cpu)
    )

    assert simulated == native
    assert [len(tokens) for tokens in simulated] == [4, 4]
