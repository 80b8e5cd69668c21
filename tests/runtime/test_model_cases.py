"""Cases of configurations and weights, from a model's folder through the offline interface."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from torch import Tensor

from noria.runtime.conversation import Conversation
from noria.runtime.errors import ModelError
from noria.runtime.llm import LLM
from noria.runtime.sampling_params import SamplingParams

PROMPTS = [[1 + i, 2 * i + 5, 7] + [(i * i + 3 * j) % 61 for j in range(6 * i)] for i in range(4)]
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
Copy = Callable[..., Path]


def settings(folder: Path, **changes: Any) -> dict[str, Any]:
    return {
        "model": str(folder),
        "backend": "reference",
        "dtype": "float32",
        "max_model_len": 48,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 16,
        "num_batched_tokens_buckets": [16],
        "num_seqs_buckets": [4],
        "block_size": 4,
        "num_blocks": 60,
        "sampling": {"temperature": 0},
        "sampler_features": ["greedy", "logit_bias", "logprobs"],
    } | changes


@pytest.fixture
def copied(twins: Any, tmp_path: Path) -> Copy:
    """Copy the folder of a twin, with keys of its config.json changed, or left out as None."""

    def copy(name: str, config: Mapping[str, Any], drop: tuple[str, ...] = ()) -> Path:
        folder = tmp_path / f"model{len(list(tmp_path.iterdir()))}"
        shutil.copytree(twins.folder(name), folder)
        path = folder / "config.json"
        values = json.loads(path.read_text()) | dict(config)
        path.write_text(json.dumps({k: v for k, v in values.items() if k not in drop}))
        return folder

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


ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())[:60]
BOS = 60


def write_tokenizer(folder: Path, *, end_token: str = "", adds_bos: bool = False) -> None:
    """Write a byte-level tokenizer of 60 characters, of which one may end texts, and a bos."""
    vocab = {char: i for i, char in enumerate(ALPHABET)} | {"<s>": BOS}
    backend: Any = Tokenizer(models.BPE(vocab, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<s>"])
    if adds_bos:
        backend.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", BOS)]
        )
    backend.save(str(folder / "tokenizer.json"))
    config = {"bos_token": "<s>"} | ({"eos_token": end_token} if end_token else {})
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("adds_bos", [True, False], ids=["bos", "no-bos"])
def test_h09_an_empty_prompt_is_a_bos_or_an_error_and_harms_no_other(
    copied: Copy, adds_bos: bool
) -> None:
    folder = copied("llama", {})
    write_tokenizer(folder, adds_bos=adds_bos)
    llm = LLM(settings(folder))
    params = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
    (alone,) = llm.generate(["HI"], params)

    outputs = llm.generate(["HI", "", [], Conversation([]), "HI"], params)

    is_good = [output.error is None for output in outputs]
    assert is_good == [True, adds_bos, False, False, True]
    assert {outputs[0].token_ids, outputs[4].token_ids} == {alone.token_ids}
    assert outputs[1].prompt_token_ids == ((BOS,) if adds_bos else ())
    assert len(outputs[1].token_ids) == (3 if adds_bos else 0)


@pytest.mark.parametrize("adds_bos", [True, False], ids=["bos", "no-bos"])
def test_h01_h02_h03_chats_and_texts_have_one_bos_and_refused_chats_fail_alone(
    copied: Copy, adds_bos: bool
) -> None:
    """The template writes it with a system message only, and refuses a role of its own."""
    folder = copied("llama", {})
    write_tokenizer(folder, adds_bos=adds_bos)
    template = (
        "{% if messages[0].role == 'system' %}{{ bos_token }}{% endif %}"
        "{% for m in messages %}{{ raise_exception('NO TOOL') if m.role == 'tool' }}"
        "{{ m.content }}{% endfor %}"
    )
    (folder / "chat_template.jinja").write_text(template)
    llm = LLM(settings(folder))
    params = SamplingParams(temperature=0, max_tokens=2)
    user = {"role": "user", "content": "HI"}
    system, tool = ({"role": role, "content": "A"} for role in ("system", "tool"))
    parts = [{"type": "text", "text": "H"}, {"type": "text", "text": "I"}]
    chats: list[Any] = [[user], [system, user], [user, user], [user | {"content": parts}]]
    chats += [[user, tool], [user | {"content": None}]]

    outputs = llm.chat(chats, params)
    texts = llm.generate(["HI", "<s>HI"], params)

    counts = [output.prompt_token_ids.count(BOS) for output in outputs[:4]]
    assert counts == ([1] * 4 if adds_bos else [0, 1, 0, 0])
    assert outputs[3].prompt_token_ids == outputs[0].prompt_token_ids
    assert texts[0].prompt_token_ids == outputs[0].prompt_token_ids
    assert texts[1].prompt_token_ids.count(BOS) == 1
    assert [output.error is None for output in outputs] == [True] * 4 + [False] * 2
    assert str(outputs[4].error).endswith("chat template: NO TOOL")
    assert str(outputs[5].error).startswith("chat template: ")


@pytest.mark.parametrize("generation", [[2, 5], 5, None], ids=str)
def test_j07_end_tokens_of_every_file_end_a_request_and_are_not_text(
    copied: Copy, generation: object
) -> None:
    """config.json has 2, generation_config.json maybe more, the tokenizer 7."""
    folder = copied("llama", {"eos_token_id": 2})
    write_tokenizer(folder, end_token=ALPHABET[7])
    path = folder / "generation_config.json"
    path.unlink(missing_ok=True)
    if generation is not None:
        path.write_text(json.dumps({"eos_token_id": generation}))
    llm = LLM(settings(folder))
    ends = {2, 7} if generation is None else {2, 5, 7}

    for token_id in (2, 5, 7):
        bias = {token_id: 100.0}
        (output,) = llm.generate(
            [[9]], SamplingParams(temperature=0, logit_bias=bias, max_tokens=3)
        )

        is_end = token_id in ends
        assert output.token_ids == ((token_id,) if is_end else (token_id,) * 3)
        assert output.finish_reason == ("stop" if is_end else "length")
        assert (output.text == "") == is_end
