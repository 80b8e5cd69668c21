"""CPUs and memory that a process may use, in and out of containers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from noria.runtime.process_limits import free_memory_bytes, usable_cpus

KIB_FREE = 4000
CONTAINER = {"memory.max": "1000000", "memory.current": "700000", "memory.stat": "anon 5\n"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A machine with 4000 KiB free, without control groups."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text(f"MemTotal: 9999 kB\nMemAvailable: {KIB_FREE} kB\n")
    return tmp_path


def write_group(root: Path, path: str, **files: str) -> None:
    folder = root / "sys/fs/cgroup" / path
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in (CONTAINER | files).items():
        (folder / name).write_text(f"{text}\n")


def test_without_control_groups_the_machine_tells(root: Path) -> None:
    assert free_memory_bytes(root) == KIB_FREE * 1024


def test_a_container_sees_its_group_as_the_mount(root: Path) -> None:
    write_group(root, "")

    assert free_memory_bytes(root) == 300_000


def test_the_tightest_of_nested_groups_counts(root: Path) -> None:
    (root / "proc/self/cgroup").write_text("1:cpu:/other\n0::/user/session\n")
    write_group(root, "", **{"memory.max": "2000000"})
    write_group(root, "user", **{"memory.max": "800000"})
    write_group(root, "user/session", **{"memory.max": "max"})
    write_group(root, "other", **{"memory.max": "1"})

    assert free_memory_bytes(root) == 100_000


def test_cached_file_pages_are_free(root: Path) -> None:
    write_group(root, "", **{"memory.stat": "anon 5\ninactive_file 20000\nactive_file 3000"})

    assert free_memory_bytes(root) == 323_000


def test_a_group_beyond_its_limit_leaves_nothing(root: Path) -> None:
    write_group(root, "", **{"memory.max": "600000"})

    assert free_memory_bytes(root) == 0


def test_a_group_larger_than_the_machine_does_not_count(root: Path) -> None:
    write_group(root, "", **{"memory.max": "999999999"})

    assert free_memory_bytes(root) == KIB_FREE * 1024


def test_without_proc_half_of_the_memory_is_assumed_free(tmp_path: Path) -> None:
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

    assert free_memory_bytes(tmp_path) == total // 2


def test_this_machine_has_some_memory_and_a_cpu() -> None:
    assert free_memory_bytes() > 0
    assert usable_cpus() >= 1
