"""A tiny model on the cpu for tests of local sets."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from noria.runtime import LLM, SamplingParams

SETTINGS: dict[str, Any] = {
    "model": {
        "vocab_size": 300,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
    },
    "dtype": "float32",
    "max_model_len": 64,
    "max_num_seqs": 2,
    "max_num_batched_tokens": 64,
    "num_batched_tokens_buckets": [16, 64],
    "num_seqs_buckets": [1, 2],
    "num_blocks": 9,
    "block_size": 16,
}
GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
PROMPTS = [[1, 2, 3], [9] * 20]
NUM_GRAPHS = 9
"""Four models, two samplers for each of two numbers of rows, and a copy."""


def tokens_of(llm: LLM) -> list[tuple[int, ...]]:
    return [output.token_ids for output in llm.generate(PROMPTS, GREEDY)]


def num_compilations(llm: LLM) -> int:
    return llm.loaded.graphs.num_compilations


def only_set(root: Path) -> Path:
    (path,) = (one for one in root.iterdir() if one.is_dir())
    return path


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what was warned about; torch traces with records of its own."""
    found = (record for record in caplog.records if record.levelno >= logging.WARNING)
    return [record.getMessage() for record in found]
