"""What a reader of a report sees."""

from __future__ import annotations

import io

from rich.console import Console

from noria.runtime.bench.machine import Machine
from noria.runtime.bench.offline import PeerResult, Sample
from noria.runtime.bench.peer_process import Started, Variant
from noria.runtime.bench.report import build_report
from noria.runtime.bench.roofline import ModelCost, stored_as
from noria.runtime.bench.tables import print_report
from noria.runtime.bench.workload import Workload


def printed(*results: PeerResult, machine_others: float | None = 0.0) -> str:
    report = build_report(
        results,
        model="tiny",
        workload=Workload(num_prompts=2, prompt_len=3, new_tokens=5, vocab_size=10),
        cost=ModelCost(num_body_params=10**9, num_head_params=10**8),
        machine=Machine("a CPU", 2, 5e10, {"float32": 2e11}, machine_others),
    )
    stream = io.StringIO()
    print_report(report, Console(file=stream, width=160))
    return stream.getvalue()


def measured(engine: str, *, others: float = 0.01) -> PeerResult:
    return PeerResult(
        Variant(engine, stored_as("float16"), "float32"),
        started=Started("1.2", 3.25),
        samples=[Sample(0.5, others), Sample(1.0, others), Sample(0.8, others)],
        first_ids=((1,),),
        peak_rss_bytes=3 * 2**20,
    )


def test_a_row_names_dtypes_rate_spread_memory_and_start_up() -> None:
    text = printed(measured("noria"))

    (line,) = [line for line in text.splitlines() if line.strip().startswith("noria ")]
    cells = [cell.strip() for cell in line.split("\u2502")]
    assert cells == [
        "noria",
        "1.2",
        "float16",
        "float32",
        "12.5",
        "10.0 .. 20.0",
        "1.00",
        "27.5%",
        "3.2",
        "3",
        "-",
        "1.0%",
    ]


def test_the_head_tells_workload_and_machine() -> None:
    text = printed(measured("noria"))

    assert "tiny: 2 prompts of 3 random ids, 5 new tokens each" in text
    assert "34 GFLOP" in text
    assert "reads 50.0 GB/s, multiplies at float32 200 GFLOP/s; others used 0.0%" in text
    assert "float16 weights, float32 activations: compute 59, memory 45 tok/s" in text


def test_an_engine_that_did_not_run_is_listed_with_the_reason() -> None:
    missing = PeerResult(
        Variant("other", stored_as("float32"), "float32"), problem="python has no other"
    )

    text = printed(measured("noria"), missing)

    assert "other float32/float32: python has no other" in text


def test_a_quiet_machine_has_no_warning_and_a_loud_one_has() -> None:
    assert "quiet machine" not in printed(measured("noria"))
    assert "quiet machine" in printed(measured("noria", others=0.2))
    assert "20.0%!" in printed(measured("noria", others=0.2))
    assert "quiet machine" in printed(measured("noria"), machine_others=0.2)
