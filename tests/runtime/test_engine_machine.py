"""Any traffic on any tiny engine: every request gets what it gets alone, and every request ends."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import get_args

import pytest
import torch
from engine_machine import (
    END_TOKEN_IDS,
    MAX_MODEL_LEN,
    CompiledMachine,
    EngineMachine,
    PlannedMachine,
)
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from noria.kernels.contract import KVGroup
from noria.kernels.cpu import CpuKernels
from noria.runtime.kv_cache_manager import KVCacheManager
from noria.runtime.models.architecture import LayerKind
from noria.runtime.scheduler import Scheduler
from noria.runtime.settings import SamplerFeature


@pytest.fixture
def machine(make_engine, make_shape, tiny_architecture, make_dense) -> type[EngineMachine]:
    """The machine over engines of the tiny model, with and without windows."""
    models = {}
    for windows in [(None, None), (None, 5), (3, None), (7, 7)]:
        layers = tuple(LayerKind(window=window) for window in windows)
        architecture = replace(tiny_architecture, layers=layers)
        models[windows] = (architecture, make_dense(architecture))
    parts = {
        "make_engine": staticmethod(make_engine),
        "make_shape": staticmethod(make_shape),
        "models": models,
        "counts": Counter(),
    }
    return type("Machine", (EngineMachine,), parts)


FUZZ = settings(
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
    stateful_step_count=25,
)


@pytest.mark.parametrize("num_examples", [50, pytest.param(3000, marks=pytest.mark.long)])
def test_any_traffic_gives_every_request_what_it_gets_alone(machine, num_examples):
    """Also F01: pools that hold one request preempt all the others; F03: nobody waits for ever."""
    run_state_machine_as_test(machine, settings=settings(FUZZ, max_examples=num_examples))

    assert machine.counts["preemptions"] > 50
    assert machine.counts["copies"] > 10
    assert machine.counts["chunks"] > 50
    assert machine.counts["score"] > 10


@pytest.mark.parametrize("num_examples", [25, pytest.param(600, marks=pytest.mark.long)])
def test_any_plan_gives_every_request_what_it_gets_alone(machine, num_examples):
    """Graphs that are no product of lists, chosen by any seconds, filled by any table of chunks."""
    planned = type("Planned", (PlannedMachine,), dict(vars(machine)))

    run_state_machine_as_test(planned, settings=settings(FUZZ, max_examples=num_examples))

    assert planned.counts["preemptions"] > 20
    assert planned.counts["chunks"] > 20
    assert planned.counts["score"] > 5
    assert planned.counts["cover"] > 10


def test_compiled_graphs_give_every_request_what_it_gets_alone(machine):
    """In fp32, with windows: the graphs are those of a CPU in production."""
    windows = (None, 5)
    architecture, dense = machine.models[windows]
    shape = machine.make_shape(
        max_num_batched_tokens=20,
        max_num_seqs=4,
        max_model_len=MAX_MODEL_LEN,
        max_num_prefill_seqs=3,
        num_blocks=1 + 8,
        tokens=(6, 20),
        seqs=(1, 4),
        end_token_ids=END_TOKEN_IDS,
        sampler_features=get_args(SamplerFeature),
    )
    tiny = machine.make_engine(
        shape, kernels=CpuKernels(), dtype=torch.float32, architecture=architecture
    )
    parts = {"compiled": (tiny, dense), "counts": Counter()}
    compiled = type("Compiled", (CompiledMachine,), parts)

    run_state_machine_as_test(compiled, settings=settings(FUZZ, max_examples=40))

    assert compiled.counts["preemptions"] > 10


def share_without_copying(monkeypatch) -> None:
    monkeypatch.setattr(KVCacheManager, "_shared_to_write", lambda self, entry: [])


def keep_the_first_window(monkeypatch) -> None:
    first = KVGroup.first_live_block
    monkeypatch.setattr(KVGroup, "first_live_block", lambda self, n: first(self, n + 4))


def resume_with_another_seed(monkeypatch) -> None:
    """What a preempted request draws later depends on its having been preempted."""
    preempt = Scheduler._preempt

    def forget(self, request):
        preempt(self, request)
        request.sampling_state._seed += 1

    monkeypatch.setattr(Scheduler, "_preempt", forget)


def write_over_undone_steps(monkeypatch) -> None:
    """A step that failed counts as one that ran."""
    monkeypatch.setattr(Scheduler, "undo", Scheduler.commit)


MUTATIONS = (
    share_without_copying,
    keep_the_first_window,
    resume_with_another_seed,
    write_over_undone_steps,
)


@pytest.mark.parametrize("mutate", MUTATIONS, ids=lambda one: one.__name__)
def test_a_mistake_is_found(machine, monkeypatch, mutate):
    mutate(monkeypatch)
    quick = settings(FUZZ, max_examples=60, phases=[Phase.generate])

    with pytest.raises((AssertionError, ValueError, KeyError, IndexError)):
        run_state_machine_as_test(machine, settings=quick)
