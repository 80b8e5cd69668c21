"""A tiny model, costs that follow a rule, and traffic: what plans of tests are made from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from noria.bucketing.costs.table import CostTable, Device, GraphCost, StepTime
from noria.bucketing.traces.trace import Trace
from noria.runtime.config import Config, parse_config
from noria.runtime.models.sizes import read_sizes_of
from noria.runtime.step_costs import model_shape

MODEL = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
}
SETTINGS: dict[str, Any] = {
    "model": MODEL,
    "max_model_len": 256,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 128,
    "max_num_prefill_seqs": 4,
    "block_size": 16,
}


def make_config(**changes: Any) -> Config:
    """Return a configuration of the tiny model."""
    return parse_config({**SETTINGS, **changes})


def measured(config: Config, **changes: Any) -> CostTable:
    """Return measured steps: a launch of 1 ms, then 0.1 ms a row and 1 us a cached token."""
    prefill = [(n, p) for n in (16, 64, 128) for p in (0, 64, 128)]
    decode = [(s, c) for s in (1, 4, 8) for c in (32, 256)]
    whole: dict[str, Any] = {
        "device": Device("a processor", config.backend, 2),
        "model_name": "tiny",
        "dtype": config.dtype,
        "model": model_shape(config, read_sizes_of(config.model)),
        "num_logits_rows": 4,
        "software": {},
        "prefill": tuple(
            StepTime("p", n, p, 1e-3 + 1e-4 * n + 1e-6 * p, 0.0, 3) for n, p in prefill
        ),
        "decode": tuple(
            StepTime("d", s, c, 1e-3 + 1e-4 * s + 1e-6 * s * c, 0.0, 3) for s, c in decode
        ),
        "graphs": (GraphCost("p", 128, 2.0, 1000), GraphCost("d", 8, 2.0, 1000)),
    }
    return CostTable(**(whole | changes))


def traffic(num: int = 120, seed: int = 0, longest: int = 200) -> Trace:
    """Return requests that come in 20 seconds."""
    random = np.random.default_rng(seed)
    prompts = np.minimum(longest, random.lognormal(3.5, 0.8, num).astype(np.int64) + 1)
    outputs = random.integers(1, 50, num)
    return Trace(prompts, outputs, np.sort(random.uniform(0, 20, num)))


def write_trace(path: Path, trace: Trace) -> Path:
    """Write a trace as CSV, and return its path."""
    from noria.bucketing.traces.csv_traces import trace_csv

    path.write_text(trace_csv(trace))
    return path
