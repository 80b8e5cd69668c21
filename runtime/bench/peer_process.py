"""One engine in a process of its own, driven by JSON lines; ``peer_worker`` is the other end."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from .peer_worker import Load
from .processes import CpuWatch, peak_rss_bytes
from .roofline import Stored

STOP_TIMEOUT_S = 20.0


class PeerError(Exception):
    """An engine failed or ended; the text is one line."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One engine in one number format.

    Attributes:
        engine: its name, such as "openvino".
        stored: how its weights are stored.
        activations: dtype that it computes in.
    """

    engine: str
    stored: Stored
    activations: str

    @property
    def label(self) -> str:
        """The variant in a few characters, for progress and messages."""
        return f"{self.engine} {self.stored.name}/{self.activations}"


@dataclass(frozen=True, slots=True)
class Started:
    """An engine that is ready: its version, and seconds from process start to readiness."""

    version: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Run:
    """One run: seconds of generation, ids per prompt, CPU share of other processes meanwhile."""

    seconds: float
    token_ids: tuple[tuple[int, ...], ...]
    others_share: float | None = None


class Peer(Protocol):
    """An engine that can be measured; Noria is one of them."""

    @property
    def variant(self) -> Variant:
        """What is measured."""
        ...

    def available(self) -> str | None:
        """Return why it cannot be started here, or None if nothing is known against it."""
        ...

    def start(self) -> Started:
        """Load it. Raises PeerError."""
        ...

    def run(self, prompts: Sequence[Sequence[int]], new_tokens: int) -> Run:
        """Generate ``new_tokens`` ids for each prompt, greedily. Raises PeerError."""
        ...

    def peak_rss_bytes(self) -> int | None:
        """Return the most memory that it held so far; None: not known."""
        ...

    def stop(self) -> None:
        """End it; does nothing where it has ended already."""
        ...


@dataclass(frozen=True, slots=True)
class Launch:
    """How a peer's process is started.

    Attributes:
        command: program and arguments; it speaks the protocol of ``peer_worker``.
        load: what it loads.
        reason: why it cannot be started, None if nothing is known against it.
        environment: its environment.
        load_timeout_s: seconds in which it must be ready.
        run_timeout_s: seconds in which a run must be done.
    """

    command: tuple[str, ...]
    load: Load
    reason: str | None = None
    environment: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    load_timeout_s: float = 600.0
    run_timeout_s: float = 600.0


class PeerProcess:
    """A peer in a process of its own, with its own interpreter and threads."""

    def __init__(self, variant: Variant, launch: Launch) -> None:
        """Remember how to start it; nothing is started yet."""
        self._variant, self._launch = variant, launch
        self._process: subprocess.Popen[str] | None = None
        self._log: Path | None = None

    @property
    def variant(self) -> Variant:
        """What is measured."""
        return self._variant

    def available(self) -> str | None:
        """Return why it cannot be started here."""
        return self._launch.reason

    def start(self) -> Started:
        """Start the process and load the model."""
        start = time.perf_counter()
        descriptor, name = tempfile.mkstemp(prefix="noria-bench-", suffix=".log")
        self._log = Path(name)
        try:
            self._process = subprocess.Popen(
                self._launch.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=descriptor,
                text=True,
                env=dict(self._launch.environment),
            )
        except OSError as error:
            raise PeerError(f"{self._launch.command[0]}: {error.strerror or error}") from error
        finally:
            os.close(descriptor)
        reply = self._ask(self._launch.load_timeout_s, op="load", **asdict(self._launch.load))
        return Started(str(reply["version"]), time.perf_counter() - start)

    def run(self, prompts: Sequence[Sequence[int]], new_tokens: int) -> Run:
        """Generate for all prompts and check how many ids came back."""
        watch = CpuWatch(self._running().pid)
        reply = self._ask(
            self._launch.run_timeout_s, op="run", prompts=prompts, new_tokens=new_tokens
        )
        token_ids = tuple(tuple(ids) for ids in reply["token_ids"])
        lengths = sorted({len(ids) for ids in token_ids})
        if len(token_ids) != len(prompts) or lengths != [new_tokens]:
            raise PeerError(
                f"returned {len(token_ids)} lists of {lengths} ids for {len(prompts)} prompts "
                f"of {new_tokens} new tokens"
            )
        return Run(float(reply["seconds"]), token_ids, watch.others_share())

    def peak_rss_bytes(self) -> int | None:
        """Return the sum of the peaks of the process and its children."""
        return peak_rss_bytes(self._process.pid) if self._process else None

    def stop(self) -> None:
        """Close its input, which ends it; kill it where that does not help."""
        if self._log is not None:
            self._log.unlink(missing_ok=True)
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(BrokenPipeError):  # of a command that it ended without reading
            process.stdin.close()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None:
            raise PeerError("is not running")
        return self._process

    def _ask(self, timeout_s: float, **command: object) -> dict[str, Any]:
        """Send a command and wait for its reply."""
        process = self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        # A process that is killed closes its output, which ends the wait below.
        timer = threading.Timer(timeout_s, process.kill)
        timer.start()
        try:
            process.stdin.write(json.dumps(command) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            timed_out = not timer.is_alive()
            timer.cancel()
        if not line:
            raise PeerError(self._ending(process, timeout_s if timed_out else None))
        reply: dict[str, Any] = json.loads(line)
        if not reply.pop("ok"):
            raise PeerError(reply["error"])
        return reply

    def _ending(self, process: subprocess.Popen[str], timeout_s: float | None) -> str:
        """Say in one line how the process ended."""
        if timeout_s is not None:
            return f"gave no answer within {timeout_s:g} s and was ended"
        status = process.wait()
        assert self._log is not None
        text = self._log.read_text(errors="replace")
        printed = [line.strip() for line in text.splitlines() if line.strip()]
        last_words = f": {printed[-1]}" if printed else ""
        return f"its process ended with status {status}{last_words}"
