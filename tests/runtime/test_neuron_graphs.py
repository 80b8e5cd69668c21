"""What an engine of `neuron` gives to its compiler: every graph is one, static, with our nodes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch
from torch import nn

from noria.kernels.neuron.operators import NAMESPACE
from noria.kernels.neuron.target import NeuronKernels
from noria.kernels.nki.target import NkiSimKernels
from noria.runtime.models.architecture import LayerKind
from noria.runtime.sampling_params import SamplingParams

GREEDY = SamplingParams(temperature=0, max_tokens=6)
PROMPTS = [[1, 2, 3, 4, 5], [7] * 20, [9, 8, 7], [3] * 130]
FEATURES = ("greedy", "top_k_top_p")


class Capturing(NeuronKernels):
    """Kernels that run graphs as they are, and keep what ``torch.export`` makes of them."""

    def __init__(self) -> None:
        super().__init__(device="cpu")
        self.captured: list[tuple[nn.Module, torch.fx.Graph]] = []

    def compile(self, graph, inputs, outputs):
        with torch.no_grad():
            program = torch.export.export(graph, tuple(inputs), strict=False)
        self.captured.append((graph, program.graph))
        return super().compile(graph, inputs, outputs)


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
        sampler_features=FEATURES,
    )


def nodes_of(graph: torch.fx.Graph) -> Counter:
    """Count the nodes of our operators."""
    calls = [str(node.target) for node in graph.nodes if node.op == "call_function"]
    return Counter(name.split(".")[1] for name in calls if name.startswith(NAMESPACE))


def test_an_engine_of_twins_gives_the_tokens_of_the_simulated_one(make_engine, shape):
    kernels = Capturing()

    twins = make_engine(shape, kernels=kernels, dtype=torch.float32).generate(PROMPTS, GREEDY)

    plain = make_engine(shape, kernels=NkiSimKernels(), dtype=torch.float32)
    assert twins == plain.generate(PROMPTS, GREEDY)
    kinds = Counter(type(module).__name__ for module, _ in kernels.captured)
    assert kinds == {"ModelGraph": 4, "Sampler": 4, "CopyBlocks": 1}


@pytest.mark.parametrize("window", [None, 20])
def test_every_attention_is_a_write_and_a_read(make_engine, shape, tiny_architecture, window):
    kernels = Capturing()
    layers = (LayerKind(window=window), LayerKind())
    architecture = replace(tiny_architecture, layers=layers)

    make_engine(shape, kernels=kernels, dtype=torch.float32, architecture=architecture)

    for module, graph in kernels.captured:
        nodes = nodes_of(graph)
        if type(module).__name__ == "ModelGraph":
            attends = [name for name in nodes.elements() if name.startswith("attend_")]
            assert nodes["kv_write"] == len(attends) == 2
            assert [name.endswith("_windowed") for name in sorted(attends)] == [False, bool(window)]
        elif type(module).__name__ == "CopyBlocks":
            assert set(nodes) == {"copy_blocks"}
        else:
            assert not nodes
