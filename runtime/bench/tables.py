"""A report for readers: tables on a terminal, and what to keep in mind about them."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from .detokenize import DetokenizeTime
from .machine import Machine, cpu_name
from .offline import NUM_FIRST_IDS
from .report import LOUD_SHARE, Report, Row, is_loud
from .roofline import job_flop
from .start import COLD, WARM, StartReport, start_lines
from .start_worker import StartReply
from .step import StepProfile, profile_lines

PLAIN_WIDTH = 160
"""Columns where the output is no terminal, whose width would be known."""


def print_report(report: Report, console: Console | None = None) -> None:
    """Print a report on ``console``, by default stdout."""
    out = console or stdout_console()
    work, machine = report.workload, report.machine
    out.print(
        f"{report.model}: {work.num_prompts} prompts of {work.prompt_len} random ids, "
        f"{work.new_tokens} new tokens each, greedy ({work.num_new_tokens} new tokens, "
        f"{job_flop(report.cost, work) / 1e9:.0f} GFLOP)",
        highlight=False,
    )
    out.print(_machine_line(machine), highlight=False)
    out.print(_table(report))
    for note in _notes(report):
        out.print(note, highlight=False)


def print_steps(
    machine: Machine, profiles: Sequence[StepProfile], console: Console | None = None
) -> None:
    """Print one table per step on ``console``, by default stdout."""
    out = console or stdout_console()
    out.print(_machine_line(machine), highlight=False)
    (flop_s,) = machine.flop_s.values()
    for profile in profiles:
        table = Table(show_edge=False, header_style="bold", title=profile.label)
        table.add_column("part", no_wrap=True)
        for heading in ("count", "ms", "of step", "GFLOP/s", "GB/s", "of roof"):
            table.add_column(heading, justify="right")
        for cells in profile_lines(profile, flop_s=flop_s, read_bytes_s=machine.read_bytes_s):
            table.add_row(*cells)
        out.print(table)


def print_detokenizing(
    times: Sequence[DetokenizeTime], *, num_streams: int, console: Console | None = None
) -> None:
    """Print one row per text on ``console``, by default stdout."""
    out = console or stdout_console()
    out.print(f"{cpu_name()}, 1 thread: a step of {num_streams} streams", highlight=False)
    table = Table(show_edge=False, header_style="bold")
    table.add_column("text", no_wrap=True)
    for heading in ("us/step", "95 %", "us/token", "tokens/character", "exact"):
        table.add_column(heading, justify="right")
    for time in times:
        table.add_row(
            time.text,
            f"{1e6 * time.seconds:.0f}",
            f"{1e6 * time.late:.0f}",
            f"{1e6 * time.seconds / num_streams:.2f}",
            f"{time.tokens_per_character:.2f}",
            "yes" if time.is_exact else "NO",
        )
    out.print(table)


def print_start(report: StartReport, console: Console | None = None) -> None:
    """Print seconds by part, then what is known of graphs, on ``console``, by default stdout."""
    out = console or stdout_console()
    out.print(f"{report.model}: {report.cpu}, {report.num_threads} threads", highlight=False)
    table = Table(show_edge=False, header_style="bold")
    table.add_column("seconds of", no_wrap=True)
    for heading in ("cold", "min .. max", "warm", "min .. max"):
        table.add_column(heading, justify="right", no_wrap=True)
    for cells in start_lines(report):
        table.add_row(*cells)
    out.print(table)
    for line in _start_notes(report):
        out.print(line, highlight=False)


def _start_notes(report: StartReport) -> list[str]:
    replies = {kind: report.of_kind(kind)[-1].reply for kind in (COLD, WARM)}
    notes = [
        f"medians of {len(report.starts) // 2} alternating starts of each kind; weights: reading "
        "and packing them.",
        *(_reply_line(kind, reply) for kind, reply in replies.items()),
        f"set: compiled in {report.set_seconds:.1f} s, {report.set_bytes / 2**20:.1f} MiB.",
    ]
    if report.graph_bytes is not None:
        notes.append(f"one more model graph of the set: {report.graph_bytes / 2**20:.2f} MiB.")
    notes += [
        f"{step.label}: {1e3 * step.loaded:.1f} ms from the set, {1e3 * step.compiled:.1f} ms "
        f"compiled here: {step.loaded / step.compiled:.3f} times as long."
        for step in report.steps
    ]
    shares = [start.others_share for start in report.starts if start.others_share is not None]
    if is_loud(max(shares, default=None)):
        notes.append(f"! others used up to {max(shares):.0%} of the CPUs: measure again.")
    return notes


def _reply_line(kind: str, reply: StartReply) -> str:
    memory = "" if reply.pss_bytes is None else f", {reply.pss_bytes / 2**20:.0f} MiB"
    counts = f"{reply.num_graphs} model graphs, {reply.num_compilations} compilations"
    return f"{kind}: {counts}{memory}."


def _machine_line(machine: Machine) -> str:
    peaks = ", ".join(f"{dtype} {flop / 1e9:.0f}" for dtype, flop in machine.flop_s.items())
    return (
        f"{machine.cpu}, {machine.num_threads} threads: reads {machine.read_bytes_s / 1e9:.1f} "
        f"GB/s, multiplies at {peaks} GFLOP/s; others used "
        f"{_others(machine.others_share)} of the CPUs"
    )


def stdout_console() -> Console:
    """Return a console on stdout, of a fixed width where that is no terminal."""
    console = Console()
    return console if console.is_terminal else Console(width=PLAIN_WIDTH)


def _table(report: Report) -> Table:
    table = Table(show_edge=False, header_style="bold")
    for heading in ("engine", "version", "weights", "activations"):
        table.add_column(heading, no_wrap=True)
    for heading in (
        "out tok/s",
        "min .. max",
        "x Noria",
        "of roof",
        "start-up s",
        "peak MiB",
        "same ids",
        "others",
    ):
        table.add_column(heading, justify="right")
    for row in report.rows:
        if row.rate:
            table.add_row(*_cells(row))
    return table


def _cells(row: Row) -> tuple[str, ...]:
    assert row.rate is not None
    return (
        row.engine,
        row.version or "",
        row.weights,
        row.activations,
        f"{row.rate.median:.1f}",
        f"{row.rate.lowest:.1f} .. {row.rate.highest:.1f}",
        "-" if row.noria_ratio is None else f"{row.noria_ratio:.2f}",
        _percent(row.roof_share),
        "-" if row.start_up_s is None else f"{row.start_up_s:.1f}",
        "-" if row.peak_rss_bytes is None else f"{row.peak_rss_bytes / 2**20:.0f}",
        _percent(row.agreement),
        _others(row.others_share),
    )


def _notes(report: Report) -> list[str]:
    notes = [
        "out tok/s: new tokens per second, the median of "
        f"{max((len(row.seconds) for row in report.rows), default=0)} alternating runs.",
        *(f"roof: {line}" for line in _roof_lines(report)),
        *report.notes,
    ]
    if any(row.agreement is not None for row in report.rows):
        notes.append(
            f"same ids: prompts whose first {NUM_FIRST_IDS} ids are Noria's, float32 only."
        )
    shares = [report.machine.others_share, *(row.others_share for row in report.rows)]
    if any(is_loud(share) for share in shares):
        notes.append(
            f"! other processes used more than {LOUD_SHARE:.0%} of the CPUs: measure again on a "
            "quiet machine before comparing."
        )
    notes += [
        f"{row.engine} {row.weights}/{row.activations}: {row.problem}"
        for row in report.rows
        if row.problem is not None
    ]
    return notes


def _roof_lines(report: Report) -> list[str]:
    """Return one line per pair of dtypes, in the order of the rows."""
    lines = {
        (row.weights, row.activations): (
            f"{row.weights} weights, {row.activations} activations: compute "
            f"{row.roofs.compute:.0f}, memory {row.roofs.memory:.0f} tok/s"
        )
        for row in report.rows
    }
    return list(lines.values())


def _others(share: float | None) -> str:
    return _percent(share) + ("!" if is_loud(share) else "")


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f}%"
