from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from noria.runtime.errors import ModelError
from noria.runtime.models.checkpoint import open_checkpoint
from noria.runtime.models.families import read_architecture
from noria.runtime.models.kv_scales import KVScales, read_kv_scales

Config = dict[str, object]
Tensors = dict[str, Tensor]
LAYER = "model.layers.1"
PAIRS = {
    "attention": ("self_attn.k_scale", "self_attn.v_scale"),
    "inner-attention": ("self_attn.attn.k_scale", "self_attn.attn.v_scale"),
    "projections": ("self_attn.k_proj.k_scale", "self_attn.v_proj.v_scale"),
    "fused-projection": ("self_attn.qkv_proj.k_scale", "self_attn.qkv_proj.v_scale"),
    "output": ("self_attn.k_proj.output_scale", "self_attn.v_proj.output_scale"),
}


def scale(value: float, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.tensor(value, dtype=dtype)


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_scales_are_found_under_the_names_of_every_exporter(
    tiny_config: Config, pair: tuple[str, str]
) -> None:
    values = scale(0.25, torch.bfloat16), torch.tensor([0.5])
    tensors = {f"{LAYER}.{name}": value for name, value in zip(pair, values, strict=True)}

    found = read_kv_scales(tensors, read_architecture(tiny_config))

    assert found == (None, KVScales(0.25, 0.5))


def test_one_old_scale_is_of_keys_and_values(tiny_config: Config) -> None:
    tensors = {f"{LAYER}.self_attn.kv_scale": scale(0.25)}

    assert read_kv_scales(tensors, read_architecture(tiny_config))[1] == KVScales(0.25, 0.25)


@pytest.mark.parametrize(
    ("tensors", "shown"),
    [
        ({"self_attn.k_scale": scale(1.0)}, "self_attn.v_scale is missing"),
        ({"self_attn.v_scale": scale(1.0)}, "self_attn.k_scale is missing"),
        ({"self_attn.k_scale": scale(0.0)}, "self_attn.k_scale is 0.0; must be a number above 0"),
        ({"self_attn.k_scale": scale(1e-44)}, "must be a number above 0, from 1.2e-38 to 3.4e+38"),
        ({"self_attn.k_scale": scale(torch.inf)}, "self_attn.k_scale is inf; must be a number"),
        ({"self_attn.k_scale": scale(1.0).double() * 1e60}, "self_attn.k_scale is 1e+60; must"),
        (
            {"self_attn.k_scale": torch.tensor(True)},
            "self_attn.k_scale is of bool; must be a f",
        ),
        ({"self_attn.k_scale": torch.tensor(1j)}, "self_attn.k_scale is of complex64; must be a"),
        ({"self_attn.k_scale": scale(torch.nan)}, "self_attn.k_scale is nan"),
        ({"self_attn.k_scale": torch.ones(2)}, "k_scale is [2]; only one scale per layer"),
        (
            {"self_attn.k_scale": scale(1.0), "self_attn.k_proj.k_scale": scale(2.0)},
            f"{LAYER}.self_attn.k_scale and {LAYER}.self_attn.k_proj.k_scale differ",
        ),
    ],
)
def test_scales_that_cannot_be_used_are_refused_by_name(
    tiny_config: Config, tensors: Tensors, shown: str
) -> None:
    named = {f"{LAYER}.{name}": value for name, value in tensors.items()}

    with pytest.raises(ModelError) as caught:
        read_kv_scales(named, read_architecture(tiny_config))

    assert shown in str(caught.value)


def test_a_checkpoint_may_hold_scales_that_nobody_asked_for(
    tiny_config: Config, tiny_tensors: Tensors, write_checkpoint: Callable[..., Path]
) -> None:
    """K10: other leftovers stay errors."""
    names = [name for pair in PAIRS.values() for name in pair] + ["self_attn.q_scale"]
    scales = {f"{LAYER}.{name}": torch.ones(1) for name in names}

    checkpoint = open_checkpoint(write_checkpoint(tiny_config, tiny_tensors | scales))

    assert set(scales) <= set(checkpoint.tensors)


def test_a_scale_of_no_layer_is_a_leftover(
    tiny_config: Config, tiny_tensors: Tensors, write_checkpoint: Callable[..., Path]
) -> None:
    extra = {"model.layers.2.self_attn.k_scale": torch.ones(1)}

    with pytest.raises(ModelError, match=r"1 tensors that the model does not use .*layers\.2"):
        open_checkpoint(write_checkpoint(tiny_config, tiny_tensors | extra))


KV_ONLY = {
    "quant_method": "compressed-tensors",
    "config_groups": {},
    "kv_cache_scheme": {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False},
}


def test_a_checkpoint_of_which_only_the_cache_is_quantized_is_read(tiny_config: Config) -> None:
    plain = read_architecture(tiny_config)

    assert read_architecture(tiny_config | {"quantization_config": KV_ONLY}) == plain


@pytest.mark.parametrize(
    "changes",
    [
        {"config_groups": {"group_0": {"weights": {"num_bits": 8}}}},
        {"kv_cache_scheme": None},
        {"quant_method": "awq"},
    ],
    ids=["weights", "nothing", "method"],
)
def test_other_quantized_checkpoints_are_refused(
    tiny_config: Config, changes: dict[str, object]
) -> None:
    with pytest.raises(ModelError, match=r"quantization_config '.*' is not supported"):
        read_architecture(tiny_config | {"quantization_config": KV_ONLY | changes})


@pytest.mark.parametrize(
    ("scheme", "shown"),
    [
        (
            KV_ONLY["kv_cache_scheme"] | {"num_bits": 4},
            "num_bits 4 is not supported (supported: ",
        ),
        (KV_ONLY["kv_cache_scheme"] | {"dynamic": True}, "dynamic True is not supported"),
        (KV_ONLY["kv_cache_scheme"] | {"symmetric": False}, "symmetric False is not supported"),
        ({"num_bits": 8, "type": "float"}, "strategy None is not supported (supported: 'tensor')"),
        (["float"], "kv_cache_scheme must be a mapping, not ['float']"),
    ],
    ids=lambda value: "" if isinstance(value, dict | list) else value[:12],
)
def test_caches_quantized_in_another_way_are_refused_by_key(
    tiny_config: Config, scheme: object, shown: str
) -> None:
    block = KV_ONLY | {"kv_cache_scheme": scheme}
    with pytest.raises(ModelError) as caught:
        read_architecture(tiny_config | {"quantization_config": block})

    assert "quantization_config: kv_cache_scheme" in str(caught.value)
    assert shown in str(caught.value)
