from __future__ import annotations

import pytest
import torch
from torch import nn

from noria.kernels.cpu import CpuKernels
from noria.kernels.reference import ReferenceKernels
from noria.runtime.errors import BackendError
from noria.runtime.model_graphs import ModelGraph
from noria.runtime.sampling_params import SamplingParams
from noria.runtime.warmup import WarmUp

ODD_ROWS = (1, 2, 3, 5, 6, 7, 9)


class RowDependentLinear(nn.Module):
    """A linear layer whose bits depend on the number of rows, on every processor.

    Plain F.linear is one too, but which row counts differ follows from the processor.
    """

    def __init__(self, weight_OI, bias_O, out_dtype):
        super().__init__()
        self.register_buffer("weight", weight_OI.clone())
        self.out_dtype = out_dtype

    def forward(self, x_RI):
        y_RO = nn.functional.linear(x_RI, self.weight)
        return (y_RO * (1 + x_RI.shape[0] * 2.0**-16)).to(self.out_dtype)


def row_dependent_kernels():
    """The mutation: CPU kernels with linear layers that are not batch-invariant."""
    kernels = CpuKernels()
    kernels.make_linear = RowDependentLinear
    return kernels


def report(tiny):
    vocab_size = tiny.model.architecture.vocab_size
    warm_up = WarmUp(
        tiny.graphs,
        tiny.cache,
        tiny.graphs.models,
        vocab_size=vocab_size,
        dtype=tiny.model.dtype,
    )
    warm_up.run()
    return warm_up.report


