"""What a configuration and options make of traffic: a problem for the planner, or one line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from planned_traffic import MODEL, make_config, measured, traffic

from noria.bucketing.planner.planner import make_plan
from noria.bucketing.traces.trace import Trace
from noria.runtime.config import Config
from noria.runtime.errors import NoriaError
from noria.runtime.plan_problem import PlanOptions, plan_task
from noria.runtime.step_costs import write_costs

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
    assert float(task.problem.costs.decode_s(8, 256)) == pytest.approx(1.8e-3 + 8 * 256e-6, rel=0.1)
    assert task.problem.fees.base_compile_s == pytest.approx(2.0)
    assert "measured on a processor, backend cpu" in task.notes[0]


def test_a_fit_to_what_was_measured_can_be_asked_for(save: Save) -> None:
    config = make_config()

    task = plan_task(config, traffic(), PlanOptions(costs=save(config), fitted=True))

    assert task.problem.costs.source == task.costs.data["kind"] == "fitted"


def test_without_costs_a_cpu_counts_rows_and_says_so() -> None:
    task = plan_task(make_config(), traffic(), PlanOptions())

    assert task.problem.costs.source == "tokens"
    assert task.problem.trace.arrivals_s is None
    assert task.problem.settings.policy == "fill"
    assert "nothing was measured" in task.notes[0]
    assert "noria bench shapes CONFIG" in task.notes[0]
    assert make_plan(task.problem).plan.policy == "fill"


def test_a_target_has_a_sheet_and_tiles_of_its_own() -> None:
    task = plan_task(make_config(**NEURON), traffic(), PlanOptions())

    assert task.problem.costs.source == "roofline"
    assert "roofline of trn2" in task.notes[0]
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
    "cpu": ("--device: device cpu: processors differ too much", {"device": "cpu"}),
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
