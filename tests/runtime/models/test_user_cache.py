from __future__ import annotations

import threading
from pathlib import Path

import pytest

from noria.runtime.models.user_cache import locked, staged_folder, user_cache


def test_the_cache_follows_the_xdg_variable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    assert user_cache() == tmp_path / "noria"


@pytest.mark.parametrize("value", [None, "", "relative/folder"])
def test_without_a_usable_variable_it_is_in_the_home_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, value: str | None
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    if value is not None:
        monkeypatch.setenv("XDG_CACHE_HOME", value)

    assert user_cache() == tmp_path / ".cache" / "noria"


def test_a_staged_folder_appears_whole_at_the_end(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "target"

    with staged_folder(target) as folder:
        (folder / "a").write_text("new")
        assert not target.exists()

    assert (target / "a").read_text() == "new"
    assert [path.name for path in target.parent.iterdir()] == ["target"]


def test_a_staged_folder_replaces_an_older_one_whole(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (target / "b").write_text("old")

    with staged_folder(target) as folder:
        (folder / "a").write_text("new")

    assert [path.name for path in target.iterdir()] == ["a"]
    assert [path.name for path in tmp_path.iterdir()] == ["target"]


def test_what_a_dead_process_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / ".target.staged" / "new").mkdir(parents=True)
    (tmp_path / ".target.staged" / "new" / "half").write_text("half")

    with staged_folder(tmp_path / "target") as folder:
        (folder / "a").write_text("new")

    assert [path.name for path in (tmp_path / "target").iterdir()] == ["a"]
    assert [path.name for path in tmp_path.iterdir()] == ["target"]


def test_one_at_a_time_holds_a_lock(tmp_path: Path) -> None:
    order: list[str] = []
    entered = threading.Event()

    def second() -> None:
        entered.set()
        with locked(tmp_path / "target"):
            order.append("second")

    thread = threading.Thread(target=second)
    with locked(tmp_path / "target"):
        thread.start()
        entered.wait()
        thread.join(timeout=0.05)
        order.append("first")
    thread.join()

    assert order == ["first", "second"]


def test_an_error_leaves_what_was_there(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (target / "b").write_text("old")

    def fail() -> None:
        with staged_folder(target) as folder:
            (folder / "a").write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert [path.name for path in target.iterdir()] == ["b"]
    assert [path.name for path in tmp_path.iterdir()] == ["target"]
