"""``noria bench offline`` and ``noria bench peers`` as plain functions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ..config import Config, load_config
from ..errors import ConfigError
from ..models.locations import model_name
from ..process_limits import usable_cpus
from .machine import measure_machine
from .model_files import model_files
from .offline import Progress, measure
from .peer_process import PeerProcess
from .peer_worker import Load
from .peers import ACTIVATIONS, PeerOptions, noria_peers, other_peers
from .report import Report, build_report
from .roofline import model_cost
from .workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class OfflineOptions:
    """What is run, and how often.

    Attributes:
        num_prompts: prompts of one run, all there at once.
        prompt_len: random ids of one prompt.
        new_tokens: new tokens of each prompt.
        seed: other seeds draw other prompts.
        num_rounds: measured runs per engine; the median counts.
        num_threads: threads of every engine; None: the configuration's, or else all CPUs.
        dtypes: number formats to compute in; None: the configuration's for ``bench_offline``,
            bfloat16 and float32 for ``bench_peers``.
    """

    num_prompts: int = 32
    prompt_len: int = 64
    new_tokens: int = 64
    seed: int = 0
    num_rounds: int = 5
    num_threads: int | None = None
    dtypes: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        """Refuse counts below 1; the workload checks its own."""
        for name in ("num_rounds", "num_threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} is {value}; it must be at least 1")


def bench_offline(
    config: str | Path, options: OfflineOptions | None = None, *, progress: Progress | None = None
) -> Report:
    """Measure Noria alone.

    Args:
        config: a configuration file; its model, shapes and backend are used.
        options: what is run; by default 32 prompts of 64 ids with 64 new tokens each.
        progress: called with what is worked on, how many steps are done and how many there are.

    Raises:
        NoriaError: a setting, the model or the workload does not fit.
    """
    settings, chosen = load_config(config), options or OfflineOptions()
    dtypes = chosen.dtypes or (settings.dtype,)
    return _bench(settings, chosen, dtypes=dtypes, peers=None, progress=progress)


def bench_peers(
    config: str | Path,
    options: OfflineOptions | None = None,
    *,
    peers: PeerOptions | None = None,
    progress: Progress | None = None,
) -> Report:
    """Measure Noria and every other engine that can run here, in turn.

    An engine that cannot, or that fails, has a row that says why; the others have results.

    Args:
        config: a configuration file; its model, shapes and backend are Noria's.
        options: what is run, for every engine alike.
        peers: which engines, their interpreters and their model folders.
        progress: as for ``bench_offline``.

    Raises:
        NoriaError: a setting, the model or the workload does not fit.
    """
    settings, chosen = load_config(config), options or OfflineOptions()
    dtypes = chosen.dtypes or ACTIVATIONS
    return _bench(settings, chosen, dtypes=dtypes, peers=peers or PeerOptions(), progress=progress)


class Plain(Protocol):
    """What can be kept as JSON."""

    def to_mapping(self) -> dict[str, object]:
        """Return everything as plain data."""


def write_json(report: Plain, path: str | Path) -> None:
    """Write a report as one JSON object. Raises OSError."""
    text = json.dumps(report.to_mapping(), indent=2, ensure_ascii=False)
    Path(path).write_text(text + "\n", encoding="utf-8")


def _bench(
    config: Config,
    options: OfflineOptions,
    *,
    dtypes: Sequence[str],
    peers: PeerOptions | None,
    progress: Progress | None,
) -> Report:
    from ..models.sources import open_model

    architecture = open_model(config.model, tokenizer=config.tokenizer).architecture
    workload = Workload(
        num_prompts=options.num_prompts,
        prompt_len=options.prompt_len,
        new_tokens=options.new_tokens,
        vocab_size=architecture.vocab_size,
        seed=options.seed,
    )
    _check_fits(config, workload)
    num_threads = options.num_threads or config.num_threads or usable_cpus()
    engines = _engines(config, dtypes, peers=peers, load=_load(workload, num_threads))
    # Measured while no engine is there yet to disturb it.
    machine = measure_machine(sorted({e.variant.activations for e in engines}), num_threads)
    results = measure(
        engines, workload, num_rounds=options.num_rounds, progress=progress or _no_progress
    )
    return build_report(
        results,
        model=model_name(config.model),
        workload=workload,
        cost=model_cost(architecture),
        machine=machine,
        notes=_notes(config, workload),
    )


def _engines(
    config: Config, dtypes: Sequence[str], *, peers: PeerOptions | None, load: Load
) -> list[PeerProcess]:
    engines = noria_peers(config, dtypes, load=load)
    if peers is not None:
        files = model_files(config.model)
        engines += other_peers(peers, dtypes, load=load, files=files)
    return engines


def _load(workload: Workload, num_threads: int) -> Load:
    """Return what all engines load alike; the rest is filled in per engine."""
    return Load(
        model="",
        activations="",
        num_threads=num_threads,
        max_num_seqs=workload.num_prompts,
        max_model_len=workload.tokens_per_prompt,
        settings={},
    )


def _check_fits(config: Config, workload: Workload) -> None:
    if workload.tokens_per_prompt > config.max_model_len:
        raise ConfigError(
            f"prompt_len {workload.prompt_len} and new_tokens {workload.new_tokens} exceed "
            f"max_model_len {config.max_model_len} of the configuration"
        )


def _notes(config: Config, workload: Workload) -> list[str]:
    if workload.num_prompts <= config.max_num_seqs:
        return []
    return [
        f"max_num_seqs: Noria runs {config.max_num_seqs} of {workload.num_prompts} prompts at "
        "once, as configured; other engines may run more."
    ]


def _no_progress(what: str, num_done: int, total: int) -> None:
    """Show nothing."""
