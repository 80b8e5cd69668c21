"""The tokenizer that GGUF metadata describes, as Hugging Face tokenizer files hold it.

``tokenizer.ggml.model`` "gpt2" is byte-level BPE, where ``tokenizer.ggml.pre`` names what splits
text before the merges; "llama" is SentencePiece BPE. Other kinds are refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tokenizers
from gguf import TokenType
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, processors

from ..errors import ModelError
from .sentencepiece_bpe import sentencepiece_bpe

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
    if model == "llama":
        _require(metadata, "tokens", "scores", "token_type")
        backend = _sentencepiece(metadata)
    elif model == "gpt2" and pre in SUPPORTED_PRE:
        _require(metadata, "tokens", "merges")
        backend = _byte_level(metadata, pre)
    else:
        supported = ", ".join(SUPPORTED_PRE)
        raise ModelError(
            f"tokenizer {model!r} with pre-tokenizer {pre!r} is not supported in GGUF files "
            f"(supported: 'llama', and 'gpt2' with {supported}); give `tokenizer:` a folder with "
            "tokenizer.json"
        )
    _add_special_tokens(backend, metadata)
    _add_bos(backend, metadata, default=model == "llama" or pre == "llama-bpe")
    return GgufTokenizer(backend, _config(metadata))


def _require(metadata: Mapping[str, Any], *keys: str) -> None:
    for key in keys:
        if not metadata.get(f"tokenizer.ggml.{key}"):
            raise ModelError(f"metadata tokenizer.ggml.{key} is missing")


def _byte_level(metadata: Mapping[str, Any], pre: str) -> tokenizers.Tokenizer:
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ", 1)) for merge in metadata["tokenizer.ggml.merges"]]
    vocab = {token: index for index, token in enumerate(tokens)}
    bpe: Any = models.BPE(vocab, merges, ignore_merges=pre == "llama-bpe")
    backend = tokenizers.Tokenizer(bpe)
    backend.pre_tokenizer = _pre_tokenizer(pre)
    decoder: Any = decoders.ByteLevel()
    backend.decoder = decoder
    return backend


def _sentencepiece(metadata: Mapping[str, Any]) -> tokenizers.Tokenizer:
    tokens, scores, kinds = (
        metadata[f"tokenizer.ggml.{key}"] for key in ("tokens", "scores", "token_type")
    )
    text_kinds = (TokenType.NORMAL, TokenType.USER_DEFINED)
    entries = zip(tokens, scores, kinds, strict=True)
    unknown = metadata.get("tokenizer.ggml.unknown_token_id")
    return sentencepiece_bpe(
        tokens,
        {token: score for token, score, kind in entries if kind in text_kinds},
        unknown=None if unknown is None else tokens[unknown],
        adds_space=metadata.get("tokenizer.ggml.add_space_prefix", True),
    )


def _add_bos(backend: tokenizers.Tokenizer, metadata: Mapping[str, Any], *, default: bool) -> None:
    """Let the tokenizer put a bos first; files that do not say mean ``default``."""
    bos = metadata.get("tokenizer.ggml.bos_token_id")
    if bos is None or not metadata.get("tokenizer.ggml.add_bos_token", default):
        return
    token = metadata["tokenizer.ggml.tokens"][bos]
    processor: Any = processors.TemplateProcessing(
        single=[token, "$A"], pair=[token, "$A", "$B"], special_tokens=[(token, bos)]
    )
    backend.post_processor = processor


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


def _add_special_tokens(backend: tokenizers.Tokenizer, metadata: Mapping[str, Any]) -> None:
    """Mark control tokens special; tokens that a user defined stay visible in decoded text."""
    kinds = metadata.get("tokenizer.ggml.token_type", [])
    for token, kind in zip(metadata["tokenizer.ggml.tokens"], kinds, strict=False):
        if kind == TokenType.CONTROL:
            backend.add_special_tokens([AddedToken(token, normalized=False, special=True)])
        elif kind == TokenType.USER_DEFINED:
            backend.add_tokens([AddedToken(token, normalized=False)])


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
