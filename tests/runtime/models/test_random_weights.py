from __future__ import annotations

from typing import Any

import pytest
import torch

from noria.runtime.errors import ModelError
from noria.runtime.models.architecture import Architecture, expected_tensors
from noria.runtime.models.random_weights import RandomTensors, read_inline

Config = dict[str, object]


def test_tensors_are_a_function_of_seed_and_name(tiny_config: Config) -> None:
    arch = Architecture.from_config(tiny_config)
    first, again, other = (RandomTensors(arch, seed) for seed in (5, 5, 6))

    for name in reversed(list(first)):
        assert torch.equal(first[name], again[name])
        assert not torch.equal(first[name], other[name])
    q, k = (f"model.layers.0.mlp.{name}_proj.weight" for name in ("gate", "up"))
    assert not torch.equal(first[q], first[k])


def test_every_expected_tensor_is_there(tiny_config: Config) -> None:
    arch = Architecture.from_config(tiny_config | {"attention_bias": True})
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
    tensors = dict(RandomTensors(Architecture.from_config(config), seed=1))
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


def test_an_inline_model_reads_config_keys_and_a_seed(tiny_config: Config) -> None:
    del tiny_config["torch_dtype"], tiny_config["model_type"], tiny_config["architectures"]

    assert read_inline(tiny_config | {"seed": 7}, "model")[1] == 7
    arch, seed = read_inline(tiny_config, "model")
    assert (arch.hidden_size, seed) == (32, 0)


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({"hidden_sise": 3}, "model: unknown key 'hidden_sise'; did you mean 'hidden_size'?"),
        ({"zzz": 3}, "model: unknown key 'zzz' (known: architectures, "),
        ({"seed": -1}, "model: seed must be an integer from 0, not -1"),
        ({"seed": "a"}, "model: seed must be an integer from 0, not 'a'"),
        ({"vocab_size": None}, "model: vocab_size must be a positive integer"),
        ({"model_type": "gpt2"}, "model: model_type 'gpt2' is not supported"),
    ],
)
def test_an_inline_model_is_strict(tiny_config: Config, changes: Config, shown: str) -> None:
    """B01: nothing misspelt is skipped."""
    del tiny_config["torch_dtype"]

    with pytest.raises(ModelError) as caught:
        read_inline(tiny_config | changes, "model")

    assert shown in str(caught.value)
