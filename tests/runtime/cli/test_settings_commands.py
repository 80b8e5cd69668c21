"""``check``, ``plan``, ``version`` and help: what needs no model."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from importlib.resources import as_file, files
from pathlib import Path

import pytest
from click.testing import Result
from plans import plan_data

from noria.runtime.cli import main
from noria.runtime.config import load_config

Run = Callable[..., Result]
SHIPPED = sorted(
    resource.name for resource in files("noria.configs").iterdir() if resource.name[-5:] == ".yaml"
)


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_configuration_passes_check_and_plan(run: Run, name: str) -> None:
    with as_file(files("noria.configs") / name) as path:
        checked, planned = run("check", path), run("plan", path)

    assert (checked.exit_code, checked.stderr) == (0, "")
    assert checked.stdout.startswith("OK ")
    assert checked.stdout.count("\n") == 1
    assert (planned.exit_code, planned.stderr) == (0, "")


def test_check_prints_the_resolved_essentials(run: Run, config: Path) -> None:
    result = run("check", config)

    assert result.stdout == (
        f"OK {config}: inline model on reference in float32, max_model_len 64, max_num_seqs 4, "
        "prefill graphs: 2 (to 64 tokens), decode graphs: 2 (to 4 requests)\n"
    )


def test_check_prints_every_resolved_setting_as_json(run: Run, config: Path) -> None:
    found = json.loads(run("check", config, "--json").stdout)

    assert found["ok"] is True
    assert found["config"] == load_config(config).to_mapping()
    assert found["config"]["max_num_prefill_seqs"] == 4
    assert sorted(found["graphs"]) == [
        "decode_s2_c64",
        "decode_s4_c64",
        "prefill_t32_c64",
        "prefill_t64_c64",
    ]


def test_plan_prints_a_row_per_graph_and_totals(run: Run, config: Path) -> None:
    lines = run("plan", config).stdout.splitlines()

    # 33 to 64 tokens run in the larger prefill graph, 3 or 4 requests in the larger decode graph.
    assert [line.split() for line in lines[1:5]] == [
        ["prefill_t64_c64", "64", "64", "4", "33", "48.4%", "24.2%", "100.0%"],
        ["decode_s4_c64", "4", "64", "4", "3", "25.0%", "12.5%", "100.0%"],
        ["prefill_t32_c64", "32", "64", "4", "1", "96.9%", "48.4%", "50.0%"],
        ["decode_s2_c64", "2", "64", "4", "1", "50.0%", "25.0%", "50.0%"],
    ]
    assert lines[-1] == "4 graphs: 2 prefill, 2 decode; at worst 96.9% of a step is padding"


def test_plan_as_json_has_the_same_numbers(run: Run, config: Path) -> None:
    found = json.loads(run("plan", config, "--json").stdout)

    assert (found["num_graphs"], found["num_prefill_graphs"], found["num_decode_graphs"]) == (
        4,
        2,
        2,
    )
    assert found["worst_padding"] == 31 / 32
    assert found["graphs"][1] == {
        "label": "decode_s4_c64",
        "phase": "decode",
        "num_rows": 4,
        "context_len": 64,
        "table_width": 4,
        "smallest_need": 3,
        "worst_padding": 0.25,
        "expected_padding": 0.125,
        "relative_work": 1.0,
    }


def test_plan_counts_the_graph_for_logprobs_of_prompts(run: Run) -> None:
    with as_file(files("noria.configs") / "smollm2-135m-sampling.yaml") as path:
        text, found = run("plan", path).stdout, json.loads(run("plan", path, "--json").stdout)

    assert "5 graphs: 2 prefill, 2 decode, 1 score; " in text
    assert found["num_score_graphs"] == 1


def test_plan_of_a_neuron_configuration_has_whole_folds(run: Run) -> None:
    with as_file(files("noria.configs") / "llama3-8b-trn2.yaml") as path:
        graphs = json.loads(run("plan", path, "--json").stdout)["graphs"]

    assert all(graph["table_width"] % 128 == 0 for graph in graphs)


@pytest.mark.parametrize(
    "arguments", [["--help"], ["generate", "--help"], ["check", "FILE"], ["plan", "FILE"]]
)
def test_no_torch_is_imported(config: Path, arguments: list[str]) -> None:
    given = [str(config) if argument == "FILE" else argument for argument in arguments]
    code = (
        "import sys; from noria.runtime.cli import main; "
        f"main({given!r}, standalone_mode=False); "
        "print({'torch', 'tokenizers', 'numpy'} & set(sys.modules), file=sys.stderr)"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)

    assert (done.returncode, done.stderr) == (0, "set()\n")


@pytest.mark.parametrize("name", ["", *sorted(main.commands)])
def test_every_command_explains_itself(run: Run, name: str) -> None:
    result = run(*name.split(), "--help")

    assert result.exit_code == 0
    assert result.stdout.startswith("Usage: ")


@pytest.mark.parametrize("name", ["", "generate"])
def test_help_documents_the_exit_statuses(run: Run, name: str) -> None:
    lines = run(*name.split(), "--help").stdout.splitlines()

    start = lines.index("  Exit status:")
    assert [line.split()[0] for line in lines[start + 1 : start + 5]] == ["0", "1", "2", "130"]


def test_version_names_noria_python_and_torch(run: Run) -> None:
    names = [line.split()[0] for line in run("version").stdout.splitlines()]

    assert names == ["noria", "python", "torch"]


def test_check_says_which_prompts_a_small_prefill_limit_cuts(
    run: Run, make_config: Callable[..., Path]
) -> None:
    config = make_config(max_num_batched_tokens=32, num_batched_tokens_buckets=[32])

    result = run("check", config)

    assert "prompts of more than 32 tokens run in chunks" in result.stdout
    assert "chunks" not in run("check", make_config("whole.yaml")).stdout


def test_check_warns_of_waste_and_strict_makes_it_a_status(
    run: Run, make_config: Callable[..., Path]
) -> None:
    config = make_config(max_num_batched_tokens=65)

    usual, strict, listed = (run("check", config, *more) for more in ([], ["--strict"], ["--json"]))

    assert (usual.exit_code, usual.stdout) == (0, strict.stdout)
    assert usual.stderr.startswith("Warning: max_num_batched_tokens: is 65, but no step has more")
    assert usual.stderr.endswith(" [limit-without-effect]\n")
    assert (strict.exit_code, strict.stderr) == (1, usual.stderr)
    assert (listed.exit_code, listed.stderr) == (0, "")
    (finding,) = json.loads(listed.stdout)["lints"]
    assert f"Warning: {finding['text']} [{finding['lint']}]\n" == usual.stderr


def test_strict_is_content_where_there_is_no_warning(run: Run, config: Path) -> None:
    result = run("check", config, "--strict", "--json")

    assert (result.exit_code, json.loads(result.stdout)["lints"]) == (0, [])


def test_a_plan_is_shown_with_its_policy(run: Run, make_config: Callable[..., Path]) -> None:
    chunks = ((1, 16), (17, 64))
    plan = plan_data((16, 64), block_size=16, chunks=chunks)
    config = make_config(buckets=plan, num_batched_tokens_buckets=None, num_seqs_buckets=None)

    checked, planned = run("check", config).stdout, run("plan", config).stdout
    found = json.loads(run("plan", config, "--json").stdout)

    assert (
        "decode graphs: 5 (to 4 requests), as planned: prompts are covered by chunks of " in checked
    )
    assert planned.splitlines()[-1] == "prompts are covered by chunks of 16, 64 tokens"
    assert (found["policy"], found["num_graphs"]) == ("cover", 7)
    shares = {graph["label"]: graph["relative_work"] for graph in found["graphs"]}
    assert shares["prefill_t16_c64"] == 16 / 64
    assert shares["decode_s2_c16"] == pytest.approx(2 * 116 / (4 * 164))
