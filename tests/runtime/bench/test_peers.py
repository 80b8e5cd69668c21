"""Which engines there are, and why one cannot run here."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from noria.runtime.bench.model_files import ModelFiles
from noria.runtime.bench.peer_worker import ENGINES, Load
from noria.runtime.bench.peers import (
    ENGINE_KINDS,
    ENGINE_NAMES,
    EngineKind,
    PeerOptions,
    missing_model,
    missing_modules,
    noria_peers,
    other_peers,
    parse_assignments,
)
from noria.runtime.config import parse_config
from noria.runtime.errors import ConfigError

LOAD = Load("", "", 3, 4, 64, {})
KIND = EngineKind("openvino", ("json", "no_such_module", "no_other.module"), "model.xml")


def test_every_engine_has_a_worker() -> None:
    assert set(ENGINES) == set(ENGINE_NAMES)


def test_weights_are_stored_as_the_engine_does_and_else_as_activations() -> None:
    stored = {
        kind.name: [variant.stored.name for variant in kind.variants(["float32"], "")]
        for kind in ENGINE_KINDS
    }

    assert stored["openvino"] == ["float16"]
    assert stored["transformers"] == ["float32"]


def test_missing_modules_are_named_with_the_option_that_helps() -> None:
    kind = EngineKind("openvino", ("json", "no_such_module"), "model.xml")

    assert missing_modules(kind, sys.executable) == (
        f"{sys.executable} has no no_such_module: give an interpreter that has, "
        "--python openvino=PATH (docs/benchmarks.md)"
    )


def test_an_interpreter_with_all_modules_is_no_reason() -> None:
    assert missing_modules(EngineKind("x", ("json", "csv"), "y"), sys.executable) is None


def test_an_interpreter_that_does_not_run_is_the_reason(tmp_path: Path) -> None:
    missing = str(tmp_path / "python")

    assert missing_modules(KIND, missing) is not None
    assert missing_modules(KIND, missing).startswith(f"{missing} does not run: FileNotFound")  # type: ignore[union-attr]
    assert missing_modules(KIND, "/bin/false") == "/bin/false does not run: it ended with status 1"


def test_a_folder_without_the_engines_file_is_the_reason(tmp_path: Path) -> None:
    reason = missing_model(KIND, str(tmp_path))
    (tmp_path / "model.xml").touch()

    assert reason == (
        f"{tmp_path} is not a folder with model.xml: give one, --model openvino=PATH "
        "(docs/benchmarks.md)"
    )
    assert missing_model(KIND, str(tmp_path)) is None
    assert str(missing_model(KIND, "")).startswith("the configuration's model is not a folder ")


def test_an_engine_of_gguf_files_takes_no_folder(tmp_path: Path) -> None:
    kind = EngineKind("llama-cpp", (), None)
    (tmp_path / "model.gguf").touch()

    assert " is not a GGUF file: give one, " in str(missing_model(kind, str(tmp_path)))
    assert missing_model(kind, str(tmp_path / "model.gguf")) is None
    assert missing_model(kind, str(tmp_path / "other.gguf")) is not None


def test_engines_without_their_module_are_listed_with_a_reason(tmp_path: Path) -> None:
    options = PeerOptions(engines=("openvino",), pythons={"openvino": str(tmp_path / "none")})

    peers = other_peers(options, ["bfloat16", "float32"], load=LOAD, files=ModelFiles(tmp_path))

    assert [peer.variant.label for peer in peers] == [
        "openvino float16/bfloat16",
        "openvino float16/float32",
    ]
    assert all(" does not run: " in str(peer.available()) for peer in peers)


def test_noria_has_a_peer_per_dtype_that_nothing_is_known_against() -> None:
    config = parse_config({"model": "some/model", "max_model_len": 128})

    peers = noria_peers(config, ["bfloat16", "float32"], load=LOAD)

    assert [peer.variant.label for peer in peers] == [
        "noria bfloat16/bfloat16",
        "noria float32/float32",
    ]
    assert [peer.available() for peer in peers] == [None, None]


def test_assignments_are_read_by_engine() -> None:
    assert parse_assignments("--model", ["openvino=a=b", "vllm=c"]) == {
        "openvino": "a=b",
        "vllm": "c",
    }


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["openvino"], "--python is 'openvino'; it must be ENGINE=PATH"),
        (["openvino="], "--python is 'openvino='; it must be ENGINE=PATH"),
        (
            ["openvin=x"],
            "engine 'openvin' is not known (openvino, llama-cpp, transformers, vllm); "
            "did you mean openvino?",
        ),
        (["vllm=x", "vllm=y"], "--python names vllm twice: x and y"),
    ],
)
def test_a_wrong_assignment_is_refused(texts: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_assignments("--python", texts)

    assert str(caught.value) == message


def test_unknown_engines_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="engine 'sglang' is not known"):
        PeerOptions(engines=("sglang",))
