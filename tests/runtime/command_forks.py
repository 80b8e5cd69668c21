"""The ``noria`` command in forks of a process that has imported all, ended where a test wants.

    python command_forks.py CONFIG

Each line of stdin is a list of jobs that run at once, each line of stdout the list of their ends,
both as JSON. Workers are threads, and the graphs of the configuration are traced once for all
forks: what is left of ``noria compile`` is what it does with the set.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from select import select
from types import TracebackType
from typing import Any

import set_faults
from thread_workers import start_thread

from noria.runtime.cli import main
from noria.runtime.compiled_set import worker
from noria.runtime.compiled_set.tracing import Tracer

FILE_EVENTS = ("open", "os.rename", "os.mkdir", "os.remove", "os.listdir", "os.scandir")
"""Of Python's audit: what a process is about to do with a path, its first argument."""

FOUR_GRAPHS: Mapping[str, object] = {
    "model": {
        "vocab_size": 40,
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "max_position_embeddings": 32,
        "eos_token_id": 39,
    },
    "backend": "cpu",
    "dtype": "float32",
    "max_model_len": 32,
    "max_num_seqs": 2,
    "max_num_batched_tokens": 32,
    "block_size": 16,
    "num_blocks": 9,
    "num_batched_tokens_buckets": [32],
    "num_seqs_buckets": [2],
    "sampler_features": ["greedy"],
    "sampling": {"temperature": 0},
}
"""A configuration, for its sets are made in a moment."""


@dataclass(frozen=True)
class Job:
    """One run of the command, and where it is killed, if it is.

    Attributes:
        arguments: of the command.
        point: fault point, see ``set_faults``.
        event: number of the event in ``folder`` at which it is killed.
        after_s: seconds after which it is killed.
        folder: whose events are counted.
    """

    arguments: Sequence[str]
    point: str = ""
    event: int = 0
    after_s: float | None = None
    folder: str = ""


@dataclass(frozen=True)
class End:
    """How a run ended, and if it was not killed, what happened in it."""

    status: int
    output: str
    points: dict[str, int] = field(default_factory=dict)
    num_events: int = 0
    seconds: float = 0.0


class Commands:
    """The process whose forks run jobs; for the test."""

    def __init__(self, config: Path) -> None:
        """Start it, and let it trace the graphs of a configuration."""
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(config)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._line() == "ready\n"

    def __enter__(self) -> Commands:
        """Run jobs until the end."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        """End the process."""
        self._process.communicate()

    def run(self, *arguments: object, **options: Any) -> End:
        """Run one job."""
        (end,) = self.run_all([Job([str(one) for one in arguments], **options)])
        return end

    def run_all(self, jobs: Sequence[Job]) -> list[End]:
        """Run jobs at once."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([asdict(job) for job in jobs]) + "\n")
        self._process.stdin.flush()
        return [End(**end) for end in json.loads(self._line())]

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


class TracedOnce(Tracer):
    """A tracer whose graphs are traced once, by whichever of them is asked first."""

    traces: dict[str, bytes] = {}  # noqa: RUF012
    lock = threading.Lock()

    def trace(self, name: str) -> bytes:
        """Return the trace of a graph of the only configuration that there is."""
        with self.lock:  # torch exports one graph at a time
            if name not in self.traces:
                self.traces[name] = super().trace(name)
        return self.traces[name]


def start(job: Job) -> tuple[int, int, int]:
    """Fork; return the process, where it reports, and the file with its output."""
    reading, writing = os.pipe()
    output = os.open(tempfile.gettempdir(), os.O_TMPFILE | os.O_RDWR)
    process = os.fork()
    if process:
        os.close(writing)
        return process, reading, output
    os.dup2(output, 1)
    os.dup2(output, 2)
    status = 1
    try:
        status = run(job, writing)
    finally:
        os._exit(status)


def run(job: Job, report: int) -> int:
    os.environ[set_faults.VARIABLE] = job.point
    points = set_faults.install()
    num_events = Counter[str]()
    if job.folder:
        sys.addaudithook(partial(count_event, job, num_events))
    start_s = time.monotonic()
    status = 0
    try:
        main(job.arguments)
    except SystemExit as end:
        status = int(end.code or 0)
    seconds = time.monotonic() - start_s
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    found = {"points": points, "num_events": num_events["all"], "seconds": seconds}
    os.write(report, json.dumps(found).encode())
    return status


def count_event(job: Job, counts: Counter[str], event: str, arguments: tuple[Any, ...]) -> None:
    if event in FILE_EVENTS and is_in(job.folder, arguments[0]):
        counts["all"] += 1
        if counts["all"] == job.event:
            os.kill(os.getpid(), signal.SIGKILL)


def is_in(folder: str, path: object) -> bool:
    return isinstance(path, str | os.PathLike) and os.fspath(path).startswith(folder)


def finish(process: int, reading: int, output: int) -> dict[str, Any]:
    with open(reading, "rb") as pipe:
        report = json.loads(pipe.read() or b"{}")
    _, status = os.waitpid(process, 0)
    os.lseek(output, 0, os.SEEK_SET)
    with open(output, encoding="utf-8") as file:
        text = file.read()
    return {"status": os.waitstatus_to_exitcode(status), "output": text, **report}


def serve() -> None:
    print("ready", flush=True)
    for line in sys.stdin:
        jobs = [Job(**one) for one in json.loads(line)]
        started = [start(job) for job in jobs]
        for job, (process, reading, _) in zip(jobs, started, strict=True):
            if job.after_s is not None and not select([reading], [], [], job.after_s)[0]:
                os.kill(process, signal.SIGKILL)
        print(json.dumps([finish(*one) for one in started]), flush=True)


def trace_all(config: str) -> None:
    """Run the command once here: it imports all that it needs."""
    with tempfile.TemporaryDirectory() as folder:
        main(["compile", config, "-o", f"{folder}/set"], standalone_mode=False)


def work_in_threads() -> None:
    """Let workers be threads, and trace each graph once."""
    worker.start_process = start_thread  # type: ignore[assignment]
    worker.Tracer = TracedOnce  # type: ignore[misc]


if __name__ == "__main__":
    work_in_threads()
    with contextlib.redirect_stdout(sys.stderr):
        trace_all(sys.argv[1])
    serve()
