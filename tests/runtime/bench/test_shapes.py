"""The whole measurement of shapes on tiny models, and what its command prints and writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from click.testing import CliRunner, Result

from noria.bucketing.costs.fit import FittedCosts
from noria.bucketing.costs.measured import MeasuredCosts
from noria.bucketing.costs.table import CostTable
from noria.runtime.bench import kernel_limits
from noria.runtime.bench.shapes import ShapesOptions, bench_shapes
from noria.runtime.cli import main
from noria.runtime.errors import ConfigError
from noria.runtime.model_runner import ModelRunner
from noria.runtime.scheduler_output import SchedulerOutput
from noria.runtime.step_costs import CONTEXT_READS, read_costs

LIVE = CONTEXT_READS["cpu"].decode
ROOT = Path(__file__).resolve().parents[3]
TINY: dict[str, Any] = {
    "model": {
        "vocab_size": 64,
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 64,
    },
    "backend": "cpu",
    "dtype": "float32",
    "max_model_len": 64,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 64,
    "block_size": 8,
    "num_batched_tokens_buckets": [32, 64],
    "num_seqs_buckets": [3, 4],
    "num_threads": 1,
}


@pytest.fixture(autouse=True)
def _small_machine(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Measuring the kernels takes no time; threads are as they were afterwards."""
    monkeypatch.setattr(kernel_limits, "READ_BYTES", 2**16)
    monkeypatch.setattr(kernel_limits, "PRODUCT_SIZE", 64)
    num_threads = torch.get_num_threads()
    yield
    torch.set_num_threads(num_threads)


def write(folder: Path, **changes: Any) -> Path:
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump(TINY | changes))
    return path


def measure(path: Path, sizes: str = "plan", num_seqs: str = "plan") -> CostTable:
    options = ShapesOptions(sizes=sizes, num_seqs=num_seqs, num_rounds=2)
    return bench_shapes(path, options, progress=lambda what, done, total: None)


def command(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["bench", "shapes", *map(str, arguments)])


def test_the_command_measures_the_tiny_configuration(tmp_path: Path) -> None:
    out = tmp_path / "costs.json"

    result = command(ROOT / "configs" / "tiny-cpu.yaml", "-o", out, "--num-rounds", 2)

    assert result.exit_code == 0, result.output
    table = read_costs(out)
    for label in ("prefill_t64_c256", "prefill_t256_c256", "decode_s1_c256", "decode_s4_c256"):
        assert label in result.stdout
        assert label in {graph.graph for graph in table.graphs}
    for source in ("measured", "fitted", "roofline"):
        assert f"{source}: " in result.stdout
    assert MeasuredCosts(table, LIVE).prefill_s(100, 100) > 0
    assert FittedCosts.fit(table, LIVE).decode_s(3, 100) > 0


def test_every_step_is_there_with_its_graph_and_what_it_took(tmp_path: Path) -> None:
    table = measure(write(tmp_path), sizes="auto", num_seqs="auto")

    prefill = [(s.graph, s.num_rows, s.context) for s in table.prefill]
    assert prefill == [
        ("prefill_t16_c64", 16, 0),
        ("prefill_t16_c64", 16, 12),
        ("prefill_t16_c64", 16, 48),
        ("prefill_t32_c64", 32, 0),
        ("prefill_t64_c64", 64, 0),
    ]
    assert {s.num_rows for s in table.decode} == {1, 2, 3, 4}
    assert {s.context for s in table.decode} == {4, 16, 64}
    for step in (*table.prefill, *table.decode):
        assert step.seconds > 0
        assert step.spread >= 0
        assert step.num_rounds == 2
    graphs = {graph.graph: graph for graph in table.graphs}
    assert {s.graph for s in (*table.prefill, *table.decode)} == set(graphs)
    assert all(graph.compile_s > 0 and graph.num_bytes > 1000 for graph in graphs.values())
    assert graphs["decode_s3_c64"].num_rows == 3
    assert table.device.backend == "cpu"
    assert (table.dtype, table.model.num_layers, table.num_logits_rows) == ("float32", 2, 4)
    assert {"noria", "torch", "python"} <= set(table.software)
    assert table.sheet is not None
    assert table.sheet.flop_s["float32"] > 0