@pytest.fixture
def odd_shape(make_shape):
    return make_shape(max_num_seqs=9, seqs=ODD_ROWS, tokens=(5, 7, 64), max_num_prefill_seqs=3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_cpu_kernels_give_the_same_bits_in_every_graph(make_engine, odd_shape, dtype):
    tiny = make_engine(odd_shape, kernels=CpuKernels(), dtype=dtype)

    result = report(tiny)

    assert result.is_invariant
    assert result.num_graphs == len(tiny.plan.buckets) == 10


def test_the_check_fails_on_linears_that_depend_on_the_row_count(make_engine, odd_shape):
    tiny = make_engine(odd_shape, kernels=row_dependent_kernels(), dtype=torch.float32)

    result = report(tiny)

    assert not result.is_invariant
    labels = {label.split("_")[1] for label in result.differing if label.startswith("decode")}
    assert labels >= {f"s{rows}" for rows in ODD_ROWS}
    assert "batch invariance: no" in str(result)
    assert "0.0001 of the largest" in str(result)


def test_c03_warm_up_leaves_the_whole_cache_as_it_was(make_engine, odd_shape):
    tiny = make_engine(odd_shape, kernels=CpuKernels(), dtype=torch.float32)

    report(tiny)

    assert all((cache == 0).all() for cache in (*tiny.cache.keys, *tiny.cache.values))


@pytest.mark.parametrize(
    "settings",
    [
        {"block_size": 1, "num_blocks": 2},
        {"block_size": 1, "num_blocks": 9},
        {"tokens": (1,), "max_num_batched_tokens": 1},
        {"tokens": (2,), "max_num_batched_tokens": 2, "max_model_len": 2},
        {"decode_context": (2,), "prefill_context": (1, 2)},
    ],
    ids=["one-slot", "block-of-one", "one-token-prefill", "shortest", "small-contexts"],
)
def test_the_probe_fits_the_smallest_engines(make_engine, make_shape, settings):
    tiny = make_engine(make_shape(**settings))

    result = report(tiny)

    assert result.num_graphs == len(tiny.plan.buckets)
    assert all((cache == 0).all() for cache in (*tiny.cache.keys, *tiny.cache.values))


def test_every_graph_and_sampler_runs_before_serving(make_engine, make_shape):
    ran = []

    class Counting(ReferenceKernels):
        def compile(self, graph, inputs, outputs):
            run, number = super().compile(graph, inputs, outputs), len(compiled)
            compiled.append(number)
            return lambda: (ran.append(number), run())

    compiled = []
    tiny = make_engine(make_shape(), kernels=Counting())
    assert ran == []

    report(tiny)

    assert set(ran) == set(compiled)
    num_copies = len(tiny.cache.groups)
    assert len(compiled) == len(tiny.plan.buckets) + len(tiny.graphs.samplers) + num_copies


def test_warm_up_leaves_out_rows_that_hold_no_probe(make_engine, make_shape):
    """3 requests of 3 tokens in 64 rows, of which a target with chunks of 128 computes all."""
    asked = {}

    class Rows(ReferenceKernels):
        def compile(self, graph, inputs, outputs):
            run = super().compile(graph, inputs, outputs)
            return RowsOf(run, asked) if isinstance(graph, ModelGraph) else run

    class RowsOf:
        def __init__(self, run, asked):
            self.run, self.asked, self.number = run, asked, len(asked)
            asked[self.number] = None

        def run_rows(self, num_rows):
            self.asked[self.number] = num_rows
            self.run()

    shape = make_shape(tokens=(8, 64), seqs=(2, 8), max_num_prefill_seqs=3)
    tiny = make_engine(shape, kernels=Rows())

    report(tiny)

    rows = dict(zip((bucket.label for bucket in tiny.plan.buckets), asked.values(), strict=True))
    assert [rows[bucket.label] for bucket in tiny.plan.prefill] == [6, 9]
    assert [rows[bucket.label] for bucket in tiny.plan.decode] == [2, 8]


@pytest.mark.parametrize("culprit", range(1, 5))
def test_a_difference_in_any_one_graph_is_found(make_engine, make_shape, culprit):
    class OneOff(ReferenceKernels):
        num_models = 0

        def compile(self, graph, inputs, outputs):
            run = super().compile(graph, inputs, outputs)
            if not outputs or outputs[0].dim() == 1:
                return run
            self.num_models += 1
            return run if self.num_models != culprit + 1 else lambda: (run(), outputs[0].add_(1e-6))

    shape = make_shape(tokens=(16, 32, 64), seqs=(4, 8))

    result = report(make_engine(shape, kernels=OneOff()))

    tiny = make_engine(shape)
    assert len(tiny.plan.buckets) == 5
    assert tiny.plan.buckets[culprit].label in result.differing
    assert report(tiny).differing == ()


@pytest.mark.parametrize("tile", [4, 16])
def test_requests_that_start_at_tile_borders_run_and_warm_up(make_engine, make_shape, dense, tile):
    kernels = ReferenceKernels(prefill_tile=tile, fold_blocks=8)
    tiny = make_engine(make_shape(tokens=(16, 64)), kernels=kernels)

    result = report(tiny)
    greedy = SamplingParams(temperature=0, max_tokens=6)
    prompts = [[1 + i, 2 * i + 5, 7] + [i] * (3 * i) for i in range(7)]
    tokens = tiny.generate(prompts, greedy)

    assert result.num_graphs == len(tiny.plan.buckets)
    assert tokens == [dense.generate(prompt, greedy, 6) for prompt in prompts]


def test_b14_a_graph_that_does_not_compile_is_named_with_what_to_lower(make_engine, make_shape):
    class OutOfMemory(ReferenceKernels):
        def compile(self, graph, inputs, outputs):
            if outputs and outputs[0].shape[0] == 8:
                raise RuntimeError("out of memory: 7 GiB\nlong trace")
            return super().compile(graph, inputs, outputs)

    with pytest.raises(BackendError) as error:
        make_engine(make_shape(), kernels=OutOfMemory())

    text = str(error.value)
    assert text.startswith("graph decode_s8_c64 failed to compile: out of memory: 7 GiB; lower")
    assert "max_num_seqs" in text
    assert "\n" not in text
