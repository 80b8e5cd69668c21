"""From traffic to a plan, a run with it, its drift and the next plan: by commands alone."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import planned_traffic
import pytest
import yaml
from click.testing import CliRunner, Result
from prometheus_client.parser import text_string_to_metric_families

from noria.runtime.cli import main
from noria.runtime.config import parse_config
from noria.runtime.plan_files import read_plan
from noria.runtime.step_costs import write_costs

SETTINGS: dict[str, Any] = {
    **planned_traffic.SETTINGS,
    "backend": "reference",
    "num_threads": 1,
    "max_num_seqs": 4,
    "sampling": {"temperature": 0},
}
FEW = ("--costs", "costs.json", "--policy", "fill", "--max-graphs", 6)


def run(*args: object) -> Result:
    found = CliRunner().invoke(main, [str(arg) for arg in args])
    assert found.exit_code == 0, found.output
    return found


def drift_of(counters: str, plan: str = "plan.yaml") -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run("drift", plan, counters, "--json").stdout)
    return found


def write_prompts(path: Path, lengths: range) -> None:
    draws = random.Random(0)
    lines = [
        {
            "prompt_token_ids": [draws.randint(1, 200)] * draws.choice(lengths),
            "max_tokens": draws.randint(2, 8),
            "ignore_eos": True,
        }
        for _ in range(24)
    ]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def write_config(name: str, **changes: Any) -> None:
    Path(name).write_text(yaml.safe_dump({**SETTINGS, **changes}))


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Plan for short prompts, then run these with the plan, long ones, and these without it."""
    folder = tmp_path_factory.mktemp("ran")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        write_config("config.yaml")
        write_costs(planned_traffic.measured(parse_config(SETTINGS)), "costs.json")
        write_config("planned.yaml", buckets="plan.yaml")
        write_prompts(folder / "short.jsonl", range(5, 41))
        write_prompts(folder / "long.jsonl", range(100, 201))
        run("plan", "config.yaml", "--trace", "short.jsonl", *FEW, "-o", "plan.yaml")
        for config, prompts in (("planned", "short"), ("planned", "long"), ("config", "short")):
            written = ("--counters", f"{config}-{prompts}.json", "--metrics", f"{prompts}.prom")
            run("generate", f"{config}.yaml", "--prompts", f"{prompts}.jsonl", *written)
    return folder