def test_progress_goes_through_graphs_and_rounds_to_its_end(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    options = ShapesOptions(sizes="plan", num_seqs="plan", num_rounds=2)

    bench_shapes(write(tmp_path), options, progress=lambda what, *count: seen.append(count))

    assert [done for done, _ in seen] == [0, 1, 2, 3, 4, 4, 5, 6, 7]
    assert {total for _, total in seen} == {4 + 3}


def test_sizes_that_are_named_join_those_of_the_plan(tmp_path: Path) -> None:
    table = measure(write(tmp_path), sizes="8,48", num_seqs="2")

    assert sorted({s.num_rows for s in table.prefill}) == [8, 32, 48, 64]
    assert sorted({s.num_rows for s in table.decode}) == [2, 3, 4]


def test_the_plan_alone_can_be_measured(tmp_path: Path) -> None:
    table = measure(write(tmp_path))

    assert sorted({s.num_rows for s in table.prefill}) == [32, 64]
    assert sorted({s.num_rows for s in table.decode}) == [3, 4]
    assert MeasuredCosts(table, LIVE).prefill_s(32, 32) > 0


def test_each_step_runs_in_the_graph_of_its_context(tmp_path: Path) -> None:
    table = measure(write(tmp_path, decode_context_length_buckets=[16]))

    graphs = {(s.num_rows, s.context): s.graph for s in table.decode}
    assert graphs[3, 16] == graphs[3, 4] == "decode_s3_c16"
    assert graphs[3, 64] == "decode_s3_c64"
    assert {(s.context, s.graph_context) for s in table.decode} == {(4, 16), (16, 16), (64, 64)}
    assert {s.graph_context for s in table.prefill} == {64}


def test_steps_are_full_and_no_two_requests_share_a_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs: list[tuple[str, SchedulerOutput]] = []
    run = ModelRunner.run_graph

    def noted(runner: ModelRunner, graph: Any, output: SchedulerOutput) -> None:
        outputs.append((graph.bucket.label, output))
        run(runner, graph, output)

    monkeypatch.setattr(ModelRunner, "run_graph", noted)
    table = measure(write(tmp_path))

    steps = (*table.prefill, *table.decode)
    assert len(outputs) == 3 * len(steps)  # one round that does not count, and two
    rounds = [outputs[at : at + len(steps)] for at in range(0, len(outputs), len(steps))]
    assert rounds[1] != rounds[2]  # in another order
    expected = sorted((s.graph, s.num_rows, s.context) for s in steps)
    for one in rounds:
        assert sorted(map(row_of, one)) == expected
    for _, output in outputs:
        blocks = [b for r in output.requests for b in r.block_tables[0].block_ids]
        assert len(set(blocks)) == len(blocks)
        assert 0 not in blocks


def row_of(noted: tuple[str, SchedulerOutput]) -> tuple[str, int, int]:
    """Return graph, rows and context of a step that ran, as a table counts them."""
    label, output = noted
    computed = {request.num_computed_tokens for request in output.requests}
    is_decode = label.startswith("decode")
    assert len(computed) == 1
    return label, output.num_scheduled_tokens, computed.pop() + is_decode


@pytest.mark.parametrize(
    ("num_blocks", "longest"), [(17, {1: 64, 2: 64, 4: 16}), (16, {1: 64, 2: 16, 4: 16})]
)
def test_contexts_that_no_block_is_left_for_are_not_measured(
    num_blocks: int, longest: dict[int, int], tmp_path: Path
) -> None:
    """Block 0 is nobody's: 17 blocks of 8 tokens hold two requests of 64, 16 do not."""
    table = measure(write(tmp_path, num_blocks=num_blocks), num_seqs="1,2")

    found = {n: max(s.context for s in table.decode if s.num_rows == n) for n in longest}
    assert found == longest


def test_layers_with_windows_have_tables_of_their_own(tmp_path: Path) -> None:
    model = TINY["model"] | {"model_type": "mistral", "sliding_window": 16}

    table = measure(write(tmp_path, model=model))

    assert table.model.windows == (16, 16)
    assert max(s.context for s in table.decode) == 64


def test_models_with_experts_are_measured(tmp_path: Path) -> None:
    model = TINY["model"] | {
        "model_type": "qwen3_moe",
        "head_dim": 8,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "norm_topk_prob": True,
    }

    table = measure(write(tmp_path, model=model))

    assert (table.model.num_expert_layers, table.model.num_experts) == (2, 4)


def test_a_simulated_device_is_refused() -> None:
    with pytest.raises(ConfigError, match="backend: neuron-sim is no device whose seconds"):
        measure(ROOT / "configs" / "tiny-neuron-sim.yaml")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("--sizes", "65"), "--sizes: '65' is not a whole number from 1 to 64"),
        (("--num-seqs", "x"), "--num-seqs: 'x' is not a whole number from 1 to 4"),
    ],
)
def test_sizes_beyond_the_configuration_are_a_mistake_and_write_nothing(
    arguments: tuple[str, str], error: str, tmp_path: Path
) -> None:
    out = tmp_path / "costs.json"

    result = command(write(tmp_path), "-o", out, *arguments)

    assert result.exit_code == 2
    assert error in result.output
    assert not out.exists()


def test_a_folder_that_is_not_there_is_said_at_once(tmp_path: Path) -> None:
    result = command(write(tmp_path), "-o", tmp_path / "none" / "costs.json")

    assert result.exit_code == 2
    assert "there is no folder" in result.output
    assert "round" not in result.output


def test_a_loud_machine_is_mentioned(tmp_path: Path) -> None:
    from noria.runtime.cli.shape_tables import cost_table_text

    out = tmp_path / "costs.json"
    command(write(tmp_path), "-o", out, "--num-rounds", 1, "--sizes", "plan")
    data = json.loads(out.read_text())

    texts = {}
    for share in (0.01, 0.5, None):
        out.write_text(json.dumps(data | {"others_share": share}))
        texts[share] = cost_table_text(read_costs(out))

    assert "others used 50.0% of the CPUs" in texts[0.5]
    assert "others used" not in texts[0.01] + texts[None]
