from __future__ import annotations

from typing import Any

import pytest
import torch
from teacher_forcing import OneSequence
from tiny_families import CASES, SIZES

from noria.kernels.reference import ReferenceKernels
from noria.runtime.models.architecture import expected_tensors
from noria.runtime.models.decoder import Decoder
from noria.runtime.models.families import read_architecture
from noria.runtime.models.random_weights import RandomTensors

Config = dict[str, object]


def test_tensors_are_a_function_of_seed_and_name(tiny_config: Config) -> None:
    arch = read_architecture(tiny_config)
    first, again, other = (RandomTensors(arch, seed) for seed in (5, 5, 6))

    for name in reversed(list(first)):
        assert torch.equal(first[name], again[name])
        assert not torch.equal(first[name], other[name])
    q, k = (f"model.layers.0.mlp.{name}_proj.weight" for name in ("gate", "up"))
    assert not torch.equal(first[q], first[k])


def test_every_expected_tensor_is_there(tiny_config: Config) -> None:
    arch = read_architecture(tiny_config | {"attention_bias": True})
    tensors = RandomTensors(arch, 0)

    assert {n: tuple(t.shape) for n, t in tensors.items()} == expected_tensors(arch)
    assert len(tensors) == len(expected_tensors(arch))
    assert "model.layers.0.mlp.up_proj.bias" not in tensors
    with pytest.raises(KeyError):
        tensors["model.layers.9.mlp.up_proj.weight"]


@pytest.mark.parametrize("tied", [True, False])
def test_greedy_output_is_lively_and_depends_on_the_prompt(tiny_config: Config, tied: bool) -> None:
    """Neither one token for ever nor the same text after any prompt."""
    transformers: Any = pytest.importorskip("transformers")
    config = {k: v for k, v in tiny_config.items() if k != "torch_dtype"}
    config |= {"tie_word_embeddings": tied, "eos_token_id": None}
    tensors = dict(RandomTensors(read_architecture(config), seed=1))
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**config)).eval()
    model.load_state_dict(tensors, strict=not tied)
    model.tie_weights()

    texts = set()
    for first in range(3, 7):
        ids = torch.tensor([[first, 40, 41, 42]])
        out = model.generate(ids, max_new_tokens=24, do_sample=False, pad_token_id=0)
        texts.add(tuple(out[0, 4:].tolist()))
    assert len(texts) == 4
    assert all(len(set(text)) >= 8 for text in texts)


LIVELY = ("mistral", "smollm3-interval", "qwen2-tied", "qwen3", "phi3", "gemma2", "gemma3")


@pytest.mark.parametrize("case", [*LIVELY, "mixtral", "qwen3-moe"])
def test_models_of_every_family_are_lively(case: str) -> None:
    arch = read_architecture(SIZES | CASES[case])
    tensors = RandomTensors(arch, seed=1)
    model = Decoder(arch, ReferenceKernels(), tensors, dtype=torch.float32, max_model_len=64)

    texts = {generated(model, [first, 40, 41, 42]) for first in range(3, 7)}

    assert len(texts) >= 3
    assert all(len(set(text)) >= 4 for text in texts)


def generated(model: Decoder, prompt: list[int]) -> tuple[int, ...]:
    sequence, token_ids = OneSequence(model, 64, torch.float32), []
    logits = sequence.run(prompt)
    for _ in range(24):
        token_ids.append(int(logits[-1].argmax()))
        logits = sequence.run(token_ids[-1:])
    return tuple(token_ids)


def test_norms_of_gemma_are_1_with_their_offset() -> None:
    arch = read_architecture(SIZES | CASES["gemma2"])

    norm = RandomTensors(arch, seed=1)["model.layers.0.input_layernorm.weight"]

    assert abs(float(norm.mean())) < 0.1