@pytest.fixture(autouse=True)
def folder(ran: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Be in the folder of the runs."""
    monkeypatch.chdir(ran)
    return ran


def test_a_plan_has_no_regret_for_the_traffic_that_it_was_made_for() -> None:
    found = drift_of("planned-short.json")

    assert (found["regret_s"], found["is_worth_it"], found["notes"]) == (0, False, [])
    assert (found["add"], found["drop"]) == ([], [])
    expected: Any = read_plan(Path("plan.yaml")).about["expected"]
    running = found["running"]
    for phase in ("prefill", "decode"):
        assert running[f"{phase}_waste"] == pytest.approx(expected[phase]["waste"])
    # Counters round up what requests have cached, for which each step pays.
    assert running["seconds"] == pytest.approx(expected["seconds"], rel=0.03)


def test_a_plan_regrets_traffic_that_it_was_not_made_for() -> None:
    found = drift_of("planned-long.json")

    assert found["regret_share"] > 0.01
    assert found["add"]
    assert found["notes"] == []


def test_what_ran_is_what_the_next_plan_is_for() -> None:
    same = run("plan", "planned.yaml", "--trace", "planned-short.json", *FEW, "-o", "same.yaml")
    run("plan", "planned.yaml", "--trace", "planned-long.json", *FEW, "-o", "long.yaml")

    plans = [read_plan(Path(name)) for name in ("plan.yaml", "same.yaml", "long.yaml")]
    assert (plans[1].prefill, plans[1].decode) == (plans[0].prefill, plans[0].decode)
    assert plans[2].prefill != plans[0].prefill
    assert drift_of("planned-long.json", "long.yaml")["regret_s"] == 0
    assert "other graphs" not in same.stdout


def test_counters_of_another_plan_are_used_and_the_summary_says_so() -> None:
    other = drift_of("config-short.json")
    planned = run("plan", "planned.yaml", "--trace", "config-short.json")

    assert other["running"] == drift_of("planned-short.json")["running"]
    for note in (*other["notes"], planned.stdout):
        assert "the steps were counted with other graphs, or other chunks of prompts" in note
    assert len(other["notes"]) == 1
    assert (
        "note: the steps were counted with other"
        in run("drift", "plan.yaml", "config-short.json").stdout
    )


MODEL = {**SETTINGS["model"], "hidden_size": 32}
OTHERS: list[tuple[dict[str, Any], str]] = [
    ({"max_num_seqs": 8, "max_num_prefill_seqs": 4}, "max_num_seqs is 4 {}, and 8 here"),
    ({"block_size": 32}, "block_size is 16 {}, and 32 here"),
    ({"backend": "cpu"}, "backend is reference {}, and cpu here"),
    ({"model": MODEL}, "model is inline model ("),
]


@pytest.mark.parametrize(("changes", "message"), OTHERS)
def test_counters_of_another_configuration_are_refused(
    changes: dict[str, Any], message: str
) -> None:
    write_config("other.yaml", **changes)
    run("plan", "other.yaml", "--trace", "short.jsonl", "--search", "1ms", "-o", "other-plan.yaml")
    drift = ("drift", "other-plan.yaml", "planned-short.json")
    plan = ("plan", "other.yaml", "--trace", "planned-short.json")

    for start, command in (("planned-short.json", drift), ("--trace", plan)):
        found = CliRunner().invoke(main, command)
        assert (found.exit_code, found.stdout) == (2, "")
        text = message.format("where this was counted")
        assert found.stderr.startswith(f"Error: {start}: {text}")
        assert found.stderr.endswith("the counters are of another configuration\n")


def test_counters_without_an_engine_are_used_and_a_note_says_so() -> None:
    counters = json.loads(Path("planned-short.json").read_text())
    del counters["engine"]
    Path("old.json").write_text(json.dumps({**counters, "noria_counters": 1}))

    (note,) = drift_of("old.json")["notes"]

    assert note.startswith("the counters do not say of which engine they are")
    assert f"note: {note}" in run("plan", "config.yaml", "--trace", "old.json").stdout


@pytest.mark.parametrize("prompts", ["short", "long"])
def test_metrics_agree_with_counters_and_add_up(prompts: str) -> None:
    name = "config-short.json" if prompts == "short" else "planned-long.json"
    graphs = json.loads(Path(name).read_text())["graphs"]
    metrics = dict(graph_metrics(Path(f"{prompts}.prom").read_text()))

    counted = {
        (metric, label): value
        for label, counts in graphs.items()
        for metric, value in {
            "steps": counts["num_steps"],
            "real_tokens": counts["real_tokens"],
            "padded_tokens": counts["padded_tokens"],
            "waste_tokens": counts["padded_tokens"] - counts["real_tokens"],
            "step_seconds": pytest.approx(counts["seconds"]),
        }.items()
    }
    assert metrics == counted
    lines = map(json.loads, Path(f"{prompts}.jsonl").read_text().splitlines())
    assert total(metrics, "real_tokens") == num_tokens_run(list(lines))
    assert total(metrics, "real_tokens", "waste_tokens") == total(metrics, "padded_tokens")


def graph_metrics(text: str) -> Iterator[tuple[tuple[str, str], float]]:
    """Yield what each graph counts, by metric and label."""
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if "graph" in sample.labels:
                name = family.name.removeprefix("noria_")
                yield (name, sample.labels["graph"]), sample.value


def total(metrics: dict[tuple[str, str], float], *names: str) -> float:
    return sum(value for (name, _), value in metrics.items() if name in names)


def num_tokens_run(requests: Sequence[dict[str, Any]]) -> int:
    """Return prompt tokens and new ones that run again: all but the last of each request."""
    return sum(len(one["prompt_token_ids"]) + one["max_tokens"] - 1 for one in requests)
