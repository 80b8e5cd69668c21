"""The drawings of a report, each for a width of about half a page or a phone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import floor

from .bands import Band
from .numbers import Scale, bytes_text, count_text, graphs_text, percent_text, time_text
from .sentences import chosen_on_curve, graph_name
from .svg import Axis, bar, dot, drawing, grid, label, legend, line, path, round_up, round_values
from .values import PLAN_NAME, Case, Report, Rule

WIDTH = 440
LEFT, RIGHT, TOP = 52, 14, 34
MAX_BAR = 28
TALLEST = 1.4
"""Points of the curve that take this much more than its last are not drawn, to show the others."""


def rules_chart(report: Report) -> str:
    """Draw the seconds of the plan and of other rules, and how much of them is padding."""
    top = max(rule.seconds for rule in report.rules)
    scale = Scale.of_times([top])
    x = Axis(0, top, 0, WIDTH - 78)
    names = ("prefill", "padding of it", "decode", "padding of it")
    parts = [legend(0, 12, list(zip(PARTS, names, strict=True)))]
    y = 44.0
    for rule in report.rules:
        kind = "strong" if rule is report.plan else ""
        parts.append(label(0, y, rule.name, kind=kind))
        parts.append(_stack(rule, x, y + 6, report))
        parts.append(label(x.place(rule.seconds) + 7, y + 20, scale.text(rule.seconds), kind=kind))
        y += 46
    return drawing(WIDTH, y - 14, "Seconds of the traffic by rule", parts)


PARTS = ("prefill", "prefill-pad", "decode", "decode-pad")


def _stack(rule: Rule, x: Axis, y: float, report: Report) -> str:
    spans = [
        (rule.prefill.floor_s, "prefill, its own time"),
        (rule.prefill.seconds - rule.prefill.floor_s, "padding of prefill"),
        (rule.decode.floor_s, "decode, its own time"),
        (rule.decode.seconds - rule.decode.floor_s, "padding of decode"),
    ]
    parts, start = [], 0.0
    for kind, (seconds, name) in zip(PARTS, spans, strict=True):
        at, end = x.place(start), x.place(start + seconds)
        tip = f"{rule.name}: {name}, {time_text(seconds)}"
        parts.append(bar(at, y, end - at, 19, kind, tip))
        start += seconds
    return "".join(parts)


def curve_chart(report: Report) -> str:
    """Draw the seconds of the traffic over those of compiling, with the plan on the curve."""
    here, limit_s = chosen_on_curve(report), report.budget.wall_s
    shown = [one for one in report.curve if one.seconds <= TALLEST * report.curve[-1].seconds]
    plane = _Plane.of([one.wall_s for one in shown], [one.seconds for one in shown]).cut()
    parts = [plane.grid()]
    # What leads down to the first point that is shown comes from above.
    first = plane.at(shown[0].wall_s, plane.y.high * plane.seconds.factor)
    places = [first, *(plane.at(one.wall_s, one.seconds) for one in shown)]
    parts.append(path(places, "plan line", is_steps=True))
    for point in shown:
        tip = (
            f"{graphs_text(point.num_graphs)}: {point.num_prefill} prefill, {point.num_decode} "
            f"decode; compiling {time_text(point.wall_s)}, {bytes_text(point.num_bytes)}, traffic "
            f"{time_text(point.seconds)}"
        )
        parts.append(dot(*plane.at(point.wall_s, point.seconds), 2.6, "plan", tip))
    parts.append(
        label(places[1][0] + 7, places[1][1] - 4, graphs_text(shown[0].num_graphs), kind="note")
    )
    x, y = plane.at(here.wall_s, here.seconds)
    parts.append(dot(x, y, 6, "chosen"))
    side = "end" if x > WIDTH * 0.6 else "start"
    parts.append(
        label(x, y - 14, f"chosen: {graphs_text(here.num_graphs)}", anchor=side, kind="note")
    )
    if limit_s is not None and limit_s / plane.walls.factor <= plane.x.high:
        top, bottom = plane.at(limit_s, plane.y.high * plane.seconds.factor), plane.at(limit_s, 0)
        parts += [
            line(*top, *bottom, "limit"),
            label(top[0] - 4, top[1] + 10, "budget", anchor="end"),
        ]
    return drawing(WIDTH, 250, "Seconds of the traffic over compile seconds", parts)


def warm_up_chart(report: Report) -> str:
    """Draw the seconds of the traffic after each graph."""
    points = report.warm_up
    plane = _Plane.of([point.wall_s for point in points], [point.seconds for point in points])
    places = [plane.at(point.wall_s, point.seconds) for point in points]
    parts = [plane.grid()]
    parts.append(path([*places, (plane.x.end, places[-1][1])], "plan line", is_steps=True))
    for place, point in zip(places, points, strict=True):
        tip = f"{point.label}: {time_text(point.seconds)} after {time_text(point.wall_s)}"
        parts.append(dot(*place, 2.6, "plan", tip))
    x, y = places[0]
    parts.append(dot(x, y, 6, "chosen"))
    parts.append(label(x + 8, y - 9, f"ready after {time_text(points[0].wall_s)}", kind="note"))
    return drawing(WIDTH, 250, "Seconds of the traffic while graphs arrive", parts)


@dataclass(frozen=True, slots=True)
class _Plane:
    """Compile seconds across and seconds of the traffic upwards, both from 0."""

    x: Axis
    y: Axis
    walls: Scale
    seconds: Scale
    lowest: float

    @classmethod
    def of(cls, wall_s: Sequence[float], seconds: Sequence[float]) -> _Plane:
        walls, times = Scale.of_times(wall_s), Scale.of_times(seconds)
        x = Axis(0, round_up(max(wall_s) / walls.factor), LEFT, WIDTH - RIGHT)
        return cls(
            x, Axis(0, round_up(max(seconds) / times.factor), 210, TOP), walls, times, min(seconds)
        )

    def cut(self) -> _Plane:
        """Return the plane with the lowest values near its lower edge."""
        low = self.lowest / self.seconds.factor
        ticks = round_values(0, self.y.high - low, 4)
        step = ticks[1] - ticks[0]
        return replace(self, y=replace(self.y, low=floor(low / step * 0.999) * step))

    def at(self, wall_s: float, seconds: float) -> tuple[float, float]:
        return (
            self.x.place(wall_s / self.walls.factor),
            self.y.place(seconds / self.seconds.factor),
        )

    def grid(self) -> str:
        titles = [
            label(0, 14, f"traffic, {self.seconds.unit}"),
            label(WIDTH - RIGHT, 246, f"compiling, {self.walls.unit}", anchor="end"),
        ]
        return grid(self.x, self.y, _plain, _plain) + "".join(titles)


def waste_chart(report: Report) -> str:
    """Draw what share of its own time each percent of the prompts wastes, alone."""
    top = max(max(point.plan, point.default or 0.0) for point in report.wastes)
    x = Axis(0, 100, LEFT, WIDTH - RIGHT)
    y = Axis(0, round_up(100 * top), 190, TOP)
    parts = [grid(x, y, _percent, _percent)]
    series: list[tuple[str, list[float]]] = []
    defaults = [point.default for point in report.wastes if point.default is not None]
    if defaults:
        series.append(("default line", defaults))
    series.append(("plan line", [point.plan for point in report.wastes]))
    for kind, values in series:
        places = [(x.place(at + 1), y.place(100 * value)) for at, value in enumerate(values)]
        parts.append(path([(x.start, places[0][1]), *places], kind))
    names = [(f"{kind} line", name) for kind, name in _names(report)]
    parts.append(legend(LEFT + 4, 20, names, "line"))
    parts.append(label(WIDTH - RIGHT, 224, "prompts, those that waste least first", anchor="end"))
    return drawing(WIDTH, 232, "Waste of prompts by percentile", parts)


def band_chart(report: Report, bands: Sequence[Band], what: str) -> str:
    """Draw the waste of bands of sizes, of the plan beside the default."""
    wastes = [
        [("plan", band.plan_s / band.own_s - 1)]
        + ([] if band.default_s is None else [("default", band.default_s / band.own_s - 1)])
        for band in bands
    ]
    y = Axis(0, round_up(100 * max(waste for pair in wastes for _, waste in pair)), 190, TOP)
    x = Axis(0, max(1, len(bands)), LEFT, WIDTH - RIGHT)
    parts = [grid(x, y, None, _percent)]
    for at, (band, pair) in enumerate(zip(bands, wastes, strict=True)):
        width = min(MAX_BAR, (x.place(at + 1) - x.place(at)) * 0.72 / len(pair))
        start = (x.place(at) + x.place(at + 1) - width * len(pair)) / 2
        for number, (kind, waste) in enumerate(pair):
            level = y.place(100 * waste)
            tip = f"{count_text(band.first)} to {count_text(band.last)}: {percent_text(waste)}"
            left = start + number * width
            parts.append(bar(left, level, width - 1, y.start - level, kind, f"{kind}, {tip}"))
        middle = (x.place(at) + x.place(at + 1)) / 2
        parts.append(label(middle, y.start + 17, _short(band.last), anchor="middle"))
    parts.append(legend(LEFT, 20, _names(report)[: len(wastes[0])]))
    parts.append(label(WIDTH - RIGHT, 224, f"{what}, up to", anchor="end"))
    return drawing(WIDTH, 232, f"Waste by {what}", parts)


def decode_map(report: Report) -> str:
    """Draw the decode graphs by requests and context, each as large as the time in it."""
    graphs = [graph for graph in report.graphs if graph.phase == "decode"]
    total_s = sum(graph.seconds for graph in graphs) or 1.0
    x = _doubling([graph.context_len for graph in graphs], 40, WIDTH - RIGHT)
    y = _doubling([graph.size for graph in graphs], 262, 24)
    parts = [grid(x, y, _short, _short)]
    for graph in sorted(graphs, key=lambda one: -one.seconds):
        share = graph.seconds / total_s
        tip = (
            f"{graph_name(graph)}: {percent_text(graph.step_share)} of the steps, "
            f"{percent_text(share)} of the decode time"
        )
        radius = 3 + 46 * share**0.5
        parts.append(dot(x.place(graph.context_len), y.place(graph.size), radius, "bubble", tip))
    for graph in graphs:
        parts.append(dot(x.place(graph.context_len), y.place(graph.size), 2, "decode"))
    parts += [label(0, 14, "requests"), label(WIDTH - RIGHT, 298, "context, tokens", anchor="end")]
    return drawing(WIDTH, 304, "Decode graphs by requests and context", parts)


def cases_chart(report: Report) -> str:
    """Draw what the plan saves, or wastes, under other conditions."""
    has_default = report.default is not None

    def value(case: Case) -> float:
        return 100 * ((case.saved_share or 0.0) if has_default else case.time_waste)

    values = [value(case) for case in report.cases]
    low, high = min(0.0, *values), max(0.0, *values)
    x = Axis(-round_up(-low) if low < 0 else 0.0, round_up(high), 188, WIDTH - 24)
    bottom = 30 + 22 * len(values)
    parts = [grid(x, Axis(0, 1, bottom - 6, 20), _percent, None)]
    here = 100 * report.default.saved_share if report.default else None
    if here is not None:
        parts.append(line(x.place(here), 22, x.place(here), bottom - 6, "limit"))
        parts.append(label(x.place(here), 14, "as planned", anchor="middle", kind="note"))
    for at, (case, share) in enumerate(zip(report.cases, values, strict=True)):
        level = 38 + 22 * at
        parts.append(label(0, level + 4, case.name))
        parts.append(line(x.place(0), level, x.place(share), level, "stem"))
        parts.append(dot(x.place(share), level, 4.5, "plan", f"{case.name}: {share:.1f} %"))
    what = "plan saves" if has_default else "waste"
    parts.append(label(WIDTH - 24, bottom + 30, what, anchor="end"))
    return drawing(WIDTH, bottom + 38, "The plan under other conditions", parts)


def _doubling(values: Sequence[int], start: float, end: float) -> Axis:
    low, high = min(values), max(values)
    return Axis(low / 1.3, high * 1.3, start, end, is_log=True)


def _names(report: Report) -> list[tuple[str, str]]:
    default = [] if report.default is None else [("default", report.default.name)]
    return [("plan", PLAN_NAME), *default]


def _plain(value: float) -> str:
    return f"{value:,g}"


def _percent(value: float) -> str:
    return f"{value:g} %"


def _short(value: float) -> str:
    if value >= 1024 and value % 1024 == 0:
        return f"{value / 1024:g}K"
    return f"{value:g}"
