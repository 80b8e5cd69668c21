"""Full and read-only disks: small file systems in memory, where they may be mounted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import set_disks
from set_disks import UNSHARE, may_mount
from small_sets import GRAPHS, add_graph, small_set

from noria.runtime.compiled_set.folder import SetFolder
from noria.runtime.errors import SetError


def met_on(disk: Path, kind: str) -> dict[str, Any]:
    if not may_mount():
        pytest.skip("needs the right to mount")
    disk.mkdir()
    done = subprocess.run(
        [*UNSHARE, sys.executable, set_disks.__file__, str(disk), kind],
        capture_output=True,
        timeout=600,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_e08_a_full_disk_is_one_line_and_the_set_stays(tmp_path: Path) -> None:
    met = met_on(tmp_path / "disk", "full")

    assert met["refusals"] == ["No space left on device"]
    assert met["is_as_before"]
    assert met["problems"] == []
    assert met["num_read"] == met["num_published"] > 5
    assert met["others"] == ["ballast", "set", "set.tar"]
    assert met["after"] == []


def test_e08_a_read_only_disk_is_one_line_and_the_set_can_be_used(tmp_path: Path) -> None:
    met = met_on(tmp_path / "disk", "read_only")

    assert met["refusals"] == ["Read-only file system"]
    assert met["is_as_before"]
    assert met["problems"] == []
    assert met["num_read"] == len(GRAPHS)


def test_e08_a_folder_without_the_right_to_write_is_one_line(tmp_path: Path) -> None:
    folder = small_set(tmp_path / "set")
    for path in (folder.path, folder.path / "graphs", folder.path / ".lock"):
        path.chmod(0o555)
    try:
        (folder.path / "probe").touch()
    except PermissionError:
        with pytest.raises(SetError, match=r"cannot be written: Permission denied$"):
            add_graph(folder, "late", b"late")
        assert SetFolder.open(folder.path).verify() == []
    else:
        pytest.skip("this user may write everywhere")
    finally:
        folder.path.chmod(0o755)
        (folder.path / "graphs").chmod(0o755)
