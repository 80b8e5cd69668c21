"""How long the texts of a step's tokens take, beside the step itself."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from types import MappingProxyType

from ..config import load_config
from ..errors import ConfigError
from ..models.sources import open_model, open_tokenizer
from ..models.tokenizer import StreamDecoder, Tokenizer
from ..output_text import OutputText
from ..stop_strings import StopTable

PLAIN = "The quick brown fox jumps over 13 lazy dogs; def f(x):\n\treturn x ** 2\n"
CJK = (
    "\u6c34\u8eca\u306f\u4f11\u307e\u306a\u3044\u3002\u6c34\u8f66\u4e0d\u505c\uff0c"
    "\ubb3c\ub808\ubc29\uc544\ub294 "
)
EMOJI = "\U0001f600\U0001f469\u200d\U0001f469\u200d\U0001f467\U0001f1ea\U0001f1fa\u2764\ufe0f"
RARE = "\U00013080\U00010348\U0001d518\u16a0e\u0301\U0001f9ff"
"""Characters that few vocabularies have: they become bytes."""

TEXTS: Mapping[str, str] = MappingProxyType(
    {
        "mixed": PLAIN + CJK + EMOJI + RARE,
        "plain": PLAIN,
        "CJK": CJK,
        "emoji": EMOJI,
        "rare characters": RARE,
    }
)
MIN_CHARACTERS = 2000
STOP = ("</answer>", "\n\nUser:", "fox jumped")
"""Strings that could begin in these texts and are in none of them."""


@dataclass(frozen=True, slots=True)
class DetokenizeTime:
    """Seconds per step for one kind of text.

    Attributes:
        text: what it is made of.
        seconds: of one step of all streams, the median.
        fastest: of the fastest step.
        late: of a step than which 5 % are slower.
        tokens_per_character: of the text in this tokenizer.
        is_exact: whether the pieces of every stream joined to the text of all its tokens.
    """

    text: str
    seconds: float
    fastest: float
    late: float
    tokens_per_character: float
    is_exact: bool


def tokenizer_of(config: Path | None, tokenizer: str | None) -> Tokenizer:
    """Return the tokenizer of a configuration, or the one named.

    Raises:
        NoriaError: neither leads to a tokenizer.
    """
    if config is None:
        assert tokenizer is not None
        return open_tokenizer(tokenizer)
    settings = load_config(config)
    found = open_model(settings.model, tokenizer=settings.tokenizer).tokenizer
    if found is None:
        raise ConfigError(f"{config}: the model has no tokenizer")
    return found


def bench_detokenize(
    tokenizer: Tokenizer, *, num_streams: int, num_steps: int
) -> list[DetokenizeTime]:
    """Measure every kind of text, and the mixed one once more with stop strings."""
    rows = [(name, text, ()) for name, text in TEXTS.items()]
    return [
        _measure(tokenizer, name, text, stop, num_streams=num_streams, num_steps=num_steps)
        for name, text, stop in (*rows, ("mixed, 3 stop strings", TEXTS["mixed"], STOP))
    ]


def _measure(
    tokenizer: Tokenizer,
    name: str,
    text: str,
    stop: tuple[str, ...],
    *,
    num_streams: int,
    num_steps: int,
) -> DetokenizeTime:
    text *= -(-MIN_CHARACTERS // len(text))
    ids = tokenizer.encode(text)
    table = StopTable(stop) if stop else None
    outputs = [OutputText(StreamDecoder(tokenizer), table) for _ in range(num_streams)]
    starts = [stream * len(ids) // num_streams for stream in range(num_streams)]
    seconds = []
    for step in range(num_steps):
        tokens = [ids[(start + step) % len(ids)] for start in starts]
        start = time.perf_counter()
        for output, token in zip(outputs, tokens, strict=True):
            output.push(token)
            output.take()
        seconds.append(time.perf_counter() - start)
    is_exact = all(
        _finished(output) == tokenizer.decode(_cycle(ids, start, num_steps))
        for output, start in zip(outputs, starts, strict=True)
    )
    seconds.sort()
    return DetokenizeTime(
        name,
        median(seconds),
        fastest=seconds[0],
        late=seconds[len(seconds) * 95 // 100],
        tokens_per_character=len(ids) / len(text),
        is_exact=is_exact,
    )


def _finished(output: OutputText) -> str:
    output.finish()
    return output.text


def _cycle(ids: Sequence[int], start: int, count: int) -> list[int]:
    return [ids[(start + index) % len(ids)] for index in range(count)]
