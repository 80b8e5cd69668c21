"""What ``generate`` says at its end."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from noria.bucketing import PaddingCounter
from noria.runtime.cli.summary import Tally, summary_text
from noria.runtime.model_runner import ModelRunner


@pytest.mark.parametrize(
    ("num_pending", "line"),
    [
        (0, None),
        (1, "1 graph was still being compiled; larger ones ran in its place"),
        (7, "7 graphs were still being compiled; larger ones ran in their place"),
    ],
)
def test_graphs_that_were_not_there_are_counted(num_pending: int, line: str | None) -> None:
    idle = SimpleNamespace(padding=PaddingCounter(), seconds_by_bucket={})

    text = summary_text(Tally(1), cast(ModelRunner, idle), 2.0, num_pending=num_pending)

    found = [one for one in text.splitlines() if "compiled" in one]
    assert found == ([] if line is None else [line])
