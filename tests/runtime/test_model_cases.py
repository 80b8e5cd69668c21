"""Cases of configurations and weights, from a model's folder through the offline interface."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from model_folders import copy_model, settings
from safetensors.torch import load_file, save_file
from torch import Tensor

from noria.runtime.errors import ModelError
from noria.runtime.llm import LLM
from noria.runtime.sampling_params import SamplingParams

PROMPTS = [[1 + i, 2 * i + 5, 7] + [(i * i + 3 * j) % 61 for j in range(6 * i)] for i in range(4)]
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
Copy = Callable[..., Path]


@pytest.fixture
def copied(twins: Any, tmp_path: Path) -> Copy:
    """Copy the folder of a twin, with another config.json."""

    def copy(name: str, config: Mapping[str, Any], drop: tuple[str, ...] = ()) -> Path:
        target = tmp_path / f"model{len(list(tmp_path.iterdir()))}"
        return copy_model(twins.folder(name), target, config, drop)

    return copy


def assert_equals_twin(twins: Any, name: str, folder: Path, **changes: Any) -> None:
    """Greedy tokens and their logprobs are those of transformers, in chunks and then decoded."""
    llm = LLM(settings(folder, **changes))
    params = SamplingParams(temperature=0, max_tokens=10, logprobs=0, ignore_eos=True)

    outputs = llm.generate(PROMPTS, params)

    for prompt, output in zip(PROMPTS, outputs, strict=True):
        rows = slice(len(prompt) - 1, -1)
        theirs = twins.logits(name, [*prompt, *output.token_ids])[rows].log_softmax(1)
        assert output.token_ids == tuple(theirs.argmax(1).tolist())
        found = torch.tensor([one.logprob for one in output.completions[0].logprobs or ()])
        assert (found - theirs.max(1).values).abs().max() < 1e-4


def refusal(folder: Path, **changes: Any) -> str:
    """Return the one line that refuses a model before any graph is compiled."""
    compiled = []
    with pytest.raises(ModelError) as caught:
        LLM(settings(folder, **changes), progress=lambda *graph: compiled.append(graph))
    assert compiled == []
    assert "\n" not in str(caught.value)
    return str(caught.value)


def rewrite(folder: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    """Change a folder's tensors in place."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def split(folder: Path) -> str:
    """Cut the weights into two shards; return the name of the second."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    weight_map = {}
    for shard in (1, 2):
        part = {n: t for i, (n, t) in enumerate(tensors.items()) if i % 2 == shard - 1}
        file = f"model-0000{shard}-of-00002.safetensors"
        save_file(part, folder / file)
        weight_map |= dict.fromkeys(part, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return file


def test_k01_shards_are_whole_or_refused_before_anything_is_compiled(twins, copied: Copy) -> None:
    whole, missing, cut, integer = (copied("llama", {}) for _ in range(4))
    second = {split(folder) for folder in (whole, missing, cut, integer)}.pop()
    (missing / second).unlink()
    (cut / second).write_bytes((cut / second).read_bytes()[:-10])
    tensors = load_file(integer / second)
    name = next(iter(tensors))
    save_file(tensors | {name: tensors[name].int()}, integer / second)

    assert_equals_twin(twins, "llama", whole)
    count = len(tensors)
    assert f"1 of 2 weight files missing ({second})" in refusal(missing)
    assert f"{count} of " in refusal(missing)
    assert f"1 weight files damaged ({second}: " in refusal(cut)
    assert f"{name} is I32" in refusal(integer)


def test_k03_a_tied_head_is_the_embedding_whether_the_file_has_it_or_not(
    twins, copied: Copy
) -> None:
    without, equal, nested = (copied("llama-k03-tied", {}) for _ in range(3))
    rewrite(without, lambda tensors: tensors.pop(HEAD, None))
    rewrite(equal, lambda tensors: tensors.update({HEAD: tensors[EMBEDDING].clone()}))
    text_config = json.loads((nested / "config.json").read_text())
    assert text_config["tie_word_embeddings"]
    outer = {key: text_config.pop(key) for key in ("model_type", "architectures")}
    (nested / "config.json").write_text(json.dumps(outer | {"text_config": text_config}))

    for folder in (without, equal, nested):
        assert_equals_twin(twins, "llama-k03-tied", folder)


@pytest.mark.parametrize("spelling", ["type", "rope_type"])
def test_k05_llama3_scaling_is_used_in_either_spelling(twins, copied: Copy, spelling: str) -> None:
    scaling = {
        spelling: "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    old = {"rope_theta": 10000.0, "rope_scaling": scaling}
    folder = copied("llama-k05-llama3", old, ("rope_parameters",))

    assert_equals_twin(twins, "llama-k05-llama3", folder)


def test_k07_head_dim_is_given_or_hidden_size_over_heads(twins, copied: Copy) -> None:
    assert_equals_twin(twins, "llama-k07-head-dim", twins.folder("llama-k07-head-dim"))
    assert_equals_twin(twins, "llama", copied("llama", {"head_dim": None}))

    uneven = copied("llama", {"head_dim": None, "num_attention_heads": 5})

    assert "hidden_size 32" in refusal(uneven)
    assert "5" in refusal(uneven)


def test_k09_kv_heads_divide_heads_or_are_as_many(twins, copied: Copy) -> None:
    assert_equals_twin(twins, "llama-mha", copied("llama-mha", {}, ("num_key_value_heads",)))

    for heads, kv_heads in [(5, 2), (4, 0), (4, 8)]:
        config = {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": 8}
        message = refusal(copied("llama", config))
        assert str(kv_heads) in message
        assert str(heads) in message or kv_heads == 0


@pytest.mark.parametrize("name", ["qwen2-k10-qkv-bias", "llama-k10-attention-bias"])
def test_k10_biases_are_used_or_missed_by_name(twins, copied: Copy, name: str) -> None:
    bias = "model.layers.1.self_attn.k_proj.bias"
    lacking, spare = copied(name, {}), copied("llama", {})
    rewrite(lacking, lambda tensors: tensors.pop(bias))
    rewrite(spare, lambda tensors: tensors.update({bias: torch.ones(16)}))

    assert_equals_twin(twins, name, twins.folder(name))
    assert bias in refusal(lacking)
    assert f"does not use ({bias})" in refusal(spare)


@pytest.mark.parametrize("block_size", [3, 4])
@pytest.mark.parametrize("num_tokens", [6, 16], ids="chunks-of-{}".format)
@pytest.mark.parametrize(
    ("name", "window"), [("mistral-k12-window", 4), ("mistral", None), ("mistral", 100)]
)
def test_k12_a_window_counts_its_own_token_in_any_block_size_and_chunk(
    twins, copied: Copy, name: str, window: int | None, block_size: int, num_tokens: int
) -> None:
    """On a block edge and off it; null and a window beyond every request see all tokens."""
    sizes = {"max_num_batched_tokens": num_tokens, "num_batched_tokens_buckets": [num_tokens]}

    folder = copied(name, {"sliding_window": window})

    assert_equals_twin(twins, name, folder, block_size=block_size, **sizes)


@pytest.mark.parametrize("spelling", ["type", "rope_type"])
def test_k14_linear_scaling_is_used_and_none_is_none_and_a_mystery_is_refused(
    twins, copied: Copy, spelling: str
) -> None:
    def scaled(name: str, scaling: object) -> Path:
        old = {"rope_theta": 10000.0, "rope_scaling": scaling}
        return copied(name, old, ("rope_parameters",))

    linear = scaled("llama-linear", {spelling: "linear", "factor": 4.0})

    assert_equals_twin(twins, "llama-linear", linear)
    for none in (None, {}):
        assert_equals_twin(twins, "llama", scaled("llama", none))
    assert "mystery" in refusal(scaled("llama", {spelling: "mystery", "factor": 2.0}))
