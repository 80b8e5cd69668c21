from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from teacher_forcing import OneSequence
from tiny_families import SIZES
from torch import Tensor

from noria.kernels.cpu import CpuKernels
from noria.kernels.kernel_set import KernelSet
from noria.kernels.reference import ReferenceKernels
from noria.runtime import LLM, SamplingParams
from noria.runtime.config import parse_config
from noria.runtime.errors import ConfigError, ModelError
from noria.runtime.kv_cache_dtype import cache_dtype, cache_scales
from noria.runtime.models.decoder import Decoder
from noria.runtime.models.kv_scales import KVScales
from noria.runtime.models.sources import LoadedModel, open_model

MODEL = {key: value for key, value in SIZES.items() if key != "pad_token_id"}
FP8 = {"kv_cache_dtype": "fp8_e4m3"}
TOKEN_IDS = [(i * i + 3 * i + 1) % 61 for i in range(32)]


def config(**changes: Any) -> Any:
    settings = {"model": MODEL, "backend": "reference", "max_model_len": 64}
    return parse_config(settings | FP8 | changes)


def source(**scales: float) -> LoadedModel:
    """An inline model, with these scales in every layer."""
    model = open_model(MODEL)
    tensors = dict(model.tensors)
    for layer in range(2):
        for name, value in scales.items():
            tensors[f"model.layers.{layer}.self_attn.{name}"] = torch.tensor(value)
    return LoadedModel(model.architecture, tensors, None, ())


def test_auto_stores_what_activations_are() -> None:
    assert cache_dtype(config(kv_cache_dtype="auto")) == torch.float32
    assert cache_dtype(config(kv_cache_dtype="auto", dtype="bfloat16")) == torch.bfloat16
    assert cache_dtype(config()) == torch.float8_e4m3fn


def test_scales_come_from_the_checkpoint(caplog: pytest.LogCaptureFixture) -> None:
    found = cache_scales(config(), source(k_scale=0.5, v_scale=0.25))

    assert found == (KVScales(0.5, 0.25),) * 2
    assert not caplog.records


def test_scales_are_not_read_for_a_cache_that_has_none() -> None:
    assert cache_scales(config(kv_cache_dtype="auto"), source(k_scale=-1.0)) is None


def test_missing_scales_are_1_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    found = cache_scales(config(), source())

    assert found == (KVScales(1.0, 1.0),) * 2
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage() == (
        "kv_cache_dtype: fp8_e4m3, but the model has no k_scale and v_scale for any layer (first: "
        "layer 0); 1.0 is used there, and results may be poor"
    )


def test_a_scale_that_cannot_be_used_is_refused_with_the_setting() -> None:
    with pytest.raises(ModelError, match=r"^kv_cache_dtype: fp8_e4m3: .*k_scale is -1\.0"):
        cache_scales(config(), source(k_scale=-1.0, v_scale=1.0))


def test_fp8_beside_float64_is_refused() -> None:
    shown = "kv_cache_dtype: is fp8_e4m3, but dtype is float64; must be auto"
    with pytest.raises(ConfigError, match=shown):
        config(dtype="float64")


SCALES = KVScales(0.25, 0.5)
TARGETS = {"reference": ReferenceKernels, "cpu": CpuKernels}


class RoundedFirst(OneSequence):
    """An exact cache whose keys and values were rounded to scaled FP8 before."""

    def attend(self, layer: int, q_RHD: Tensor, k_RKD: Tensor, v_RKD: Tensor) -> Tensor:
        return super().attend(layer, q_RHD, rounded(k_RKD, SCALES.k), rounded(v_RKD, SCALES.v))


def rounded(x: Tensor, scale: float) -> Tensor:
    return (x / scale).clamp(-448, 448).to(torch.float8_e4m3fn).float() * scale


def decoder(target: Callable[[], KernelSet], scales: KVScales | None) -> Decoder:
    model = source()
    return Decoder(
        model.architecture,
        target(),
        model.tensors,
        dtype=torch.float32,
        max_model_len=64,
        kv_scales=None if scales is None else [scales] * 2,
    )


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_an_fp8_cache_changes_what_rounding_of_keys_and_values_changes(
    target: Callable[[], KernelSet],
) -> None:
    exact = OneSequence(decoder(target, None), 32, torch.float32).run(TOKEN_IDS)
    expected = RoundedFirst(decoder(target, None), 32, torch.float32).run(TOKEN_IDS)

    found = OneSequence(decoder(target, SCALES), 32, torch.float8_e4m3fn).run(TOKEN_IDS)

    size = exact.abs().max()
    assert (found - expected).abs().max() <= 1e-5 * size
    assert (exact - expected).abs().max() > 1e-2 * size


def test_an_engine_over_an_fp8_cache_serves_and_warns_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    limits = {"max_num_seqs": 2, "max_num_batched_tokens": 64, "block_size": 4}
    llm = LLM({"model": MODEL, "backend": "reference", "max_model_len": 64, **limits} | FP8)

    (output,) = llm.generate([[5, 6, 7]], SamplingParams(temperature=0, max_tokens=8))

    assert len(output.token_ids) == 8
    assert {cache.dtype for cache in llm.loaded.cache.keys} == {torch.float8_e4m3fn}
    assert [r.name for r in caplog.records].count("noria.runtime.kv_cache_dtype") == 1
