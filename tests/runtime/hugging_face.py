"""Tiny random models of transformers in fp32, and checkpoints of them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_families import CASES, SIZES
from torch import Tensor

transformers: Any = pytest.importorskip("transformers")


class Twins:
    """Models by the name of their case, each made and written once."""

    def __init__(self, folder: Path) -> None:
        self.root = folder
        self.model = cache(random_model)
        self.folder = cache(self._write)

    def logits(self, name: str, token_ids: Sequence[int]) -> Tensor:
        """Return the logits of every position."""
        with torch.no_grad():
            logits: Tensor = self.model(name)(torch.tensor([list(token_ids)])).logits[0]
        return logits

    def _write(self, name: str) -> Path:
        logging.getLogger("transformers").setLevel(logging.ERROR)
        folder = self.root / name
        self.model(name).save_pretrained(folder)
        return folder


def random_model(name: str) -> Any:
    """Return the model of a case, in which norms, biases and weights are random."""
    torch.manual_seed(0)
    config = SIZES | CASES[name]
    keys = {key: value for key, value in config.items() if key != "model_type"}
    kind = transformers.AutoConfig.for_model(config["model_type"], **keys)
    model = transformers.AutoModelForCausalLM.from_config(kind, attn_implementation="eager").eval()
    offset = 0.0 if config["model_type"].startswith("gemma") else 1.0
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            noise = torch.randn_like(parameter)
            is_norm = "norm" in parameter_name
            parameter.copy_(offset + 0.1 * noise if is_norm else noise * 0.15)
    return model


def assert_close(ours: Tensor, theirs: Tensor) -> None:
    """Logits are the same but for rounding, greedy tokens but for ties, which are rare."""
    size = theirs.abs().max()
    differs = ours.argmax(1) != theirs.argmax(1)
    best = theirs.topk(2).values
    is_tie = best[:, 0] - best[:, 1] <= 2e-5 * size
    assert (ours - theirs).abs().max() <= 1e-5 * size
    assert not (differs & ~is_tie).any()
    assert differs.float().mean() <= 0.01
