"""The same request gives the same bits alone, in every batch size and in every bucket."""

from __future__ import annotations

import pytest
import torch

from noria.kernels.cpu import CpuKernels
from noria.runtime.sampling_params import SamplingParams

PROMPT = [5, 17, 3, 42, 8]
PARAMS = SamplingParams(temperature=0, max_tokens=9)


def logits_of(tiny, prompt, neighbours):
    """Return the logits that chose each token of one request, run among neighbours."""
    recorded = []
    inner = tiny.runner.run_graph

    def run_graph(graph, output):
        inner(graph, output)
        for row, scheduled in enumerate(output.requests):
            if scheduled.request_id == request.request_id:
                recorded.append(graph.logits_RV[row].clone())

    others = [tiny.submit(other, PARAMS) for other in neighbours[: len(neighbours) // 2]]
    request = tiny.submit(prompt, PARAMS)
    others += [tiny.submit(other, PARAMS) for other in neighbours[len(neighbours) // 2 :]]
    tiny.runner.run_graph = run_graph
    tiny.run()
    tiny.runner.run_graph = inner
    assert len(others) == len(neighbours)
    return torch.stack(recorded)


@pytest.fixture(scope="module", params=[torch.float32, torch.bfloat16], ids=str)
def engine(request, make_engine, make_shape):
    shape = make_shape(max_num_seqs=9, seqs=tuple(range(1, 10)), tokens=(7, 16, 33, 64))
    return make_engine(shape, kernels=CpuKernels(), dtype=request.param)


@pytest.mark.parametrize("num_neighbours", range(9))
def test_c10_every_batch_size_gives_the_same_bits(engine, num_neighbours):
    neighbours = [[i + 1] * (2 * i + 1) for i in range(num_neighbours)]

    alone = logits_of(engine, PROMPT, [])
    among = logits_of(engine, PROMPT, neighbours)

    assert len(alone) == 9
    assert torch.equal(alone, among)


@pytest.mark.parametrize("tokens", [(8, 64), (16, 64), (31, 64), (64,)], ids=str)
@pytest.mark.parametrize("seqs", [(1, 9), (2, 9), (4, 9), (9,)], ids=str)
def test_every_bucket_gives_the_same_bits(engine, make_engine, make_shape, tokens, seqs):
    shape = make_shape(max_num_seqs=9, seqs=seqs, tokens=tokens, decode_context=(12, 20))
    other = make_engine(shape, kernels=CpuKernels(), dtype=engine.model.dtype)

    assert torch.equal(logits_of(engine, PROMPT, []), logits_of(other, PROMPT, []))


def test_physical_blocks_do_not_matter(engine):
    first = logits_of(engine, PROMPT, [])
    held = [engine.submit([1] * 30, PARAMS) for _ in range(3)]
    engine.engine.step()

    second = logits_of(engine, PROMPT, [[2] * 9])

    assert all(request.is_finished for request in held)
    assert torch.equal(first, second)


def test_a_prompt_gives_the_same_bits_as_the_tokens_that_generated_it(engine):
    """What decode wrote equals what prefill writes for the same tokens."""
    generated = logits_of(engine, PROMPT, [])
    tokens = generated.argmax(-1).tolist()

    for num_tokens in range(1, 9):
        prefilled = logits_of(engine, PROMPT + tokens[:num_tokens], [])
        assert torch.equal(prefilled[0], generated[num_tokens])
