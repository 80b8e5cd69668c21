"""What a configuration and options make of traffic: a problem for the planner, or one line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from planned_traffic import MODEL, make_config, measured, traffic

from noria.bucketing.costs.devices import device_sheet, sheet_mapping
from noria.bucketing.traces.trace import Trace
from noria.runtime.config import Config
from noria.runtime.errors import NoriaError
from noria.runtime.models.sizes import read_sizes_of
from noria.runtime.plan_problem import PlanOptions, plan_task
from noria.runtime.step_costs import model_shape, write_costs

NEURON: dict[str, Any] = {
    "backend": "neuron",
    "max_num_batched_tokens": 256,
    "num_blocks": 160,
}
SHEET = {"name": "mine", "bytes_s": 1e11, "flop_s": {"bfloat16": 1e12}, "launch_s": 1e-3}
Save = Callable[..., Path]


@pytest.fixture
def save(tmp_path: Path) -> Save:
    """Write measured costs, some of them changed, to a file."""

    def saved(config: Config, **changes: Any) -> Path:
        path = tmp_path / "costs.json"
        write_costs(measured(config, **changes), path)
        return path

    return saved


def test_measured_costs_are_used_and_named(save: Save) -> None:
    config = make_config()

    task = plan_task(config, traffic(), PlanOptions(costs=save(config)))

    assert task.costs.steps is task.problem.costs
    assert task.problem.costs.source == "measured"
    costs = task.problem.costs
    assert costs.decode_s(8, 64) == costs.decode_s(8, 256) == pytest.approx(1.8e-3, rel=0.1)
    assert costs.live_s(8, 256) == pytest.approx(8 * 256e-6, rel=0.1)
    assert task.costs.data["reads"] == {"num_bytes": "live", "flop": "live"}
    assert task.problem.fees.base_compile_s == pytest.approx(2.0)
    assert "measured on a processor, backend cpu" in task.notes[0]


def test_a_fit_to_what_was_measured_can_be_asked_for(save: Save) -> None:
    config = make_config()

    task = plan_task(config, traffic(), PlanOptions(costs=save(config), fitted=True))

    assert task.problem.costs.source == task.costs.data["kind"] == "fitted"


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_without_costs_a_processor_has_nominal_seconds_and_the_note_says_so(backend: str) -> None:
    task = plan_task(make_config(backend=backend), traffic(), PlanOptions())

    assert task.problem.costs.source == task.costs.data["kind"] == "roofline"
    assert task.costs.data["reads"] == {"num_bytes": "live", "flop": "live"}
    assert task.problem.trace.arrivals_s is not None
    assert task.problem.settings.policy == "auto"
    assert "nothing was measured: seconds are nominal" in task.notes[0]
    assert "a roofline of cpu, 2 threads, as many as its sheet was measured with" in task.notes[0]
    assert "noria bench shapes CONFIG" in task.notes[0]


@pytest.mark.parametrize("num_threads", [1, 64])
def test_the_threads_of_a_configuration_are_those_of_its_costs(num_threads: int) -> None:
    task = plan_task(make_config(num_threads=num_threads), traffic(), PlanOptions())

    sheet = device_sheet("cpu", num_threads=num_threads)
    assert task.costs.data["sheet"] == sheet_mapping(sheet)
    assert f"roofline of {sheet.name}. " in task.notes[0]


def test_costs_of_threads_that_nobody_named_are_the_same_on_every_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = []
    for cpus in (1, 96):
        monkeypatch.setattr("os.cpu_count", lambda cpus=cpus: cpus)
        monkeypatch.setattr("os.sched_getaffinity", lambda pid, cpus=cpus: set(range(cpus)))
        found.append(plan_task(make_config(), traffic(), PlanOptions()).costs.data)

    assert found[0] == found[1]


@given(
    num_threads=st.none() | st.integers(1, 256),
    dtype=st.sampled_from(["bfloat16", "float32"]),
    hidden_size=st.sampled_from([16, 64, 1024]),
    rows=st.integers(1, 128),
    context=st.integers(1, 256),
)
def test_every_step_takes_seconds_that_threads_and_rows_explain(
    num_threads: int | None, dtype: str, hidden_size: int, rows: int, context: int
) -> None:
    model = {**MODEL, "hidden_size": hidden_size}
    config = make_config(model=model, num_threads=num_threads, dtype=dtype)
    costs = plan_task(config, traffic(4), PlanOptions()).problem.costs
    shape = model_shape(config, read_sizes_of(config.model))

    least = float(shape.linear_flop(rows, 0)) / ((num_threads or 2) * 200e9)
    for seconds in (costs.prefill_s(rows, 256 - context), costs.decode_s(rows, context)):
        assert least < seconds < 60


def test_a_model_that_is_not_there_is_one_line_that_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    with pytest.raises(NoriaError) as caught:
        plan_task(make_config(model="smollm2-135m"), traffic(), PlanOptions())

    assert str(caught.value) == (
        "model 'smollm2-135m' is not fetched yet; run: noria fetch smollm2-135m"
    )


def test_a_target_has_a_sheet_and_tiles_of_its_own() -> None:
    task = plan_task(make_config(**NEURON), traffic(), PlanOptions())

    assert task.problem.costs.source == "roofline"
    assert "roofline of trn2" in task.notes[0]
    assert task.costs.data["reads"] == {"num_bytes": "live", "flop": "bucket"}
    assert (task.problem.limits.prefill_tile, task.problem.settings.granularity) == (128, 128)
    assert task.problem.num_blocks == 160


def test_a_device_may_be_named_or_be_a_file(tmp_path: Path) -> None:
    path = tmp_path / "sheet.yaml"
    path.write_text(yaml.safe_dump(SHEET))

    named = plan_task(make_config(), traffic(), PlanOptions(device="h200"))
    given = plan_task(make_config(), traffic(), PlanOptions(device=str(path)))

    assert "roofline of h200" in named.notes[0]
    assert given.costs.data["sheet"]["bytes_s"] == 1e11  # type: ignore[index]


def test_lengths_are_scaled_only_when_asked() -> None:
    long = Trace(np.array([100, 400]), np.array([10, 10]))

    cut = plan_task(make_config(), long, PlanOptions()).problem.trace
    scaled = plan_task(make_config(), long, PlanOptions(scale=True)).problem.trace

    assert cut.prompt_lens.tolist() == [100]
    assert any("1 of 2 requests (50.00%) have prompts of more than" in w for w in cut.warnings)
    assert scaled.prompt_lens.tolist() == [62, 249]


def test_only_the_first_requests_may_be_planned_for() -> None:
    task = plan_task(make_config(), traffic(), PlanOptions(head=7))

    assert task.problem.trace.num_requests == 7


def test_requests_that_the_cache_never_holds_are_left_out_and_counted() -> None:
    trace = Trace(np.array([20, 100, 90]), np.array([10, 10, 10]))

    found = plan_task(make_config(num_blocks=7), trace, PlanOptions()).problem

    assert found.num_blocks == 7
    assert found.trace.prompt_lens.tolist() == [20]
    assert any("2 of 3 requests need more blocks than the 7" in w for w in found.trace.warnings)
    assert any("the largest is request 2 with 7" in w for w in found.trace.warnings)


def test_memory_of_the_cache_counts_where_it_is_less_than_all_requests_need() -> None:
    token_bytes = 2 * 2 * 2 * 16 * 2  # layers, keys and values, heads, values of bfloat16
    small = make_config(kv_cache_memory=token_bytes * 16 * 40)
    ample = make_config(kv_cache_memory=token_bytes * 16 * 1000)

    assert plan_task(small, traffic(), PlanOptions()).problem.num_blocks == 40
    assert plan_task(ample, traffic(), PlanOptions()).problem.num_blocks is None
    assert plan_task(make_config(), traffic(), PlanOptions()).problem.num_blocks is None


REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "fitted": ("--fitted: needs --costs", {"fitted": True}),
    "device": ("--device: device 'h300' is not known", {"device": "h300"}),
    "empty device": ("--device: device '' is not known", {"device": ""}),
    "head": ("the first 0 requests of a trace; must be at least 1", {"head": 0}),
    "must": ("--must-have: 640; must be a size up to 128", {"must_have": (640,)}),
    "must zero": ("--must-have: 0; must be a size up to 128", {"must_have": (0,)}),
    "no file": ("nowhere.json: No such file", {"costs": Path("nowhere.json")}),
}


@pytest.mark.parametrize(("message", "options"), REFUSED.values(), ids=REFUSED.keys())
def test_an_option_that_does_not_fit_is_refused_in_one_line(
    message: str, options: dict[str, Any]
) -> None:
    with pytest.raises(NoriaError) as caught:
        plan_task(make_config(), traffic(), PlanOptions(**options))

    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_sizes_between_tiles_are_refused_on_targets_that_have_some() -> None:
    with pytest.raises(NoriaError, match="--must-have: 130; must be a size up to 256 in multiples"):
        plan_task(make_config(**NEURON), traffic(), PlanOptions(must_have=(130,)))


@pytest.mark.parametrize(
    ("message", "changes"),
    [
        ("its num_layers is 2, not 3", {"model": {**MODEL, "num_hidden_layers": 3}}),
        ("costs were measured in bfloat16, not in float32", {"dtype": "float32"}),
        ("measured on backend cpu, not reference", {"backend": "reference"}),
    ],
    ids=["model", "dtype", "backend"],
)
def test_costs_of_something_else_are_refused(
    save: Save, message: str, changes: dict[str, Any]
) -> None:
    path = save(make_config())

    with pytest.raises(NoriaError) as caught:
        plan_task(make_config(**changes), traffic(), PlanOptions(costs=path))

    assert str(caught.value).startswith(f"{path}: costs were measured ")
    assert message in str(caught.value)


def test_costs_and_a_device_are_not_both_used(save: Save) -> None:
    config = make_config()

    with pytest.raises(NoriaError, match="--device: is given, and --costs is, too"):
        plan_task(config, traffic(), PlanOptions(costs=save(config), device="trn2"))


def test_traffic_of_which_nothing_fits_is_refused() -> None:
    long = replace(traffic(3), prompt_lens=np.array([300, 400, 500]))

    with pytest.raises(NoriaError, match="no prompt of the trace fits: the shortest has 300"):
        plan_task(make_config(), long, PlanOptions())
    with pytest.raises(NoriaError, match="fits the KV cache of 2 blocks"):
        plan_task(
            make_config(num_blocks=2),
            replace(traffic(1), prompt_lens=np.array([60])),
            PlanOptions(),
        )
