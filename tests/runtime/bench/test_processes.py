"""Reading /proc: CPU shares and peak memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from noria.runtime.bench import processes
from noria.runtime.bench.processes import CpuTicks, CpuWatch, parse_cpu, peak_rss_bytes, tree_ticks

STAT = "cpu  {} 10 20 300 40 5 6 7 8 9\ncpu0 1 2 3\n"


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A /proc of process 1 with child 2, whose numbers the test may change."""
    monkeypatch.setattr(processes, "PROC", tmp_path)
    for pid, child in ((1, "2 "), (2, "")):
        task = tmp_path / str(pid) / "task" / str(pid)
        task.mkdir(parents=True)
        (task / "children").write_text(child)
        (tmp_path / str(pid) / "status").write_text(f"Name: x\nVmHWM:\t   {pid}00 kB\n")
    write_ticks(tmp_path, total_user=100, tree=(0, 0))
    return tmp_path


def write_ticks(proc: Path, *, total_user: int, tree: tuple[int, int]) -> None:
    (proc / "stat").write_text(STAT.format(total_user))
    for pid, ticks in zip((1, 2), tree, strict=True):
        fields = " ".join(["S", *["0"] * 10, str(ticks), "0", "0", "0", "20"])
        (proc / str(pid) / "stat").write_text(f"{pid} (a) name) {fields}\n")


def test_busy_time_is_all_but_idle_and_waiting_and_guest_time_is_not_counted_twice() -> None:
    assert parse_cpu(STAT.format(100)) == CpuTicks(total=488, busy=148)


def test_the_share_of_others_leaves_out_the_watched_tree(proc: Path) -> None:
    watch = CpuWatch(1)

    write_ticks(proc, total_user=300, tree=(100, 60))

    assert watch.others_share() == pytest.approx(40 / 200)


def test_a_tree_that_used_more_than_was_counted_leaves_others_nothing(proc: Path) -> None:
    watch = CpuWatch(1)

    write_ticks(proc, total_user=110, tree=(8, 4))

    assert watch.others_share() == 0


def test_no_time_and_no_proc_are_no_share(proc: Path) -> None:
    watch = CpuWatch(1)

    assert watch.others_share() is None
    (proc / "stat").unlink()
    assert watch.others_share() is None


def test_peak_memory_is_summed_over_the_tree(proc: Path) -> None:
    assert peak_rss_bytes(1) == (100 + 200) * 1024
    assert peak_rss_bytes(2) == 200 * 1024
    assert peak_rss_bytes(3) is None


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_child_process_counts_in_this_ones_tree() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        alone, tree = peak_rss_bytes(child.pid), peak_rss_bytes(os.getpid())
        assert child.stdin is not None
        child.stdin.close()

    assert alone is not None
    assert tree is not None
    assert tree > alone
    assert tree_ticks(os.getpid()) > 0
