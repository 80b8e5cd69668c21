"""Files that say what a run did, besides its results: counters to plan for, and metrics."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from ..metrics import require_metrics
from .failures import user_file
from .result_file import is_regular, open_to_append

if TYPE_CHECKING:
    from ..llm import LLM

Report = Callable[["LLM"], None]
"""Writes what a run did, at its end."""


@contextmanager
def open_reports(
    counters: Path | None, metrics: Path | None, others: Mapping[str, Path | None]
) -> Iterator[Report]:
    """Open the files for what a run does before it begins; yield what writes them.

    What such a file held is replaced, never added to: it tells of one run.

    Args:
        counters: for the counters, as JSON.
        metrics: for the same in the text format of Prometheus.
        others: by what they hold, files of the run that are not to be written over.

    Raises:
        UserMistake: a file cannot be written, or is one of the others.
        NoriaError: metrics are asked for, and prometheus_client is not installed.
    """
    if metrics is not None:
        require_metrics()
    taken = {name: path for name, path in others.items() if path is not None}
    with ExitStack() as stack:
        files: list[tuple[Path, TextIO, Callable[[LLM], str]]] = []
        for name, path, text_of in (
            ("counters", counters, _counters_text),
            ("metrics", metrics, lambda llm: llm.metrics_text()),
        ):
            if path is not None:
                files.append((path, stack.enter_context(open_to_append(path, taken)), text_of))
                taken[name] = path

        def write(llm: LLM) -> None:
            for path, file, text_of in files:
                _replace(path, file, text_of(llm))

        yield write


def _counters_text(llm: LLM) -> str:
    return json.dumps(llm.counters, separators=(",", ":")) + "\n"


def _replace(path: Path, file: TextIO, text: str) -> None:
    with user_file(path):
        if is_regular(file):
            file.truncate(0)
        file.write(text)
        file.flush()
