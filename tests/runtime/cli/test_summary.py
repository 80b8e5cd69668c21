"""What ``generate`` says at its end."""

from __future__ import annotations

import pytest

from noria.runtime.cli.summary import Tally, summary_text
from noria.runtime.step_counters import StepCounters


@pytest.mark.parametrize(
    ("num_pending", "line"),
    [
        (0, None),
        (1, "1 graph was still being compiled; larger ones ran in its place"),
        (7, "7 graphs were still being compiled; larger ones ran in their place"),
    ],
)
def test_graphs_that_were_not_there_are_counted(num_pending: int, line: str | None) -> None:
    idle = StepCounters(max_num_rows=8, max_num_seqs=8, max_model_len=8, block_size=8)

    text = summary_text(Tally(1), idle, 2.0, num_pending=num_pending)

    found = [one for one in text.splitlines() if "compiled" in one]
    assert found == ([] if line is None else [line])
