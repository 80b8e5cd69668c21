"""What is refused before a model is made."""

from __future__ import annotations

import pytest

from noria.runtime import loading
from noria.runtime.config import parse_config
from noria.runtime.errors import ConfigError
from noria.runtime.loading import check_weights_fit, load_engine
from noria.runtime.models.inline import read_inline

MODEL = {
    "vocab_size": 300,
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "max_position_embeddings": 128,
}
NUM_VALUES = 2 * 300 * 8 + 4 * 8 * 8 + 3 * 16 * 8 + 3 * 8
NEEDED = NUM_VALUES * 2 + 64 * 8 * 4
CONFIG = {"model": MODEL, "backend": "reference", "dtype": "bfloat16", "max_model_len": 64}


def test_a_model_that_just_fits_is_let_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "free_memory_bytes", lambda: NEEDED)
    architecture, _ = read_inline(MODEL)

    check_weights_fit(parse_config(CONFIG), architecture)


def test_a_model_beyond_free_memory_is_refused_with_both_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loading, "free_memory_bytes", lambda: NEEDED - 1)

    with pytest.raises(ConfigError) as caught:
        load_engine(parse_config(CONFIG), lambda *_: None)

    assert str(caught.value) == (
        "model: its weights in bfloat16 and the rope table of max_model_len 64 take "
        f"{NEEDED:,} bytes; {NEEDED - 1:,} bytes of memory are free"
    )
