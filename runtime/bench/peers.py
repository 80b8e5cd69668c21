"""The engines that Noria can be measured beside, and whether each can run here."""

from __future__ import annotations

import difflib
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

from ..config import Config
from ..errors import ConfigError
from .peer_process import Launch, PeerProcess, Variant
from .peer_worker import Load, one_line

ACTIVATIONS = ("bfloat16", "float32")
NORIA = "noria"
GUIDE = "docs/benchmarks.md"
WORKER = Path(__file__).with_name("peer_worker.py")
PROBE = (
    "import importlib.util, sys; "
    "print(*[m for m in sys.argv[1:] if importlib.util.find_spec(m) is None])"
)
PROBE_TIMEOUT_S = 60


@dataclass(frozen=True, slots=True)
class EngineKind:
    """An engine, as far as starting it needs to know.

    Attributes:
        name: what options and reports call it; also its name in ``peer_worker``.
        modules: what its interpreter must be able to import.
        model_file: a file that its model folder holds.
        stored_weights: dtype of its weights; None: that of the activations.
    """

    name: str
    modules: tuple[str, ...]
    model_file: str
    stored_weights: str | None = None

    def variant(self, activations: str) -> Variant:
        """Return the engine in one number format."""
        return Variant(self.name, self.stored_weights or activations, activations)


ENGINE_KINDS = (
    EngineKind("openvino", ("openvino_genai", "numpy"), "openvino_model.xml", "float16"),
    EngineKind("transformers", ("transformers", "torch"), "config.json"),
    EngineKind("vllm", ("vllm",), "config.json"),
)
ENGINE_NAMES = tuple(kind.name for kind in ENGINE_KINDS)


@dataclass(frozen=True, slots=True)
class PeerOptions:
    """Where other engines are.

    Attributes:
        engines: names of those to measure, a part of ``ENGINE_NAMES``.
        pythons: interpreter by engine; the others use the running one.
        models: model folder by engine; the others use Noria's own checkpoint.
    """

    engines: tuple[str, ...] = ENGINE_NAMES
    pythons: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    models: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    def __post_init__(self) -> None:
        """Refuse engines that nothing is known of."""
        for name in (*self.engines, *self.pythons, *self.models):
            _require_engine(name)


def parse_assignments(option: str, texts: Sequence[str]) -> dict[str, str]:
    """Read ``ENGINE=VALUE`` texts of an option, such as ``openvino=/path/to/python``.

    Raises:
        ConfigError: a text has no value, or names an unknown engine or one twice.
    """
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not value:
            raise ConfigError(f"{option} is {text!r}; it must be ENGINE=PATH")
        _require_engine(name)
        if name in found:
            raise ConfigError(f"{option} names {name} twice: {found[name]} and {value}")
        found[name] = value
    return found


def noria_peers(config: Config, activations: Sequence[str], load: Load) -> list[PeerProcess]:
    """Return Noria itself in every number format, each in a process of its own."""
    # -P: a folder that the user happens to be in must not hide installed packages.
    command = (sys.executable, "-P", "-m", f"{__package__}.noria_worker")
    return [
        PeerProcess(
            Variant(NORIA, dtype, dtype),
            Launch(
                command,
                replace(load, activations=dtype, settings=_settings(config, dtype, load)),
                environment=_environment(load.num_threads, sys.executable),
            ),
        )
        for dtype in activations
    ]


def other_peers(
    options: PeerOptions, activations: Sequence[str], *, load: Load, checkpoint: Path | None
) -> list[PeerProcess]:
    """Return the engines that ``options`` names, those that cannot run here included.

    Args:
        options: which engines, and where they are.
        activations: number formats to measure each in.
        load: what all of them load; model and activations are filled in here.
        checkpoint: Noria's own checkpoint folder, None where the model is no checkpoint.
    """
    peers = []
    for kind in ENGINE_KINDS:
        if kind.name not in options.engines:
            continue
        python = options.pythons.get(kind.name, sys.executable)
        model = options.models.get(kind.name, str(checkpoint) if checkpoint else "")
        reason = missing_modules(kind, python) or missing_model(kind, model)
        for dtype in activations:
            launch = Launch(
                (python, str(WORKER), kind.name),
                replace(load, model=model, activations=dtype),
                reason=reason,
                environment=_environment(load.num_threads, python),
            )
            peers.append(PeerProcess(kind.variant(dtype), launch))
    return peers


def missing_modules(kind: EngineKind, python: str) -> str | None:
    """Return why an interpreter cannot run an engine, None if it can import what that needs."""
    try:
        done = subprocess.run(
            (python, "-c", PROBE, *kind.modules),
            capture_output=True,
            text=True,
            timeout=PROBE_TIMEOUT_S,
            env=_environment(1, python),
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{python} does not run: {one_line(error)}"
    if done.returncode:
        return f"{python} does not run: it ended with status {done.returncode}"
    missing = done.stdout.split()
    if not missing:
        return None
    return (
        f"{python} has no {', '.join(missing)}: give an interpreter that has, "
        f"--peer-python {kind.name}=PYTHON ({GUIDE})"
    )


def missing_model(kind: EngineKind, model: str) -> str | None:
    """Return why a folder is no model of an engine, None if it seems to be one."""
    if model and (Path(model) / kind.model_file).is_file():
        return None
    has_none = f"{model} has no {kind.model_file}" if model else "the model is no checkpoint"
    return f"{has_none}: give a folder that has, --peer-model {kind.name}=FOLDER ({GUIDE})"


def _require_engine(name: str) -> None:
    if name not in ENGINE_NAMES:
        near = difflib.get_close_matches(name, ENGINE_NAMES, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ConfigError(f"engine {name!r} is not known ({', '.join(ENGINE_NAMES)}){hint}")


def _settings(config: Config, dtype: str, load: Load) -> dict[str, object]:
    return config.to_mapping() | {"dtype": dtype, "num_threads": load.num_threads}


def _environment(num_threads: int, python: str) -> dict[str, str]:
    """Return the environment of a peer: as many threads as the others, and no downloads."""
    environment = dict(os.environ)
    if python != sys.executable:
        # These belong to the running interpreter's installation.
        for name in ("PYTHONPATH", "PYTHONHOME"):
            environment.pop(name, None)
    environment |= {"OMP_NUM_THREADS": str(num_threads), "HF_HUB_OFFLINE": "1"}
    return environment
