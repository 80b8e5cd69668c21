"""H04: increments of any tokens, in tokenizers of every kind, join to the text of the whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers

from noria.runtime.bench.detokenize import bench_detokenize
from noria.runtime.models.architecture import Architecture, LayerKind
from noria.runtime.models.byte_tokenizer import byte_tokenizer
from noria.runtime.models.tokenizer import MAX_HELD_TOKENS, StreamDecoder, Tokenizer
from noria.runtime.models.tokenizer_files import load_tokenizer
from noria.runtime.output_text import OutputText
from noria.runtime.stop_strings import StopTable

PIECES = ["\u2581", "\u2581Hello", "wor", "ld", "\u2581\u2581", "\xe9", "\ufffd", "\u2581a", "!"]
PIECES += ["##ing", "end</w>", "."]
SPECIALS = ["<s>", "</s>"]


def with_decoder(decoder: Any, *, has_bytes: bool = False) -> Tokenizer:
    """A tokenizer of pieces; special tokens come last."""
    names = [f"<0x{value:02X}>" for value in range(256)] if has_bytes else []
    vocab = {piece: index for index, piece in enumerate([*names, *PIECES])}
    backend: Any = tokenizers.Tokenizer(models.BPE(vocab, [], byte_fallback=has_bytes))
    if decoder is not None:
        backend.decoder = decoder
    backend.add_special_tokens(SPECIALS)
    return Tokenizer(backend)


def byte_level() -> Tokenizer:
    """The bytes in order, then tokens of several, then one that is no bytes."""
    characters = byte_characters()
    emoji = "".join(characters[byte] for byte in "\U0001f600".encode())
    pieces = [*characters, emoji[:2], emoji[2:], emoji[1:], "\u4e2d"]
    backend: Any = tokenizers.Tokenizer(models.BPE({p: i for i, p in enumerate(pieces)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(SPECIALS)
    return Tokenizer(backend)


def byte_characters() -> list[str]:
    """How byte-level tokenizers write each byte."""
    architecture = Architecture(
        vocab_size=257,
        hidden_size=8,
        intermediate_size=8,
        layers=(LayerKind(),),
        num_heads=1,
        num_kv_heads=1,
        head_dim=8,
        eos_token_ids=(256,),
    )
    tokenizer = byte_tokenizer(architecture)
    assert tokenizer is not None
    return [tokenizer._backend.id_to_token(index) for index in range(256)]


def fallback(*more: Any) -> Any:
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *more]
    return decoders.Sequence(parts)


BYTE_LEVEL = byte_level()
BYTE_FALLBACK = with_decoder(fallback(decoders.Strip(" ", 1, 0)), has_bytes=True)
TOKENIZERS = {
    "byte level": BYTE_LEVEL,
    "byte fallback that strips a space": BYTE_FALLBACK,
    "byte fallback": with_decoder(fallback(), has_bytes=True),
    "metaspace": with_decoder(decoders.Metaspace()),
    "word pieces": with_decoder(decoders.WordPiece()),
    "word ends": with_decoder(decoders.BPEDecoder()),
    "none": with_decoder(None),
}


def increments(tokenizer: Tokenizer, ids: Sequence[int], **options: bool) -> list[str]:
    stream = StreamDecoder(tokenizer, **options)
    return [*(stream.push(token) for token in ids), stream.flush()]


@pytest.mark.parametrize("kind", TOKENIZERS)
@settings(max_examples=150)
@given(data=st.data(), skips=st.booleans())
def test_h04_increments_of_any_tokens_join_to_the_whole(
    kind: str, data: st.DataObject, skips: bool
) -> None:
    """Valid or not; also one id that is no token."""
    tokenizer = TOKENIZERS[kind]
    size = tokenizer.vocab_size
    # Bytes of an emoji, so that whole and broken characters come up.
    often = st.sampled_from([0xF0, 0x9F, 0x98, 0x80, 0x41, size - 3, size - 1])
    ids = data.draw(st.lists(often | st.integers(0, size), max_size=40))

    parts = increments(tokenizer, ids, skip_special_tokens=skips)

    assert "".join(parts) == tokenizer.decode(ids, skip_special_tokens=skips)


@given(text=st.text(max_size=30))
def test_h04_increments_of_text_hold_whole_characters_only(text: str) -> None:
    """No increment but the characters of the text."""
    parts = increments(BYTE_LEVEL, BYTE_LEVEL.encode(text))

    assert "".join(parts) == text
    if "�" not in text:
        assert not any("�" in part for part in parts)


def test_h04_an_emoji_in_three_tokens_then_text_cjk_and_a_combining_accent() -> None:
    """No replacement character, and nothing of the emoji before its last token."""
    emoji = {"level": [0xF0, 0x9F, 257], "fallback": [0xF0, 0x9F, 0x98, 0x80]}
    for tokenizer, ids in ((BYTE_LEVEL, emoji["level"]), (BYTE_FALLBACK, emoji["fallback"])):
        text = list("x\u4e2de\u0301!".encode())
        parts = increments(tokenizer, [*ids, *text])

        assert "".join(parts) == "\U0001f600x\u4e2de\u0301!"
        assert parts[: len(ids) - 1] == [""] * (len(ids) - 1)


def test_h04_an_emoji_comes_out_at_its_last_token() -> None:
    ids = BYTE_LEVEL.encode("a😀é")

    assert increments(BYTE_LEVEL, ids) == ["a", "", "", "", "😀", "e", "", "́", ""]


def test_h04_text_that_ends_inside_a_character_is_flushed() -> None:
    """As in the one-shot decode."""
    ids = BYTE_LEVEL.encode("a😀")[:-1]

    assert increments(BYTE_LEVEL, ids) == ["a", "", "", "", "�"]


def test_j01_a_stop_string_of_byte_tokens_is_found_when_their_run_has_ended() -> None:
    """One byte more could make the run invalid, and there would be no newline."""
    hello, newline, piece = 256 + PIECES.index("\u2581Hello"), 0x0A, 256 + PIECES.index("wor")

    ended, cut = (OutputText(StreamDecoder(BYTE_FALLBACK), StopTable(["\n"])) for _ in range(2))
    assert [ended.push(token) for token in (hello, newline, piece)] == [False, False, True]
    assert [cut.push(token) for token in (hello, newline)] == [False, False]
    assert cut.finish()

    assert ended.text == cut.text == "Hello"
    assert (ended.stop_num_tokens, cut.stop_num_tokens) == (3, 2)


def test_h04_an_id_that_is_no_token_does_not_end_a_run_of_bytes() -> None:
    """Nor does a special token that is skipped; a run is whole or invalid as one."""
    unknown, special = BYTE_FALLBACK.vocab_size, BYTE_FALLBACK.vocab_size - 1

    for between in (unknown, special):
        parts = increments(BYTE_FALLBACK, [0x41, between, 0xF0, 256])
        assert parts == ["", "", "", "\ufffd\ufffd ", ""]
    assert increments(BYTE_LEVEL, [0x41, *[10**6] * 1000]) == ["A", *[""] * 1001]


def test_special_tokens_have_a_text_where_they_are_asked_for() -> None:
    ids = [*BYTE_LEVEL.encode("a</s>b")]

    assert "".join(increments(BYTE_LEVEL, ids)) == "ab"
    assert "".join(increments(BYTE_LEVEL, ids, skip_special_tokens=False)) == "a</s>b"


def test_an_endless_run_of_invalid_bytes_is_not_held_for_ever() -> None:
    parts = increments(BYTE_LEVEL, [0xFF] * 100)

    assert "".join(parts) == "\ufffd" * 100
    assert len("".join(parts[:50])) >= 50 - 17


@pytest.mark.parametrize("token", [0x41, 0xFF, 0xF0], ids=["text", "invalid", "half a character"])
def test_a_token_costs_the_same_however_long_the_text_is(
    monkeypatch: pytest.MonkeyPatch, token: int
) -> None:
    tokenizer, decoded = byte_level(), [0]
    decode = Tokenizer.decode

    def noting(self: Tokenizer, ids: Sequence[int], **options: bool) -> str:
        decoded.append(len(ids))
        return decode(self, ids, **options)

    monkeypatch.setattr(Tokenizer, "decode", noting)
    increments(tokenizer, [token] * 500)

    assert 0 < max(decoded) <= 2 * (MAX_HELD_TOKENS + 1)


@pytest.fixture(scope="module")
def smollm2(smollm2_tokenizer: Path) -> Tokenizer:
    tokenizer = load_tokenizer(smollm2_tokenizer)
    assert tokenizer is not None
    return tokenizer


@settings(
    max_examples=100,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_h04_increments_of_a_real_tokenizer_join(smollm2: Tokenizer, data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.integers(0, smollm2.vocab_size - 1), max_size=40))
    text = smollm2.encode(data.draw(st.text(max_size=20)))

    for tokens in (ids, text, text[1:], text[:-1] + ids):
        assert "".join(increments(smollm2, tokens)) == smollm2.decode(tokens)


@pytest.mark.parametrize("kind", ["byte level", "byte fallback that strips a space"])
def test_h04_a_step_of_256_streams_takes_a_few_milliseconds_at_most(
    kind: str, record_property: Callable[[str, object], None]
) -> None:
    """With stop strings; it takes half of one where no other uses the core."""
    rows = bench_detokenize(TOKENIZERS[kind], num_streams=256, num_steps=40)

    assert all(row.is_exact for row in rows)
    slowest = max(row.fastest for row in rows)
    record_property("microseconds of a step of 256 streams", round(1e6 * slowest))
    assert slowest < 5e-3
