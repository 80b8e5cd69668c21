"""A graph of other bits than the limit graphs: no start from a local set uses it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from local_sets import PROMPTS, SETTINGS, num_compilations, only_set, tokens_of, warnings_in

from noria.runtime import LLM, engine_start
from noria.runtime.compiled_set.folder import SetFolder
from noria.runtime.compiled_set.set_source import FromLocalSet
from noria.runtime.graph_source import EngineGraph, Run

AT_ONCE, NEVER = -1.0, 1e9
"""Seconds that a worker takes to start: all that can be is left to workers, or nothing."""
SMALL = ["prefill_t16_c64", "decode_s1_c64"]
LIMITS = ["prefill_t64_c64", "decode_s2_c64"]


@pytest.fixture(scope="module")
def plain() -> Iterator[list[tuple[int, ...]]]:
    """Tokens of an engine whose graphs agree."""
    threads = torch.get_num_threads()
    yield tokens_of(LLM(SETTINGS))
    torch.set_num_threads(threads)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NORIA_SETS", str(tmp_path / "sets"))
    return tmp_path / "sets"


def spoil(patch: pytest.MonkeyPatch, *names: str) -> None:
    """Let graphs give other bits, wherever they come from, and so other tokens."""
    get = FromLocalSet.get

    def get_other(self: FromLocalSet, graph: EngineGraph) -> Run:
        run = get(self, graph)

        def run_other() -> None:
            run()
            graph.outputs[0].copy_(graph.outputs[0].flip(-1))

        return run_other if graph.name in names else run

    patch.setattr(FromLocalSet, "get", get_other)


def start(patch: pytest.MonkeyPatch, worker_start_s: float, **changes: Any) -> LLM:
    """Start, and wait until all graphs are there."""
    patch.setattr(engine_start, "WORKER_START_S", worker_start_s)
    llm = LLM({**SETTINGS, **changes})
    llm.wait_for_graphs()
    return llm


def check_refused(llm: LLM, name: str, plain: object, warnings: list[str]) -> None:
    """Assert that exactly one graph is not used, which one warning says, and nothing changed."""
    report = llm.loaded.invariance
    assert (report.is_invariant, report.num_graphs, report.refused) == (True, 3, (name,))
    assert str(report).endswith(f"in all 3 graphs; not used, for other bits: {name}")
    (warning,) = warnings
    assert warning.startswith(f"graph {name} is not used: ")
    assert llm.loaded.arrivals.num_pending == 0
    assert tokens_of(llm) == plain
    llm.generate(PROMPTS[:1])  # alone, where the smallest graphs would do
    assert name not in {bucket.label for bucket in llm.loaded.runner.padding.by_bucket}


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what was warned about since this was asked last."""
    found = warnings_in(caplog)
    caplog.clear()
    return found


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("first_s", [AT_ONCE, NEVER], ids=["by workers", "here"])
def test_every_start_leaves_out_a_graph_of_other_bits(
    root: Path, plain, monkeypatch: pytest.MonkeyPatch, caplog, name: str, first_s: float
) -> None:
    """It arrives or is compiled here; then it is in the set, with and without compile: never."""
    spoil(monkeypatch, name)

    check_refused(start(monkeypatch, first_s), name, plain, said(caplog))
    again = start(monkeypatch, AT_ONCE)
    check_refused(again, name, plain, said(caplog))
    assert num_compilations(again) == 0
    check_refused(start(monkeypatch, AT_ONCE, compile="never"), name, plain, said(caplog))
    assert SetFolder.open(only_set(root)).verify() == []


@pytest.mark.parametrize("next_s", [AT_ONCE, NEVER], ids=["by workers", "here"])
def test_it_is_left_out_where_another_is_missing(
    root: Path, plain, monkeypatch: pytest.MonkeyPatch, caplog, next_s: float
) -> None:
    refused, missing = SMALL
    spoil(monkeypatch, refused)
    check_refused(start(monkeypatch, NEVER), refused, plain, said(caplog))
    (only_set(root) / "graphs" / f"{missing}.graph").unlink()

    llm = start(monkeypatch, next_s)

    assert num_compilations(llm) == (0 if next_s == AT_ONCE else 1)
    warnings = said(caplog)
    others = [one for one in warnings if not one.endswith("it is compiled again")]
    assert len(others) == len(warnings) - 1
    check_refused(llm, refused, plain, others)


def test_where_its_bits_are_right_it_is_used(
    root: Path, plain, monkeypatch: pytest.MonkeyPatch, caplog
) -> None:
    """A refusal is no mark in the set, which may be used with other weights."""
    with pytest.MonkeyPatch.context() as patch:
        spoil(patch, SMALL[0])
        check_refused(start(patch, NEVER), SMALL[0], plain, said(caplog))

    llm = start(monkeypatch, NEVER)

    assert num_compilations(llm) == 0
    assert llm.loaded.invariance.num_graphs == 4
    assert tokens_of(llm) == plain
    assert said(caplog) == []


@pytest.mark.parametrize("worker_start_s", [AT_ONCE, NEVER], ids=["by workers", "here"])
def test_where_limit_graphs_differ_all_are_used_and_every_start_says_so(
    root: Path, monkeypatch: pytest.MonkeyPatch, caplog, worker_start_s: float
) -> None:
    spoil(monkeypatch, LIMITS[1], SMALL[0])
    for _ in range(2):
        llm = start(monkeypatch, worker_start_s)

        report = llm.loaded.invariance
        assert (report.num_graphs, report.refused) == (4, ())
        assert set(report.differing) == {LIMITS[1], SMALL[0]}
        (warning,) = said(caplog)
        assert warning.startswith("batch invariance: no")
