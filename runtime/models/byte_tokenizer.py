"""A tokenizer whose tokens are bytes, for models that were made up rather than trained."""

from __future__ import annotations

from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from .architecture import Architecture
from .tokenizer import Tokenizer

NUM_BYTES = 256


def byte_tokenizer(architecture: Architecture) -> Tokenizer | None:
    """Return a tokenizer for ``architecture``, None if its vocabulary cannot hold every byte.

    The bos and eos ids keep their places as special tokens (``<bos>``, ``<eos>``, ...); the
    lowest other ids are the bytes 0 to 255 in order; ids beyond decode to their number
    (``<300>``), so that any output of the model has a text. No bos is added.
    """
    specials = _special_names(architecture)
    free = [index for index in range(architecture.vocab_size) if index not in specials]
    if len(free) < NUM_BYTES:
        return None
    vocab = {name: index for index, name in specials.items()}
    vocab |= dict(zip(_byte_characters(), free, strict=False))
    vocab |= {f"<{index}>": index for index in free[NUM_BYTES:]}
    backend = tokenizers.Tokenizer(models.BPE(vocab, []))
    pre_tokenizer: Any = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizer
    decoder: Any = decoders.ByteLevel()
    backend.decoder = decoder
    backend.add_special_tokens(list(specials.values()))
    eos = architecture.eos_token_ids
    return Tokenizer(
        backend, bos_token_id=architecture.bos_token_id, eos_token_id=eos[0] if eos else None
    )


def _special_names(architecture: Architecture) -> dict[int, str]:
    names = {index: f"<eos{order or ''}>" for order, index in enumerate(architecture.eos_token_ids)}
    if architecture.bos_token_id is not None:
        names.setdefault(architecture.bos_token_id, "<bos>")
    return names


def _byte_characters() -> list[str]:
    """Return the character that byte-level tokenizers write for each byte.

    GPT-2's table: printable Latin-1 characters stand for themselves, the others for the
    characters from U+0100 on, in order.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(NUM_BYTES)]
