"""What a run did: requests, tokens per second and what padding it ran."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...bucketing import PaddingCounter, StepPadding
from .result_file import Result
from .tables import format_table, percent

if TYPE_CHECKING:
    from ..step_counters import StepCounters

HEADER = ("graph", "steps", "tokens", "with padding", "waste")


@dataclass(slots=True)
class Tally:
    """Counts results as they come."""

    num_prompts: int
    num_finished: int = 0
    num_failed: int = 0
    num_new_tokens: int = 0

    def add(self, result: Result) -> None:
        """Count one result."""
        if result.error is None:
            self.num_finished += 1
        else:
            self.num_failed += 1
        self.num_new_tokens += result.num_new_tokens


def summary_text(
    tally: Tally, counters: StepCounters, seconds: float, *, num_pending: int = 0
) -> str:
    """Return the lines shown after a run.

    Args:
        tally: the results.
        counters: of the run's steps.
        seconds: wall time, compilation before it not counted.
        num_pending: graphs that were still being compiled at the end.
    """
    padding = counters.padding
    num_unfinished = tally.num_prompts - tally.num_finished - tally.num_failed
    parts = [f"{tally.num_finished} finished", f"{tally.num_failed} failed"]
    parts += [f"{num_unfinished} unfinished"] if num_unfinished else []
    lines = [f"{tally.num_prompts} prompts: {', '.join(parts)}, in {seconds:.2f} s"]
    lines += [f"{tally.num_new_tokens} new tokens, {_rate(tally.num_new_tokens, seconds)}"]
    lines += [_phase_text(counters, phase) for phase in ("prefill", "decode")]
    if num_pending:
        noun, whose = ("graph was", "its") if num_pending == 1 else ("graphs were", "their")
        lines += [f"{num_pending} {noun} still being compiled; larger ones ran in {whose} place"]
    if padding.by_bucket:
        lines += ["", _padding_table(padding)]
    return "\n".join(lines)


def _phase_text(counters: StepCounters, phase: str) -> str:
    """Tokens of one phase, and their rate in the time that its own steps took."""
    steps = [one for bucket, one in counters.graphs.items() if bucket.phase == phase]
    num_tokens = sum(one.real_tokens for one in steps)
    seconds = sum(one.seconds for one in steps)
    return f"{phase}: {num_tokens} tokens in {seconds:.2f} s, {_rate(num_tokens, seconds)}"


def _rate(num_tokens: int, seconds: float) -> str:
    return f"{num_tokens / seconds if seconds else 0.0:.1f} tokens/s"


def _padding_table(padding: PaddingCounter) -> str:
    by_bucket = sorted(padding.by_bucket.items(), key=lambda item: item[0].label)
    rows = [_padding_row(bucket.label, step) for bucket, step in by_bucket]
    return format_table(HEADER, [*rows, _padding_row("in all", padding.total)])


def _padding_row(label: str, step: StepPadding) -> tuple[str, ...]:
    return (
        label,
        str(step.num_steps),
        str(step.num_actual_tokens),
        str(step.num_padded_tokens),
        percent(step.waste_share),
    )
