"""Folders of tiny models with changed configurations, and settings that load them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def settings(folder: Path, **changes: Any) -> dict[str, Any]:
    """Return settings that load a folder of a tiny model."""
    return {
        "model": str(folder),
        "backend": "reference",
        "dtype": "float32",
        "max_model_len": 48,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 16,
        "num_batched_tokens_buckets": [16],
        "num_seqs_buckets": [4],
        "block_size": 4,
        "num_blocks": 60,
        "sampling": {"temperature": 0},
        "sampler_features": ["greedy", "logit_bias", "logprobs"],
    } | changes


def copy_model(
    source: Path, target: Path, config: Mapping[str, Any], drop: Sequence[str] = ()
) -> Path:
    """Copy a folder, with keys of its config.json changed, and some left out."""
    shutil.copytree(source, target)
    path = target / "config.json"
    values = json.loads(path.read_text()) | dict(config)
    path.write_text(json.dumps({k: v for k, v in values.items() if k not in drop}))
    return target
