"""What ``noria bench planner`` found, and its tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from rich.table import Table

from .tables import stdout_console

HALVES_COUNT = 8
"""Sizes of the padded sets that are planned on the earlier half of a trace."""
HALVES_COVER_COUNT = 4
"""Sizes of the covering sets that are."""
HALVES_DECODE_COUNT = 12
"""Graphs of the decode sets that are."""
HALVES = ("planned on 1st half", "chosen for 2nd")
MAX_COUNT = 16
"""Most sizes of a prefill set that is looked at."""


@dataclass(frozen=True, slots=True)
class HalvesWaste:
    """Waste in the later half of a trace.

    Attributes:
        planned: of a set that was chosen for the earlier half.
        hindsight: of one that was chosen for the later half itself.
    """

    planned: float
    hindsight: float


@dataclass(frozen=True, slots=True)
class PrefillWaste:
    """Tokens that padded prompts run beside the real ones, as a share of these.

    Attributes:
        num_doubling: sizes that double from 128 on.
        doubling: their waste.
        optimal: waste of the best sets, by their number of sizes.
        halves: of the best ``HALVES_COUNT`` sizes.
    """

    num_doubling: int
    doubling: float
    optimal: dict[int, float]
    halves: HalvesWaste


@dataclass(frozen=True, slots=True)
class CoverWaste:
    """Seconds beside those of graphs of exactly the prompts' sizes, as a share of these.

    Attributes:
        padded: of sizes that double, one graph a prompt.
        covered: of the same sizes, several graphs a prompt.
        searched: of sizes chosen for covering, by their number.
        halves: of ``HALVES_COVER_COUNT`` such sizes.
    """

    padded: float
    covered: float
    searched: dict[int, float]
    halves: HalvesWaste


@dataclass(frozen=True, slots=True)
class DecodeWaste:
    """Seconds beside those of a graph for every cell of the grid, as a share of these.

    Attributes:
        num_doubling: graphs of both axes doubling.
        doubling: their waste.
        chosen: waste of chosen sets, by their number of graphs.
        gap: how far the largest of these is at most above the best there is.
        halves: of sets of ``HALVES_DECODE_COUNT``.
    """

    num_doubling: int
    doubling: float
    chosen: dict[int, float]
    gap: float | None
    halves: HalvesWaste


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
    table = _table(f"prefill: padded tokens, best sets by size; 2nd half with {HALVES_COUNT} sizes")
    counts = sorted({num for one in found for num in one.prefill.optimal})
    for heading in ("doubling", *map(str, counts), *HALVES):
        table.add_column(heading, justify="right")
    for one in found:
        waste = one.prefill
        cells = [_share(waste.optimal.get(num)) for num in counts]
        doubling = f"{_share(waste.doubling)} ({waste.num_doubling})"
        table.add_row(one.name, doubling, *cells, *_halves(waste.halves))
    return table


def _cover_table(found: Sequence[TracePlans]) -> Table:
    num = HALVES_COVER_COUNT
    table = _table(f"covering: seconds, prefix exact; chosen by size; 2nd half with {num} sizes")
    counts = sorted({num for one in found for num in one.cover.searched})
    for heading in ("doubling, padded", "doubling, covered", *map(str, counts), *HALVES):
        table.add_column(heading, justify="right")
    for one in found:
        cells = [_share(one.cover.searched.get(num)) for num in counts]
        doubling = (_share(one.cover.padded), _share(one.cover.covered))
        table.add_row(one.name, *doubling, *cells, *_halves(one.cover.halves))
    return table


def _decode_table(found: Sequence[TracePlans]) -> Table:
    num = HALVES_DECODE_COUNT
    table = _table(f"decode: seconds above all cells; ragged by size; 2nd half with {num} graphs")
    simulated = [(one.name, one.decode) for one in found if one.decode is not None]
    counts = sorted({num for _, waste in simulated for num in waste.chosen})
    for heading in ("doubling", *map(str, counts), "gap of the largest", *HALVES):
        table.add_column(heading, justify="right")
    for name, waste in simulated:
        cells = [_share(waste.chosen.get(num)) for num in counts]
        doubling = f"{_share(waste.doubling)} ({waste.num_doubling})"
        gap = _share(waste.gap, digits=2)
        table.add_row(name, doubling, *cells, gap, *_halves(waste.halves))
    return table


def _halves(waste: HalvesWaste) -> tuple[str, str]:
    return _share(waste.planned), _share(waste.hindsight)


def _table(title: str) -> Table:
    table = Table(title=title, title_justify="left", show_edge=False, header_style="bold")
    table.add_column("trace", no_wrap=True)
    return table


def _share(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{100 * value:.{digits}f}%"
