"""Families through the whole engine: chunked prompts, packed steps, windows that free blocks."""

from __future__ import annotations

import pytest
import torch
from hugging_face import assert_close
from tiny_families import CASES

from noria.kernels.cpu import CpuKernels
from noria.kernels.reference import ReferenceKernels
from noria.runtime.models.sources import open_model
from noria.runtime.sampling_params import SamplingParams

BY_LENGTH = ("llama-dynamic", "llama-longrope", "phi3-longrope-long")
"""Whose frequencies transformers changes with the length of the input."""
NAMES = ["llama-k05-llama3", *(n for n in CASES if n not in BY_LENGTH and "llama" not in n)]
ON_REFERENCE = ["mistral-k12-window", "gemma2", "gemma3", "qwen3-moe-mixed", "mixtral-window"]
PROMPTS = [[1 + i, 2 * i + 5, 7] + [(i * i + 3 * j) % 61 for j in range(6 * i)] for i in range(6)]
PARAMS = SamplingParams(temperature=0, max_tokens=12)


def generate_with_logits(tiny, prompts):
    """Return tokens and, per request, the logits that chose each of them."""
    recorded: dict[int, list[torch.Tensor]] = {}
    inner = tiny.runner.run_graph

    def run_graph(graph, output):
        inner(graph, output)
        for row, scheduled in enumerate(output.requests):
            if scheduled.sampling is not None:
                logits = graph.logits_RV[row].clone()
                recorded.setdefault(scheduled.request_id, []).append(logits)

    tiny.runner.run_graph = run_graph
    requests = [tiny.submit(prompt, PARAMS) for prompt in prompts]
    tiny.run()
    tokens = [request.output_token_ids for request in requests]
    return tokens, [torch.stack(recorded[request.request_id]) for request in requests]


def assert_engine_equals_transformers(twins, make_engine, make_shape, name, kernels):
    source = open_model(twins.folder(name))
    tiny = make_engine(
        make_shape(tokens=(16,), max_num_batched_tokens=16, seqs=(1, 8)),
        kernels=kernels,
        dtype=torch.float32,
        architecture=source.architecture,
        tensors=source.tensors,
    )

    tokens, logits = generate_with_logits(tiny, PROMPTS)

    theirs = [
        twins.logits(name, prompt + generated)[len(prompt) - 1 : -1]
        for prompt, generated in zip(PROMPTS, tokens, strict=True)
    ]
    assert_close(torch.cat(logits), torch.cat(theirs))


@pytest.mark.parametrize("name", NAMES)
def test_the_compiled_engine_equals_transformers(twins, make_engine, make_shape, name):
    """K12: prompts are longer than windows, and their chunks end inside and outside of them."""
    assert_engine_equals_transformers(twins, make_engine, make_shape, name, CpuKernels())


@pytest.mark.parametrize("name", ON_REFERENCE)
def test_the_reference_engine_equals_transformers(twins, make_engine, make_shape, name):
    assert_engine_equals_transformers(twins, make_engine, make_shape, name, ReferenceKernels())


@pytest.mark.parametrize("name", ["mixtral", "qwen3-moe-mixed", "gemma2", "smollm3-window"])
def test_a_request_has_the_same_bits_alone_and_among_others(twins, make_engine, make_shape, name):
    """Other rows and padding reach neither its experts nor its window."""
    source = open_model(twins.folder(name))
    shape = make_shape(tokens=(16,), max_num_batched_tokens=16, seqs=(1, 8))

    def logits_of(prompts):
        tiny = make_engine(
            shape,
            kernels=CpuKernels(),
            dtype=torch.float32,
            architecture=source.architecture,
            tensors=source.tensors,
        )
        return generate_with_logits(tiny, prompts)[1]

    (alone,), among = logits_of(PROMPTS[5:]), logits_of(PROMPTS)

    assert torch.equal(alone, among[5])
