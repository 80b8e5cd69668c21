"""From a configuration and its model to what planners ask; files of costs."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

from noria.bucketing.costs.model_shape import ModelShape
from noria.bucketing.costs.table import CostTable, Device, StepTime
from noria.runtime.config import Config, parse_config
from noria.runtime.errors import ConfigError, ModelError
from noria.runtime.models.architecture import (
    Architecture,
    Experts,
    LayerKind,
    expected_tensors,
)
from noria.runtime.settings import Backend
from noria.runtime.step_costs import CONTEXT_READS, model_shape, read_costs, write_costs

DENSE = Architecture(
    vocab_size=300,
    hidden_size=64,
    intermediate_size=96,
    layers=(LayerKind(),) * 4,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
)
EXPERTS = Experts(8, 2, 40, True)
TABLE = CostTable(
    device=Device("a processor", "cpu", 2),
    model_name="a model",
    dtype="float32",
    model=ModelShape(
        num_layers=1,
        hidden_size=8,
        intermediate_size=8,
        num_heads=1,
        num_kv_heads=1,
        head_dim=8,
        vocab_size=9,
    ),
    num_logits_rows=1,
    software={},
    prefill=(StepTime("prefill_t8_c16", 8, 0, 0.5, 0.0, 1),),
    decode=(StepTime("decode_s1_c16", 1, 16, 0.25, 0.0, 1),),
)


def make_config(**settings: object) -> Config:
    return parse_config({"model": "any", "max_model_len": 64, **settings})


def matrices(architecture: Architecture) -> int:
    """Count the weights of products: all tensors of two dimensions but the embedding."""
    shapes = expected_tensors(replace(architecture, tie_word_embeddings=False))
    embedding = architecture.vocab_size * architecture.hidden_size
    return sum(math.prod(shape) for shape in shapes.values() if len(shape) == 2) - embedding


@pytest.mark.parametrize(
    "layers",
    [(LayerKind(),) * 4, (LayerKind(), *(LayerKind(experts=EXPERTS),) * 3)],
    ids=["dense", "experts"],
)
@pytest.mark.parametrize(("dtype", "num_bytes"), [("float32", 4), ("bfloat16", 2)])
def test_a_shape_has_the_weights_of_its_architecture(
    layers: tuple[LayerKind, ...], dtype: str, num_bytes: int
) -> None:
    architecture = replace(DENSE, layers=layers)

    shape = model_shape(make_config(dtype=dtype), architecture)

    # So many rows touch every expert.
    assert shape.read_bytes(10**6) == num_bytes * matrices(architecture)
    assert shape.num_layers == 4


def test_a_step_multiplies_with_the_experts_of_a_row_only() -> None:
    dense = model_shape(make_config(), DENSE)
    layers = (LayerKind(experts=EXPERTS),) * 4

    routed = model_shape(make_config(), replace(DENSE, layers=layers))

    mlp, router, expert = 3 * 64 * 96, 64 * 8, 3 * 64 * 40
    difference = routed.linear_flop(1, 1) - dense.linear_flop(1, 1)
    assert difference == 2 * 4 * (router + 2 * expert - mlp)


def test_windows_are_those_of_the_layers() -> None:
    layers = (LayerKind(window=8), LayerKind(), LayerKind(window=8), LayerKind())

    assert model_shape(make_config(), replace(DENSE, layers=layers)).windows == (8, 8)


@pytest.mark.parametrize(("stored", "num_bytes"), [("auto", 2), ("fp8_e4m3", 1)])
def test_cached_values_have_the_bytes_of_the_cache(stored: str, num_bytes: int) -> None:
    config = make_config(dtype="bfloat16", kv_cache_dtype=stored)

    assert model_shape(config, DENSE).kv_token_bytes == 4 * 2 * 2 * 16 * num_bytes


def test_experts_that_differ_are_refused() -> None:
    layers = (LayerKind(experts=EXPERTS), LayerKind(experts=replace(EXPERTS, num=4)))

    with pytest.raises(ModelError, match="experts differ from layer to layer"):
        model_shape(make_config(), replace(DENSE, layers=layers))


def test_every_backend_says_what_its_attention_pays_for() -> None:
    assert set(CONTEXT_READS) == set(get_args(Backend))
    assert {reads.prefix for reads in CONTEXT_READS.values()} == {"exact"}
    assert {reads.decode.num_bytes for reads in CONTEXT_READS.values()} == {"live"}
    assert CONTEXT_READS["cpu"].decode.flop == CONTEXT_READS["reference"].decode.flop == "live"
    assert CONTEXT_READS["neuron"] == CONTEXT_READS["neuron-sim"]
    assert CONTEXT_READS["neuron"].decode.flop == "bucket"


def test_a_file_of_costs_survives_being_written_and_read(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"

    write_costs(TABLE, path)

    assert read_costs(path) == TABLE
    first = path.read_bytes()
    write_costs(TABLE, path)
    assert path.read_bytes() == first


def bad_files() -> dict[str, tuple[bytes, str]]:
    deep = b'{"noria_costs": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    return {
        "empty": (b"", r"costs\.json, line 1, column 1: the file ends, and that cannot be here"),
        "cut": (b'{\n "a": 1,', r"costs\.json, line 2, column \d+: the file ends, and that cannot"),
        "no json": (b'{\n "a": x}', r"costs\.json, line 2, column 7: there is 'x' that cannot be"),
        "two": (
            b"{}\n{}",
            r"line 2, column 1: there is '{' that .* that noria bench shapes writes",
        ),
        "no text": (b"\xff\xfe", "byte 0 is not UTF-8"),
        "deep": (deep, "nested too deep"),
        "a list": (b"[]", "costs: must be an object"),
        "other": (b"{}", "noria bench shapes writes such files"),
        "huge": (b'{"noria_costs": ' + b"9" * 5000 + b"}", "a number of 5000 digits"),
    }


@pytest.mark.parametrize("name", bad_files())
def test_a_file_that_is_none_of_costs_is_one_line_with_its_name(name: str, tmp_path: Path) -> None:
    data, error = bad_files()[name]
    path = tmp_path / "costs.json"
    path.write_bytes(data)

    with pytest.raises(ConfigError, match=error) as caught:
        read_costs(path)

    assert str(caught.value).startswith((f"{path}: ", f"{path}, line "))
    assert "\n" not in str(caught.value)
    assert "Expecting" not in str(caught.value)


def test_a_nan_in_a_file_is_refused_by_its_place(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    write_costs(TABLE, path)
    data: dict[str, Any] = json.loads(path.read_text())
    data["prefill"][0]["seconds"] = math.nan
    path.write_text(json.dumps(data))

    with pytest.raises(ConfigError, match=r"costs\.prefill\[0\]\.seconds: nan is not a finite"):
        read_costs(path)


def test_a_missing_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.json: No such file"):
        read_costs(tmp_path / "none.json")
