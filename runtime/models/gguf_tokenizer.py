"""The tokenizer that GGUF metadata describes, as Hugging Face tokenizer files hold it.

Byte-level BPE only (``tokenizer.ggml.model`` "gpt2"); what splits text before the merges is
named by ``tokenizer.ggml.pre``. Other kinds are refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tokenizers
from gguf import TokenType
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, processors

from ..errors import ModelError

LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SUPPORTED_PRE = ("smollm", "gpt-2", "llama-bpe")


@dataclass(frozen=True, slots=True)
class GgufTokenizer:
    """A tokenizer and the content of its ``tokenizer_config.json``."""

    backend: tokenizers.Tokenizer
    config: Mapping[str, object]


def build_tokenizer(metadata: Mapping[str, Any]) -> GgufTokenizer:
    """Build the tokenizer of a GGUF file.

    Raises:
        ModelError: the kind of tokenizer is not supported, or parts of it are missing.
    """
    model = metadata.get("tokenizer.ggml.model")
    pre = metadata.get("tokenizer.ggml.pre")
    if model != "gpt2" or pre not in SUPPORTED_PRE:
        supported = ", ".join(SUPPORTED_PRE)
        raise ModelError(
            f"tokenizer {model!r} with pre-tokenizer {pre!r} is not supported in GGUF files "
            f"(supported: 'gpt2' with {supported}); give `tokenizer:` a folder with tokenizer.json"
        )
    missing = [key for key in ("tokens", "merges") if not metadata.get(f"tokenizer.ggml.{key}")]
    if missing:
        raise ModelError(f"metadata tokenizer.ggml.{missing[0]} is missing")
    return GgufTokenizer(_backend(metadata, pre), _config(metadata))


def _backend(metadata: Mapping[str, Any], pre: str) -> tokenizers.Tokenizer:
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ", 1)) for merge in metadata["tokenizer.ggml.merges"]]
    vocab = {token: index for index, token in enumerate(tokens)}
    bpe: Any = models.BPE(vocab, merges, ignore_merges=pre == "llama-bpe")
    backend = tokenizers.Tokenizer(bpe)
    backend.pre_tokenizer = _pre_tokenizer(pre)
    backend.decoder = decoders.ByteLevel()
    _add_special_tokens(backend, tokens, metadata.get("tokenizer.ggml.token_type", []))
    bos = metadata.get("tokenizer.ggml.bos_token_id")
    if bos is not None and metadata.get("tokenizer.ggml.add_bos_token", pre == "llama-bpe"):
        backend.post_processor = processors.TemplateProcessing(
            single=f"{tokens[bos]} $A", pair=None, special_tokens=[(tokens[bos], bos)]
        )
    return backend


def _pre_tokenizer(pre: str) -> Any:
    if pre == "gpt-2":
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    if pre == "smollm":
        first: Any = pre_tokenizers.Digits(individual_digits=True)
        last: Any = pre_tokenizers.ByteLevel(add_prefix_space=False)
    else:
        first = pre_tokenizers.Split(Regex(LLAMA3_SPLIT), "isolated")
        last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([first, last])


def _add_special_tokens(backend: tokenizers.Tokenizer, tokens: list[str], kinds: list[int]) -> None:
    """Mark control tokens special; tokens that a user defined stay visible in decoded text."""
    by_kind: dict[int, list[AddedToken]] = {TokenType.CONTROL: [], TokenType.USER_DEFINED: []}
    for token, kind in zip(tokens, kinds, strict=False):
        if kind in by_kind:
            special = kind == TokenType.CONTROL
            by_kind[kind].append(AddedToken(token, normalized=False, special=special))
    backend.add_special_tokens(by_kind[TokenType.CONTROL])
    backend.add_tokens(by_kind[TokenType.USER_DEFINED])


def _config(metadata: Mapping[str, Any]) -> dict[str, object]:
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    config: dict[str, object] = {}
    for name, key in (("bos_token", "bos"), ("eos_token", "eos"), ("unk_token", "unknown")):
        index = metadata.get(f"tokenizer.ggml.{key}_token_id")
        if index is not None:
            config[name] = tokens[index]
    template = metadata.get("tokenizer.chat_template")
    if template is not None:
        config["chat_template"] = template
    return config
