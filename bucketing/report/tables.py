"""The tables of a report: titles, heads and cells as text, for whatever prints them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .bands import Band
from .numbers import Scale, count_text, percent_text, time_text
from .sentences import chosen_on_curve, graph_name
from .values import Report


@dataclass(frozen=True, slots=True)
class Table:
    """Attributes:
    head: of the columns.
    rows: of cells; the first of each is a name.
    shares: of the last column's numbers, to be drawn as bars; empty: none.
    is_drawn: whether a drawing shows the same.
    marked: place of the row of the plan, among others'; None: there is none.
    """

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    shares: tuple[float, ...] = ()
    is_drawn: bool = False
    marked: int | None = None


def rules_table(report: Report) -> Table:
    """Compare the plan with other rules."""
    rules = report.rules
    seconds = Scale.of_times([rule.seconds for rule in rules])
    walls = Scale.of_times([rule.wall_s for rule in rules])
    sizes = Scale.of_bytes([rule.num_bytes for rule in rules])
    steps = Scale.of_times([rule.decode.step_s for rule in rules])
    head = (
        "graphs of",
        "graphs",
        f"compiling, {walls.unit}",
        f"memory, {sizes.unit}",
        f"traffic, {seconds.unit}",
        "prefill waste",
        "decode waste",
        f"decode step, {steps.unit}",
        "plan saves",
    )
    rows = [
        (
            rule.name,
            str(rule.num_graphs),
            walls.number(rule.wall_s),
            sizes.number(rule.num_bytes),
            seconds.number(rule.seconds),
            percent_text(rule.prefill.time_waste),
            percent_text(rule.decode.time_waste),
            steps.number(rule.decode.step_s),
            "-" if rule is report.plan else percent_text(rule.saved_share),
        )
        for rule in rules
    ]
    return Table(head, tuple(rows), marked=0)


def graphs_table(report: Report, phase: str) -> Table:
    """Show what every graph of a phase does and is worth."""
    graphs = [graph for graph in report.graphs if graph.phase == phase]
    seconds = Scale.of_times([graph.seconds for graph in graphs])
    compiling = Scale.of_times([graph.compile_s for graph in graphs])
    head = (
        f"{phase} graph",
        "steps",
        "of all steps",
        f"takes, {seconds.unit}",
        f"compiling, {compiling.unit}",
        "pays after",
        "longer without",
    )
    rows = [
        (
            graph_name(graph).removeprefix(f"{phase} "),
            count_text(graph.num_steps),
            percent_text(graph.step_share),
            seconds.number(graph.seconds),
            compiling.number(graph.compile_s),
            "-" if graph.pays_after_s is None else time_text(graph.pays_after_s),
            "needed" if graph.longer_share is None else percent_text(graph.longer_share),
        )
        for graph in graphs
    ]
    return Table(head, tuple(rows), tuple(graph.longer_share or 0.0 for graph in graphs))


def band_table(report: Report, bands: Sequence[Band], what: str, counted: str) -> Table:
    """Show the waste of bands of sizes."""
    scale = Scale.of_times([band.plan_s for band in bands])
    head = [what, counted, f"plan, {scale.unit}", "of all waste", "waste"]
    if any(band.default_s is not None for band in bands):
        head.append("waste of default")
    wasted_s = sum(band.plan_s - band.own_s for band in bands)
    rows = [tuple(_band_cells(band, scale, wasted_s)) for band in bands]
    return Table(tuple(head), tuple(rows), is_drawn=True)


def payers_table(report: Report) -> Table:
    """Show what prompts of some lengths take alone."""
    head = ["prompts up to", "tokens", "own time", "with plan"]
    if report.default is not None:
        head.append("with default")
    head += ["waste is up to"] + (["of default"] if report.default is not None else [])
    wastes = {point.percent: point for point in report.wastes}
    rows = []
    for payer in report.payers:
        waste = wastes[payer.percent]
        cells = [f"{payer.percent} %", count_text(payer.prompt_len)]
        cells += [time_text(payer.own_s), time_text(payer.plan_s)]
        cells += [] if payer.default_s is None else [time_text(payer.default_s)]
        cells += [percent_text(waste.plan)]
        cells += [] if waste.default is None else [percent_text(waste.default)]
        rows.append(tuple(cells))
    return Table(tuple(head), tuple(rows))


def prefix_table(report: Report) -> Table:
    """Show what prefill takes where kernels pay otherwise for cached tokens."""
    scale = Scale.of_times([one.seconds for one in report.prefixes])
    rows = [
        (one.prefix, scale.number(one.seconds), percent_text(one.time_waste))
        for one in report.prefixes
    ]
    return Table(("prefix", f"prefill, {scale.unit}", "waste"), tuple(rows))


def cases_table(report: Report) -> Table:
    """Show the plan under other conditions."""
    scale = Scale.of_times([case.seconds for case in report.cases])
    steps = Scale.of_times([case.default_step_s or case.decode_step_s for case in report.cases])
    head = ["if", f"plan, {scale.unit}", "waste"]
    if report.default is not None:
        head += ["plan saves", f"decode step, {steps.unit}", "of default"]
    rows = []
    for case in report.cases:
        cells = [case.name, scale.number(case.seconds), percent_text(case.time_waste)]
        if case.default_step_s is not None:
            cells += [percent_text(case.saved_share), steps.number(case.decode_step_s)]
            cells += [steps.number(case.default_step_s)]
        rows.append(tuple(cells))
    return Table(tuple(head), tuple(rows))


def curve_table(report: Report) -> Table:
    """Show the points of the curve, from few graphs to many."""
    seconds = Scale.of_times([point.seconds for point in report.curve])
    walls = Scale.of_times([point.wall_s for point in report.curve])
    sizes = Scale.of_bytes([point.num_bytes for point in report.curve])
    head = (
        "graphs",
        "prefill",
        "decode",
        f"compiling, {walls.unit}",
        f"memory, {sizes.unit}",
        f"traffic, {seconds.unit}",
    )
    rows = [
        (
            str(point.num_graphs),
            str(point.num_prefill),
            str(point.num_decode),
            walls.number(point.wall_s),
            sizes.number(point.num_bytes),
            seconds.number(point.seconds),
        )
        for point in report.curve
    ]
    here = chosen_on_curve(report)
    marked = report.curve.index(here) if here in report.curve else None
    return Table(head, tuple(rows), is_drawn=True, marked=marked)


def warm_up_table(report: Report) -> Table:
    """Show what the traffic takes after each graph."""
    seconds = Scale.of_times([point.seconds for point in report.warm_up])
    walls = Scale.of_times([point.wall_s for point in report.warm_up])
    rows = [
        (point.label, walls.number(point.wall_s), seconds.number(point.seconds))
        for point in report.warm_up
    ]
    head = ("graph", f"compiled after, {walls.unit}", f"traffic, {seconds.unit}")
    return Table(head, tuple(rows), is_drawn=True)


def _band_cells(band: Band, scale: Scale, wasted_s: float) -> Iterator[str]:
    is_one = band.first == band.last
    yield (
        count_text(band.last) if is_one else f"{count_text(band.first)} to {count_text(band.last)}"
    )
    yield count_text(band.num)
    yield scale.number(band.plan_s)
    yield percent_text((band.plan_s - band.own_s) / wasted_s if wasted_s else 0.0)
    yield percent_text(band.plan_s / band.own_s - 1)
    if band.default_s is not None:
        yield percent_text(band.default_s / band.own_s - 1)
