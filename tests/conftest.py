"""What tests of several folders share: the command line's verdict, and findings worth reading."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, settings

from noria.runtime.cli import main

# No example has a time to keep: on a busy machine any of them can take seconds.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")


@pytest.fixture(scope="session", autouse=True)
def interruptible() -> Iterator[None]:
    """Take interrupts, as a terminal's programs do.

    A shell starts background jobs with interrupts ignored, which they and theirs would inherit.
    """
    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session", autouse=True)
def no_local_sets() -> Iterator[None]:
    """Let engines compile what they run, here and in processes that tests start.

    Tests of local sets name a folder of their own.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NORIA_SETS", "")
        yield


@pytest.fixture
def refusal_by_check(tmp_path: Path) -> Callable[[str], str]:
    """Give a file of this text to ``noria check``; return its one line, less the file's name."""

    def refusal(text: str) -> str:
        path = tmp_path / "c.yaml"
        path.write_text(text, encoding="utf-8")
        result = CliRunner().invoke(main, ["check", str(path)])
        start = f"Error: {path}: "
        assert (result.exit_code, result.stdout) == (2, "")
        assert isinstance(result.exception, SystemExit), "a traceback"
        assert result.stderr.startswith(start)
        assert result.stderr.endswith("\n")
        assert result.stderr.count("\n") == 1
        return result.stderr.removeprefix(start).rstrip("\n")

    return refusal


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show what tests recorded with ``record_property``, whether they passed or not."""
    for outcome in ("passed", "failed"):
        for report in terminalreporter.getreports(outcome):
            for name, value in report.user_properties:
                terminalreporter.write_line(f"{report.nodeid}: {name}: {value}")
