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
from tokenizers import (
    AddedToken,
    Regex,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from ..errors import ModelError
from ..value_text import value_text
from .sentencepiece_bpe import sentencepiece_bpe

LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2_SPLIT = LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")
"""The same, with single digits."""
LIST_ITEMS: Mapping[str, tuple[type, ...]] = {
    "tokens": (str,),
    "merges": (str,),
    "scores": (int, float),
    "token_type": (int,),
}
SUPPORTED_PRE = ("smollm", "gpt-2", "llama-bpe", "qwen2")


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
        _check(metadata)
        backend = _sentencepiece(metadata)
    elif model == "gpt2" and pre in SUPPORTED_PRE:
        _require(metadata, "tokens", "merges")
        _check(metadata)
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


def _check(metadata: Mapping[str, Any]) -> None:
    """Refuse lists and ids that a damaged file holds, by the name of their key."""
    lists = {key: metadata.get(f"tokenizer.ggml.{key}") for key in LIST_ITEMS}
    for key, items in lists.items():
        if items is not None and not _is_list_of(LIST_ITEMS[key], items):
            raise ModelError(
                f"metadata tokenizer.ggml.{key} is no list of {LIST_ITEMS[key][-1].__name__}"
            )
    num_tokens = len(lists["tokens"] or ())
    for key in ("scores", "token_type"):
        items = lists[key]
        if items and len(items) != num_tokens:
            has = f"has {len(items)} items for {num_tokens} tokens"
            raise ModelError(f"metadata tokenizer.ggml.{key} {has}")
    for merge in lists["merges"] or ():
        if " " not in merge:
            shown = value_text(merge)
            raise ModelError(f"metadata tokenizer.ggml.merges has {shown}; must be two tokens")
    _check_ids(metadata, num_tokens)


def _check_ids(metadata: Mapping[str, Any], num_tokens: int) -> None:
    for name in ("bos", "eos", "unknown"):
        key = f"tokenizer.ggml.{name}_token_id"
        index = metadata.get(key)
        if index is None:
            continue
        if type(index) is not int or not 0 <= index < num_tokens:
            fits = f"must be an id of the {num_tokens} tokens"
            raise ModelError(f"metadata {key} is {value_text(index)}; {fits}")


def _is_list_of(kinds: tuple[Any, ...], items: object) -> bool:
    return isinstance(items, list) and all(type(item) in kinds for item in items)


def _byte_level(metadata: Mapping[str, Any], pre: str) -> tokenizers.Tokenizer:
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ", 1)) for merge in metadata["tokenizer.ggml.merges"]]
    vocab = {token: index for index, token in enumerate(tokens)}
    try:
        bpe: Any = models.BPE(vocab, merges, ignore_merges=pre == "llama-bpe")
    except Exception as error:  # the library raises plain Exception
        reason = " ".join(str(error).split())
        raise ModelError(
            f"metadata tokenizer.ggml.merges does not fit the tokens: {reason}"
        ) from None
    backend = tokenizers.Tokenizer(bpe)
    backend.pre_tokenizer = _pre_tokenizer(pre)
    if pre == "qwen2":
        composed: Any = normalizers.NFC()
        backend.normalizer = composed
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
        split = QWEN2_SPLIT if pre == "qwen2" else LLAMA3_SPLIT
        first = pre_tokenizers.Split(Regex(split), "isolated")
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
