"""Mistakes in how the runtime feeds the kernels, each shown to fail the check meant for it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from noria.kernels.contract import compute_slots
from noria.kernels.nki.target import NkiSimKernels
from noria.kernels.reference import ReferenceKernels
from noria.runtime import model_inputs, warmup
from noria.runtime.sampling_params import SamplingParams

GREEDY = SamplingParams(temperature=0, max_tokens=3)


@pytest.fixture(scope="module")
def shape(make_shape):
    return make_shape(
        max_num_batched_tokens=128,
        max_model_len=128,
        max_num_seqs=2,
        max_num_prefill_seqs=1,
        tokens=(128,),
        seqs=(2,),
        block_size=16,
        num_blocks=16,
    )


def neuron_sim() -> NkiSimKernels:
    return NkiSimKernels()


def reference() -> ReferenceKernels:
    return ReferenceKernels(prefill_tile=128, fold_blocks=128)


TARGETS = pytest.mark.parametrize("kernels", [neuron_sim, reference])


@TARGETS
def test_slots_computed_after_the_remap_are_found(make_engine, shape, monkeypatch, kernels):
    """The table of a padded row is -1 by then, and its slot -1 * block size instead of -1."""
    write_requests = model_inputs._write_requests

    def write_tables_then_slots(arrays, requests, starts, layout):
        lasts = write_requests(arrays, requests, starts, layout)
        if len(arrays["query_lens"]) == len(arrays["input_ids"]):  # a decode step
            size = layout.groups[0].block_size
            rows = zip(arrays["block_table_0"], arrays["positions"], strict=True)
            slots = [compute_slots(table, position[None], size)[0] for table, position in rows]
            arrays["slot_mapping_0"][:] = slots
        return lasts

    tiny = make_engine(shape, kernels=kernels(), dtype=torch.float32)
    assert len(tiny.generate([[1, 2, 3]], GREEDY)[0]) == 3
    monkeypatch.setattr(model_inputs, "_write_requests", write_tables_then_slots)

    assert len(tiny.generate([[1, 2, 3], [4, 5]], GREEDY)) == 2, "no row is padded"
    with pytest.raises(ValueError, match="slot -16 is outside a cache of 256 slots"):
        tiny.generate([[1, 2, 3]], GREEDY)


class ProbeInTheNullBlock(warmup.Probe):
    """A probe that does not know that block 0 is nobody's."""

    def run(self, graph, layout, blocks):
        return super().run(graph, layout, [(0,)] * len(blocks))


def dirty_runs(tiny) -> list[str]:
    """Warm up; return the graphs after whose run the null block was not zero."""
    found = []

    def watched(graph):
        def run():
            graph.run()
            if any(bool(cache[0].any()) for cache in (*tiny.cache.keys, *tiny.cache.values)):
                found.append(graph.bucket.label)

        return replace(graph, run=run)

    for bucket, graph in list(tiny.graphs.models.items()):
        tiny.graphs._models[bucket] = watched(graph)
    vocab_size = tiny.model.architecture.vocab_size
    buckets = tiny.graphs.models
    warmup.WarmUp(
        tiny.graphs, tiny.cache, buckets, vocab_size=vocab_size, dtype=torch.float32
    ).run()
    return found


@TARGETS
def test_a_warm_up_that_writes_the_null_block_is_found(make_engine, shape, monkeypatch, kernels):
    assert dirty_runs(make_engine(shape, kernels=kernels(), dtype=torch.float32)) == []
    monkeypatch.setattr(warmup, "Probe", ProbeInTheNullBlock)

    with pytest.raises(AssertionError, match="no block but the null block"):
        dirty_runs(make_engine(shape, kernels=kernels(), dtype=torch.float32))
