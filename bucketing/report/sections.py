"""What a report consists of, in its order: sentences, tables and drawings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from .bands import Band
from .charts import (
    band_chart,
    cases_chart,
    curve_chart,
    decode_map,
    rules_chart,
    warm_up_chart,
    waste_chart,
)
from .numbers import count_text, time_text
from .sentences import (
    bill_sentence,
    cost_sentences,
    coverage_sentence,
    graph_sentence,
    next_on_the_curve,
    notable_graphs,
    prefix_sentence,
    proof_sentences,
    ready_sentence,
    step_sentence,
    where_the_time_goes,
    who_pays,
)
from .tables import (
    Table,
    band_table,
    cases_table,
    curve_table,
    graphs_table,
    payers_table,
    prefix_table,
    rules_table,
    warm_up_table,
)
from .values import Report


@dataclass(frozen=True, slots=True)
class Figure:
    """A drawing: what stands above it, and how it is drawn."""

    title: str
    draw: Callable[[Report], str]


Block = str | Table | Figure


@dataclass(frozen=True, slots=True)
class Section:
    """Attributes:
    title: of it.
    blocks: what it shows.
    """

    title: str
    blocks: tuple[Block, ...]


def head_sentence(report: Report) -> str:
    """Say what the traffic is."""
    traffic = report.traffic
    spent = f"{time_text(traffic.window_s)}, {time_text(traffic.busy_s)} of them in steps"
    requests = "Counted steps"
    if traffic.num_requests is not None:
        requests = f"{count_text(traffic.num_requests)} requests"
    running = f"; {traffic.mean_num_seqs:.1f} requests a decode step on average"
    return f"{requests} in {spent}{running if traffic.mean_num_seqs else ''}."


def sections(report: Report) -> Iterator[Section]:
    """Return all sections."""
    if report.traffic.warnings:
        yield Section("Warnings", report.traffic.warnings)
    yield Section("Comparison", tuple(_comparison(report)))
    yield Section("What each graph is worth", tuple(_graphs(report)))
    yield Section("Who pays", tuple(_payers(report)))
    yield Section("How many graphs", tuple(_bill(report)))
    yield Section("Warm-up", tuple(_warm_up(report)))
    yield Section("Under other conditions", tuple(_cases(report)))
    yield Section("Cached tokens of prefill", (prefix_sentence(report), prefix_table(report)))
    yield Section("Coverage", tuple(map(coverage_sentence, report.coverage)))
    yield Section("Costs", tuple(cost_sentences(report)))
    yield Section("Proof", tuple(proof_sentences(report)))


def _comparison(report: Report) -> Iterator[Block]:
    yield Figure("Time in steps, by whose graphs run them", rules_chart)
    yield rules_table(report)
    yield (
        "All are compared for the same steps: simulated with each, slower graphs would run more "
        "requests at once, and be as busy in the same hour."
    )
    yield from where_the_time_goes(report)
    step = step_sentence(report)
    if step is not None:
        yield step


def _graphs(report: Report) -> Iterator[Block]:
    yield from map(graph_sentence, notable_graphs(report))
    yield (
        "Pays after: so much of this traffic must run until a graph has saved what compiling it "
        "takes, shared by all workers."
    )
    if report.phases[1].num_steps:
        yield Figure("Decode graphs; area: time in them", decode_map)
    yield graphs_table(report, "prefill")
    yield graphs_table(report, "decode")


def _payers(report: Report) -> Iterator[Block]:
    prompts = (report.prompt_bands, "prompt tokens", "prompts")
    if report.prompt_bands:
        yield who_pays(report)
        yield Figure("Waste of a prompt alone, by percentile", waste_chart)
        yield payers_table(report)
    else:
        prompts = (report.row_bands, "prefill rows", "steps")
        yield "Prompts are not known, only the steps that they led to."
    for bands, what, counted in (
        prompts,
        (report.request_bands, "decode requests", "steps"),
        (report.context_bands, "decode context", "steps"),
    ):
        if bands:
            yield _band_figure(bands, what)
            yield band_table(report, bands, what, counted)


def _band_figure(bands: Sequence[Band], what: str) -> Figure:
    return Figure(f"Waste by {what}", lambda report: band_chart(report, bands, what))


def _bill(report: Report) -> Iterator[Block]:
    yield bill_sentence(report)
    yield Figure("Time in steps over compiling; the axis does not start at 0", curve_chart)
    yield next_on_the_curve(report)
    yield curve_table(report)


def _warm_up(report: Report) -> Iterator[Block]:
    yield ready_sentence(report)
    yield Figure("Time in steps while graphs arrive", warm_up_chart)
    yield warm_up_table(report)


def _cases(report: Report) -> Iterator[Block]:
    if any(case.about == "traffic" for case in report.cases):
        num = report.num_case_requests
        is_part = num < (report.traffic.num_requests or 0)
        first = f"the first {count_text(num)}" if is_part else "all"
        yield (
            f"Other traffic is simulated: {first} requests, as they came and, where arrivals are "
            "known, at other rates; and as many of both halves together."
        )
    else:
        yield "Other traffic was not simulated."
    if report.cases:
        yield Figure("What the plan saves", cases_chart)
        yield cases_table(report)
