"""``noria bench``: options reach the measurement, and its report decides the status."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import Result

from noria.runtime.bench import commands, tables
from noria.runtime.bench.commands import OfflineOptions
from noria.runtime.bench.peers import ENGINE_NAMES, PeerOptions

Run = Callable[..., Result]


@dataclass
class Measurements:
    """Stands in for the measurements: notes what was asked, returns one row."""

    problem: str | None = None
    calls: list[tuple[Any, ...]] = field(default_factory=list)

    def offline(self, config: Path, options: OfflineOptions, *, progress: Any) -> Any:
        self.calls.append((config, options))
        return SimpleNamespace(rows=[SimpleNamespace(engine="noria", problem=self.problem)])

    def peers(self, config: Path, options: Any, *, peers: PeerOptions, progress: Any) -> Any:
        self.calls.append((config, options, peers))
        return SimpleNamespace(rows=[SimpleNamespace(engine="vllm", problem="not installed")])


@pytest.fixture
def measurements(monkeypatch: pytest.MonkeyPatch) -> Measurements:
    stand_in = Measurements()
    monkeypatch.setattr(commands, "bench_offline", stand_in.offline)
    monkeypatch.setattr(commands, "bench_peers", stand_in.peers)
    monkeypatch.setattr(commands, "write_json", lambda report, path: path.write_text("{}"))
    monkeypatch.setattr(tables, "print_report", lambda report: print("the report"))
    return stand_in


def test_options_that_are_not_given_keep_their_defaults(
    run: Run, config: Path, measurements: Measurements
) -> None:
    result = run("bench", "offline", config)

    assert (result.exit_code, result.stdout) == (0, "the report\n")
    assert measurements.calls == [(config, OfflineOptions())]


def test_every_option_reaches_the_measurement(
    run: Run, config: Path, measurements: Measurements, tmp_path: Path
) -> None:
    numbers = (
        "--num-prompts 2 --prompt-len 3 --new-tokens 4 --seed 0 --num-rounds 6 --num-threads 7"
    )
    formats = "--dtype float32 --dtype bfloat16"
    output = tmp_path / "report.json"

    run("bench", "offline", config, *numbers.split(), *formats.split(), "--json", output)

    expected = OfflineOptions(
        num_prompts=2,
        prompt_len=3,
        new_tokens=4,
        seed=0,
        num_rounds=6,
        num_threads=7,
        dtypes=("float32", "bfloat16"),
    )
    assert measurements.calls == [(config, expected)]
    assert output.read_text() == "{}"


def test_peers_are_all_engines_or_those_named(
    run: Run, config: Path, measurements: Measurements
) -> None:
    run("bench", "peers", config)
    result = run(
        *("bench", "peers", config, "--num-prompts", "2", "--engine", "vllm"),
        *("--python", "vllm=there/python", "--model", "vllm=folder"),
    )

    named = PeerOptions(
        engines=("vllm",), pythons={"vllm": "there/python"}, models={"vllm": "folder"}
    )
    assert result.exit_code == 0
    assert [call[2] for call in measurements.calls] == [PeerOptions(engines=ENGINE_NAMES), named]
    assert measurements.calls[1][1] == OfflineOptions(num_prompts=2)


def test_a_measurement_of_noria_that_failed_has_status_1(
    run: Run, config: Path, measurements: Measurements
) -> None:
    measurements.problem = "died"

    assert run("bench", "offline", config).exit_code == 1


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["offline", "--num-prompts", "0"], "num_prompts is 0; it must be at least 1"),
        (["offline", "--num-rounds", "0"], "num_rounds is 0; it must be at least 1"),
        (["offline", "--dtype", "int8"], "'int8' is not one of"),
        (["peers", "--engine", "vlm"], "vllm"),
        (["peers", "--python", "vllm"], "it must be ENGINE=PATH"),
    ],
    ids=lambda value: "-".join(value)[:30],
)
def test_a_wrong_option_is_the_users_mistake(
    run: Run, config: Path, arguments: list[str], text: str
) -> None:
    result = run("bench", *arguments, config)

    assert result.exit_code == 2
    assert text in result.stderr
