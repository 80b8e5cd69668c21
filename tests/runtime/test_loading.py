"""What is refused before a model is made."""

from __future__ import annotations

import pytest

from noria.runtime import model_checks
from noria.runtime.config import parse_config
from noria.runtime.errors import ConfigError
from noria.runtime.loading import load_engine
from noria.runtime.model_checks import check_weights_fit
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
ALL = ["greedy", "top_k_top_p", "logit_bias", "structured_output"]
CONFIG = {"model": MODEL, "backend": "reference", "dtype": "bfloat16", "max_model_len": 64}


def test_a_model_that_just_fits_is_let_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_checks, "free_memory_bytes", lambda: NEEDED)
    architecture, _ = read_inline(MODEL)

    check_weights_fit(parse_config(CONFIG), architecture)


def test_a_model_beyond_free_memory_is_refused_with_both_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(model_checks, "free_memory_bytes", lambda: NEEDED - 1)

    with pytest.raises(ConfigError) as caught:
        load_engine(parse_config(CONFIG), lambda *_: None)

    assert str(caught.value) == (
        "model: its weights in bfloat16 and the rope table of max_model_len 64 take "
        f"{NEEDED:,} bytes; {NEEDED - 1:,} bytes of memory are free"
    )


def test_more_requests_than_memory_has_logits_for_are_refused_at_once() -> None:
    config = parse_config(CONFIG | {"max_num_seqs": 2**31 - 1})

    with pytest.raises(ConfigError, match=r"max_num_seqs: 2147483647 rows of 300 logits take 2,57"):
        load_engine(config, lambda *_: pytest.fail("nothing is compiled"))


@pytest.mark.parametrize(
    ("settings", "shown"),
    [
        ({"stop_token_ids": [300]}, "sampling.stop_token_ids holds 300; token ids of this model"),
        ({"logit_bias": {300: 1}}, "sampling.logit_bias holds 300; token ids of this model are"),
        ({"bad_word_ids": [[1], [2, 300]]}, "sampling.bad_word_ids holds 300; token ids of this"),
        ({"structured_output": {"regex": "("}}, "sampling.structured_output.regex: unclosed group"),
        ({"structured_output": {"choice": ["a"]}}, "sampling.structured_output: the model has no"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_sampling_that_no_request_can_have_is_refused_before_anything_is_compiled(
    settings: dict[str, object], shown: str
) -> None:
    has_end = "choice" not in str(settings)
    model = MODEL | ({"eos_token_id": 0} if has_end else {})
    config = parse_config(CONFIG | {"model": model, "sampler_features": ALL, "sampling": settings})

    with pytest.raises(ConfigError) as caught:
        load_engine(config, lambda *_: pytest.fail("nothing is compiled"))

    assert str(caught.value).startswith(shown)
