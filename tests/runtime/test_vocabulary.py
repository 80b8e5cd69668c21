"""Every logit is that of a token, whatever a target's matrices are padded to."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from noria.kernels.cpu import CpuKernels
from noria.kernels.reference import ReferenceKernels
from noria.runtime.models.architecture import expected_tensors
from noria.runtime.sampling_params import SamplingParams

PROMPTS = [[1, 2, 3], [60], [5] * 9]


def tensors_with_negative_logits(architecture):
    """Weights whose logits are all far below 0, which a padded column of the head would win."""
    generator = torch.Generator().manual_seed(0)
    tensors = {
        name: 0.01 * torch.randn(shape, generator=generator, dtype=torch.float64)
        for name, shape in expected_tensors(architecture).items()
    }
    tensors["model.embed_tokens.weight"][:, 0] = 50
    tensors["model.norm.weight"].fill_(1)
    tensors["lm_head.weight"][:, 0] -= 1
    return tensors


@pytest.mark.parametrize("kernels", [ReferenceKernels, CpuKernels])
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0, max_tokens=20),
        SamplingParams(temperature=1000, seed=1, max_tokens=20),
        SamplingParams(temperature=1000, top_k=60, top_p=0.999, seed=1, max_tokens=20),
    ],
    ids=["greedy", "hot", "hot with filters"],
)
def test_h08_ids_are_tokens_where_all_logits_are_negative(
    make_engine, tiny_architecture, kernels, params
):
    """61 tokens: no matrix is that wide."""
    architecture = replace(tiny_architecture, tie_word_embeddings=False)
    tiny = make_engine(
        kernels=kernels(),
        dtype=torch.float32,
        architecture=architecture,
        tensors=tensors_with_negative_logits(architecture),
    )

    outputs = tiny.generate(PROMPTS, params)

    assert all(0 <= token_id < 61 for ids in outputs for token_id in ids)
    logits = [graph.logits_RV for graph in tiny.graphs.models.values()]
    assert all(rows.shape[1] == 61 for rows in logits)
    assert any(bool((rows < -1).all()) for rows in logits), "else a 0 of padding would not win"
