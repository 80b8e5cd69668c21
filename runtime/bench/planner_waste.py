"""What ``noria bench planner`` found, and its tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from rich.table import Table

from .tables import stdout_console

HALVES_COUNT = 8
"""Sizes of the sets that are planned on the earlier half of a trace."""
MAX_COUNT = 16
"""Most sizes of a prefill set that is looked at."""


@dataclass(frozen=True, slots=True)
class PrefillWaste:
    """Tokens that padded prompts run beside the real ones, as a share of these.

    Attributes:
        num_doubling: sizes that double from 128 on.
        doubling: their waste.
        optimal: waste of the best sets, by their number of sizes.
        first_half: of the best ``HALVES_COUNT`` sizes for the earlier half, paid on the later.
        hindsight: of the best for the later half itself.
    """

    num_doubling: int
    doubling: float
    optimal: dict[int, float]
    first_half: float
    hindsight: float


@dataclass(frozen=True, slots=True)
class CoverWaste:
    """Seconds beside those of graphs of exactly the prompts' sizes, as a share of these.

    Attributes:
        padded: of sizes that double, one graph a prompt.
        covered: of the same sizes, several graphs a prompt.
        searched: of sizes chosen for covering, by their number.
    """

    padded: float
    covered: float
    searched: dict[int, float]


@dataclass(frozen=True, slots=True)
class DecodeWaste:
    """Seconds beside those of a graph for every cell of the grid, as a share of these.

    Attributes:
        num_doubling: graphs of both axes doubling.
        doubling: their waste.
        chosen: waste of chosen sets, by their number of graphs.
        gap: how far the largest of these is at most above the best there is.
    """

    num_doubling: int
    doubling: float
    chosen: dict[int, float]
    gap: float | None


@dataclass(frozen=True, slots=True)
class TracePlans:
    """All findings for one trace.

    Attributes:
        name: of its file.
        num_requests: in it.
        prefill: padding.
        cover: covering.
        decode: None where the trace has no arrivals or no output lengths.
        read_s: seconds that reading took.
        plan_s: seconds for all numbers of sizes up to ``MAX_COUNT``, for tokens and for time.
    """

    name: str
    num_requests: float
    prefill: PrefillWaste
    cover: CoverWaste
    decode: DecodeWaste | None
    read_s: float
    plan_s: float


def planner_json(found: Sequence[TracePlans]) -> list[dict[str, object]]:
    """Return the findings as plain data."""
    return [asdict(one) for one in found]


def print_planner(found: Sequence[TracePlans]) -> None:
    """Print one table per question, a row per trace."""
    console = stdout_console()
    for table in (_prefill_table(found), _cover_table(found), _decode_table(found)):
        console.print(table)
        console.print()
    for one in found:
        console.print(
            f"{one.name}: {one.num_requests:,.0f} requests read in {one.read_s:.2f} s; the best "
            f"sizes of every number up to {MAX_COUNT}, for tokens and for time: {one.plan_s:.2f} s",
            highlight=False,
        )


def _prefill_table(found: Sequence[TracePlans]) -> Table:
    table = _table(f"prefill: padded tokens, best sets by size; {HALVES_COUNT} sizes of one half")
    counts = sorted({num for one in found for num in one.prefill.optimal})
    for heading in ("doubling", *map(str, counts), "planned on 1st half", "best for 2nd"):
        table.add_column(heading, justify="right")
    for one in found:
        waste = one.prefill
        cells = [_share(waste.optimal.get(num)) for num in counts]
        doubling = f"{_share(waste.doubling)} ({waste.num_doubling})"
        halves = (_share(waste.first_half), _share(waste.hindsight))
        table.add_row(one.name, doubling, *cells, *halves)
    return table


def _cover_table(found: Sequence[TracePlans]) -> Table:
    table = _table("covering: seconds, prefix exact; sets chosen for it by size")
    counts = sorted({num for one in found for num in one.cover.searched})
    for heading in ("doubling, padded", "doubling, covered", *map(str, counts)):
        table.add_column(heading, justify="right")
    for one in found:
        cells = [_share(one.cover.searched.get(num)) for num in counts]
        table.add_row(one.name, _share(one.cover.padded), _share(one.cover.covered), *cells)
    return table


def _decode_table(found: Sequence[TracePlans]) -> Table:
    table = _table("decode: seconds above a graph for every cell; ragged sets by size")
    simulated = [(one.name, one.decode) for one in found if one.decode is not None]
    counts = sorted({num for _, waste in simulated for num in waste.chosen})
    for heading in ("doubling", *map(str, counts), "gap of the largest"):
        table.add_column(heading, justify="right")
    for name, waste in simulated:
        cells = [_share(waste.chosen.get(num)) for num in counts]
        doubling = f"{_share(waste.doubling)} ({waste.num_doubling})"
        table.add_row(name, doubling, *cells, _share(waste.gap, digits=2))
    return table


def _table(title: str) -> Table:
    table = Table(title=title, title_justify="left", show_edge=False, header_style="bold")
    table.add_column("trace", no_wrap=True)
    return table


def _share(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{100 * value:.{digits}f}%"
