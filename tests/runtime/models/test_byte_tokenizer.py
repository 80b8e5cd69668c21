from __future__ import annotations

from tokenizers import pre_tokenizers

from noria.runtime.models.architecture import Architecture, LayerKind
from noria.runtime.models.byte_tokenizer import byte_tokenizer


def architecture(vocab_size: int, *, bos: int | None = None, eos: int = 0) -> Architecture:
    return Architecture(
        vocab_size=vocab_size,
        hidden_size=8,
        intermediate_size=8,
        layers=(LayerKind(),) * 1,
        num_heads=1,
        num_kv_heads=1,
        head_dim=8,
        bos_token_id=bos,
        eos_token_ids=(eos,),
    )


def test_bytes_take_the_lowest_ids_that_are_not_special() -> None:
    tokenizer = byte_tokenizer(architecture(258, bos=1, eos=2))
    assert tokenizer is not None

    assert tokenizer.encode("\x00\x01") == [0, 3]
    assert tokenizer.encode("A") == [65 + 2]
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (1, 2)
    assert tokenizer.decode([1, 67, 2]) == "A"


def test_every_string_of_bytes_round_trips() -> None:
    tokenizer = byte_tokenizer(architecture(257, eos=256))
    assert tokenizer is not None

    text = "".join(map(chr, range(0x180))) + "中😀"
    assert tokenizer.encode(text) == list(text.encode())
    assert tokenizer.decode(list(text.encode())) == text


def test_ids_beyond_the_bytes_decode_to_their_number() -> None:
    tokenizer = byte_tokenizer(architecture(300))
    assert tokenizer is not None

    assert tokenizer.decode([298, 299]) == "<298><299>"
    assert tokenizer.vocab_size == 300


def test_a_vocabulary_too_small_for_bytes_has_no_tokenizer() -> None:
    assert byte_tokenizer(architecture(256)) is None
    assert byte_tokenizer(architecture(257)) is not None


def test_the_alphabet_is_that_of_byte_level_tokenizers() -> None:
    tokenizer = byte_tokenizer(architecture(257, eos=256))
    assert tokenizer is not None

    backend = tokenizer._backend
    assert {backend.id_to_token(index) for index in range(256)} == set(
        pre_tokenizers.ByteLevel.alphabet()
    )
