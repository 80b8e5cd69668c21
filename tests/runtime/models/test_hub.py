from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from noria.runtime.errors import ModelError
from noria.runtime.models.hub import MODEL_PATTERNS, hub_folder, is_hub_id


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("org/name", True),
        ("HuggingFaceTB/SmolLM2-135M-Instruct", True),
        ("name", False),
        ("a/b/c", False),
        ("/org/name", False),
        ("./name", False),
        ("org/", False),
        ("org/na me", False),
    ],
)
def test_a_hub_id_is_organisation_and_name(name: str, expected: bool) -> None:
    assert is_hub_id(name) is expected


def test_only_the_needed_files_are_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def download(repo_id: str, *, allow_patterns: list[str]) -> str:
        asked.append((repo_id, allow_patterns))
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)

    assert hub_folder("org/name", patterns=MODEL_PATTERNS) == tmp_path
    assert asked == [("org/name", list(MODEL_PATTERNS))]
    assert not any(pattern.endswith((".bin", "*")) for pattern in MODEL_PATTERNS)


def test_a_failed_download_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def download(repo_id: str, *, allow_patterns: list[str]) -> str:
        raise OSError("cannot reach\n  the hub")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)

    with pytest.raises(ModelError) as caught:
        hub_folder("org/name", patterns=MODEL_PATTERNS)
    assert str(caught.value) == (
        "org/name: cannot download from the Hugging Face hub: cannot reach the hub"
    )


def test_without_the_client_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)

    with pytest.raises(ModelError, match="pip install huggingface_hub"):
        hub_folder("org/name", patterns=MODEL_PATTERNS)
