"""Every family against Hugging Face transformers, on tiny random models in fp32.

The model is written by ``save_pretrained`` and read back by our loader.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hugging_face import assert_close
from teacher_forcing import OneSequence, teacher_forced_logits
from tiny_families import CASES, SIZES

from noria.kernels.cpu import CpuKernels
from noria.kernels.kernel_set import KernelSet
from noria.kernels.reference import ReferenceKernels
from noria.runtime.models.architecture import Architecture
from noria.runtime.models.decoder import Decoder
from noria.runtime.models.families import read_architecture
from noria.runtime.models.random_weights import RandomTensors
from noria.runtime.models.rope_scaling import Rope
from noria.runtime.models.sources import open_model

NUM_TOKENS = 64
CHUNKS = (11, 13)
TARGETS = {"reference": ReferenceKernels, "cpu": CpuKernels}
TOKEN_IDS = [(i * i + 3 * i + 1) % 61 for i in range(NUM_TOKENS)]


def decoder(folder: Path, target: Callable[[], KernelSet]) -> Decoder:
    source = open_model(folder)
    return build(source.architecture, source.tensors, target)


def build(
    architecture, tensors, target: Callable[[], KernelSet], dtype: torch.dtype = torch.float32
) -> Decoder:
    return Decoder(architecture, target(), tensors, dtype=dtype, max_model_len=NUM_TOKENS)


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize("name", CASES)
def test_logits_and_greedy_tokens_equal_transformers(twins, name, target):
    """K03, K05, K07, K10, K12: in the cases whose names say so."""
    model = decoder(twins.folder(name), target)

    ours = teacher_forced_logits(model, TOKEN_IDS, chunks=CHUNKS)

    assert_close(ours, twins.logits(name, TOKEN_IDS))


def changed(architecture: Architecture, **kind: Any) -> Architecture:
    """Change the kind of every layer."""
    return replace(architecture, layers=tuple(replace(k, **kind) for k in architecture.layers))


CHANGES: dict[str, tuple[str, Callable[[Architecture], Architecture]]] = {
    "k12-window-too-large": ("mistral-k12-window", lambda a: changed(a, window=5)),
    "k12-no-window": ("qwen2-k12-window", lambda a: changed(a, window=None)),
    "rope-in-all-layers": ("smollm3", lambda a: changed(a, rope=Rope(2e6))),
    "k05-no-scaling": ("llama-k05-llama3", lambda a: changed(a, rope=Rope())),
    "whole-heads-rotate": ("phi3-longrope-short", lambda a: changed(a, rope=Rope())),
    "local-theta": ("gemma3", lambda a: changed(a, rope=Rope(1e6))),
    "no-head-norm": ("qwen3", lambda a: replace(a, qk_norm=False)),
    "silu": ("gemma2", lambda a: replace(a, activation="silu")),
    "no-norm-offset": ("gemma2", lambda a: replace(a, norm_offset=0.0)),
    "no-output-norms": ("gemma2", lambda a: replace(a, sandwich_norms=False)),
    "no-embedding-scale": ("gemma2", lambda a: replace(a, embedding_scale=1.0)),
    "scale-of-head-dim": ("gemma2", lambda a: replace(a, attention_scale=None)),
    "no-attention-cap": ("gemma2", lambda a: replace(a, attention_softcap=None)),
    "no-logits-cap": ("gemma2", lambda a: replace(a, logits_softcap=None)),
    "raw-expert-weights": (
        "qwen3-moe",
        lambda a: changed(a, experts=replace(a.layers[0].experts, normalize=False)),
    ),
    "one-expert": (
        "mixtral",
        lambda a: changed(a, experts=replace(a.layers[0].experts, num_per_token=1)),
    ),
}


@pytest.mark.parametrize(("name", "change"), CHANGES.values(), ids=CHANGES)
def test_a_wrong_definition_would_be_noticed(twins, name, change):
    """A control of the comparison above: each part that a family adds counts."""
    source, theirs = open_model(twins.folder(name)), twins.logits(name, TOKEN_IDS)
    model = build(change(source.architecture), source.tensors, ReferenceKernels)

    ours = teacher_forced_logits(model, TOKEN_IDS, chunks=(NUM_TOKENS,))

    assert (ours - theirs).abs().max() > 1e-3 * theirs.abs().max()


def test_a_changed_weight_would_be_noticed(twins):
    source, theirs = open_model(twins.folder("llama")), twins.logits("llama", TOKEN_IDS)
    tensors = dict(source.tensors)
    name = "model.layers.1.mlp.down_proj.weight"
    tensors[name] = tensors[name] * 1.001
    model = build(source.architecture, tensors, ReferenceKernels)

    ours = teacher_forced_logits(model, TOKEN_IDS, chunks=(NUM_TOKENS,))

    assert (ours - theirs).abs().max() > 1e-5 * theirs.abs().max()


@pytest.mark.parametrize("name", ["mixtral", "qwen3-moe-mixed", "gemma2"])
def test_what_padding_holds_changes_no_bit(twins, name):
    """Rows that are no tokens reach no expert and no cache."""
    model = decoder(twins.folder(name), CpuKernels)

    alone, among = (
        OneSequence(model, NUM_TOKENS, torch.float32).run(TOKEN_IDS[:20], padding)
        for padding in ([0] * 12, [60 - i for i in range(12)])
    )

    assert torch.equal(alone, among)


@pytest.mark.parametrize("name", ["qwen3", "phi3-longrope-short", "gemma2", "qwen3-moe-mixed"])
def test_both_targets_compute_in_bfloat16_alike(name):
    architecture = read_architecture(SIZES | CASES[name])
    tensors = RandomTensors(architecture, seed=1)

    cpu, reference = (
        teacher_forced_logits(
            build(architecture, tensors, target, torch.bfloat16),
            TOKEN_IDS[:32],
            chunks=CHUNKS,
            cache_dtype=torch.bfloat16,
        )
        for target in (CpuKernels, ReferenceKernels)
    )

    assert cpu.dtype == torch.float32
    assert (cpu - reference).square().mean().sqrt() < 0.02 * reference.square().mean().sqrt()
