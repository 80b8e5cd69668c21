"""Cases of tokenizers and chat templates, from a model's folder through the offline interface."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from model_folders import copy_model, settings
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from noria.runtime.cli import main
from noria.runtime.conversation import Conversation
from noria.runtime.llm import LLM
from noria.runtime.sampling_params import SamplingParams

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
    twins: Any, tmp_path: Path, adds_bos: bool
) -> None:
    folder = copy_model(twins.folder("llama"), tmp_path / "model", {})
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
    twins: Any, tmp_path: Path, adds_bos: bool
) -> None:
    """The template writes it with a system message only, and refuses a role of its own."""
    folder = copy_model(twins.folder("llama"), tmp_path / "model", {})
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


def test_chats_with_tools_are_the_same_in_a_list_a_stream_and_a_prompt_file(
    twins: Any, tmp_path: Path
) -> None:
    folder = copy_model(twins.folder("llama"), tmp_path / "model", {})
    write_tokenizer(folder)
    template = (
        "{% for t in tools or [] %}{{ t.function.name }}{% endfor %}{{ messages[0].content }}"
    )
    (folder / "chat_template.jinja").write_text(template)
    config, prompts, results = (tmp_path / name for name in ("c.yaml", "p.jsonl", "r.jsonl"))
    config.write_text(json.dumps(settings(folder, sampling={"temperature": 0, "max_tokens": 4})))
    messages = [{"role": "user", "content": "HI"}]
    tools = [{"type": "function", "function": {"name": "F", "parameters": {"type": "object"}}}]
    prompts.write_text(json.dumps({"messages": messages, "tools": tools}) + "\n")
    llm = LLM(config)

    (plain,) = llm.chat(messages)
    (output,) = llm.chat(messages, tools=tools)
    pieces = [*llm.stream(Conversation(messages, tools))]
    ran = CliRunner().invoke(
        main, ["generate", *map(str, (config, "--prompts", prompts, "-o", results))]
    )

    assert ran.exit_code == 0, ran.output
    assert output.prompt_token_ids == (*map(ALPHABET.index, "FHI"),)
    assert plain.prompt_token_ids == output.prompt_token_ids[1:]
    assert "".join(pieces) == output.text
    assert tuple(json.loads(results.read_text())["token_ids"]) == output.token_ids


@pytest.mark.parametrize("generation", [[2, 5], 5, None], ids=str)
def test_j07_end_tokens_of_every_file_end_a_request_and_are_not_text(
    twins: Any, tmp_path: Path, generation: object
) -> None:
    """config.json has 2, generation_config.json maybe more, the tokenizer 7."""
    folder = copy_model(twins.folder("llama"), tmp_path / "model", {"eos_token_id": 2})
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
