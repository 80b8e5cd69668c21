"""Every family against Hugging Face transformers, on tiny random models in fp32.

The model is written by ``save_pretrained`` and read back by our loader.
"""

from __future__ import annotations

import logging
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from teacher_forcing import teacher_forced_logits
from tiny_families import CASES, SIZES

from noria.kernels.cpu import CpuKernels
from noria.kernels.reference import ReferenceKernels
from noria.runtime.models.decoder import Decoder
from noria.runtime.models.sources import open_model

transformers: Any = pytest.importorskip("transformers")

NUM_TOKENS = 64
CHUNKS = (11, 13)
TARGETS = {"reference": ReferenceKernels, "cpu": CpuKernels}
TOKEN_IDS = [(i * i + 3 * i + 1) % 61 for i in range(NUM_TOKENS)]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory):
    """Checkpoint folder and logits of a case, made once per case."""

    @cache
    def made(name: str) -> tuple[Path, torch.Tensor]:
        model = hugging_face(SIZES | CASES[name])
        folder = tmp_path_factory.mktemp(name)
        logging.getLogger("transformers").setLevel(logging.ERROR)
        model.save_pretrained(folder)
        with torch.no_grad():
            return folder, model(torch.tensor([TOKEN_IDS])).logits[0]

    return made


def hugging_face(config: dict[str, Any]) -> Any:
    """Return a random transformers model in fp32."""
    torch.manual_seed(0)
    keys = {key: value for key, value in config.items() if key != "model_type"}
    kind = transformers.AutoConfig.for_model(config["model_type"], **keys)
    model = transformers.AutoModelForCausalLM.from_config(kind, attn_implementation="eager").eval()
    offset = 0.0 if config["model_type"].startswith("gemma") else 1.0
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn_like(parameter)
            is_norm = "norm" in name
            parameter.copy_(offset + 0.1 * noise if is_norm else noise * 0.15)
    return model


def decoder(folder: Path, target: type) -> Decoder:
    source = open_model(folder)
    return Decoder(
        source.architecture,
        target(),
        source.tensors,
        dtype=torch.float32,
        max_model_len=NUM_TOKENS,
    )


def assert_same_choices(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    """Greedy tokens are the same but for ties, which are rare."""
    differs = ours.argmax(1) != theirs.argmax(1)
    best = theirs.topk(2).values
    is_tie = best[:, 0] - best[:, 1] <= 2e-5 * theirs.abs().max()
    assert not (differs & ~is_tie).any()
    assert differs.float().mean() <= 0.01


WINDOWED = [name for name in CASES if "window" in name or "gemma" in name]
ON_CPU = [name for name in CASES if name not in WINDOWED]
PAIRS = [*((name, "reference") for name in CASES), *((name, "cpu") for name in ON_CPU)]


@pytest.mark.parametrize(("name", "target"), PAIRS, ids=map("-".join, PAIRS))
def test_logits_and_greedy_tokens_equal_transformers(checkpoints, name, target):
    """K03, K05, K07, K10, K12: in the cases whose names say so."""
    folder, theirs = checkpoints(name)

    ours = teacher_forced_logits(decoder(folder, TARGETS[target]), TOKEN_IDS, chunks=CHUNKS)

    assert (ours - theirs).abs().max() <= 1e-5 * theirs.abs().max()
    assert_same_choices(ours, theirs)
