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
from .model_files import ModelFiles, gguf_stored
from .peer_process import Launch, PeerProcess, Variant
from .peer_worker import Load, one_line
from .roofline import stored_as

ACTIVATIONS = ("bfloat16", "float32")
NORIA = "noria"
PYTHON_OPTION, MODEL_OPTION = "--python", "--model"
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
        model_file: a file that its model folder holds; None: its model is a GGUF file.
        stored_weights: dtype of its weights; None: that of the activations.
    """

    name: str
    modules: tuple[str, ...]
    model_file: str | None
    stored_weights: str | None = None

    def variants(self, activations: Sequence[str], model: str) -> list[Variant]:
        """Return the engine in every number format, of those given, that it can compute in.

        A GGUF file is computed in one way, which its weights decide; what is not a product with
        them is float32.
        """
        if self.model_file is None:
            stored = gguf_stored(model) if Path(model).is_file() else stored_as("float32")
            return [Variant(self.name, stored, "float32")]
        return [
            Variant(self.name, stored_as(self.stored_weights or dtype), dtype)
            for dtype in activations
        ]


ENGINE_KINDS = (
    EngineKind("openvino", ("openvino_genai", "numpy"), "openvino_model.xml", "float16"),
    EngineKind("llama-cpp", ("llama_cpp", "numpy"), None),
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
        models: model folder or GGUF file by engine; the others use Noria's own.
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


def noria_peers(config: Config, activations: Sequence[str], *, load: Load) -> list[PeerProcess]:
    """Return Noria itself in every number format, each in a process of its own."""
    # -P: a folder that the user happens to be in must not hide installed packages.
    command = (sys.executable, "-P", "-m", f"{__package__}.noria_worker")
    return [
        PeerProcess(
            Variant(NORIA, stored_as(dtype), dtype),
            Launch(
                command,
                replace(
                    load, activations=dtype, settings=_settings(config, dtype, load.num_threads)
                ),
                environment=worker_environment(load.num_threads, sys.executable),
            ),
        )
        for dtype in activations
    ]


def other_peers(
    options: PeerOptions, activations: Sequence[str], *, load: Load, files: ModelFiles
) -> list[PeerProcess]:
    """Return the engines that ``options`` names, those that cannot run here included.

    Args:
        options: which engines, and where they are.
        activations: number formats to measure each in.
        load: what all of them load; model and activations are filled in here.
        files: Noria's own model.
    """
    kinds = [kind for kind in ENGINE_KINDS if kind.name in options.engines]
    return [
        peer
        for kind in kinds
        for peer in _peers_of(kind, options, activations=activations, load=load, files=files)
    ]


def _peers_of(
    kind: EngineKind,
    options: PeerOptions,
    *,
    activations: Sequence[str],
    load: Load,
    files: ModelFiles,
) -> list[PeerProcess]:
    python = options.pythons.get(kind.name, sys.executable)
    own = files.gguf if kind.model_file is None else files.folder
    model = options.models.get(kind.name, str(own or ""))
    reason = missing_modules(kind, python) or missing_model(kind, model)
    return [
        PeerProcess(
            variant,
            Launch(
                (python, str(WORKER), kind.name),
                replace(load, model=model, activations=variant.activations),
                reason=reason,
                environment=worker_environment(load.num_threads, python),
            ),
        )
        for variant in kind.variants(activations, model)
    ]


def missing_modules(kind: EngineKind, python: str) -> str | None:
    """Return why an interpreter cannot run an engine, None if it can import what that needs."""
    try:
        done = subprocess.run(
            (python, "-c", PROBE, *kind.modules),
            capture_output=True,
            text=True,
            timeout=PROBE_TIMEOUT_S,
            env=worker_environment(1, python),
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
        f"{PYTHON_OPTION} {kind.name}=PATH ({GUIDE})"
    )


def missing_model(kind: EngineKind, model: str) -> str | None:
    """Return why a path is no model of an engine, None if it seems to be one."""
    path = Path(model)
    if kind.model_file is None:
        found, wanted = path.suffix == ".gguf" and path.is_file(), "a GGUF file"
    else:
        found, wanted = (path / kind.model_file).is_file(), f"a folder with {kind.model_file}"
    if model and found:
        return None
    given = f"{model} is not" if model else "the configuration's model is not"
    return f"{given} {wanted}: give one, {MODEL_OPTION} {kind.name}=PATH ({GUIDE})"


def _require_engine(name: str) -> None:
    if name not in ENGINE_NAMES:
        near = difflib.get_close_matches(name, ENGINE_NAMES, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ConfigError(f"engine {name!r} is not known ({', '.join(ENGINE_NAMES)}){hint}")


def _settings(config: Config, dtype: str, num_threads: int) -> dict[str, object]:
    return config.to_mapping() | {"dtype": dtype, "num_threads": num_threads}


def worker_environment(num_threads: int, python: str) -> dict[str, str]:
    """Return the environment of a peer: as many threads as the others, and no downloads."""
    environment = dict(os.environ)
    if python != sys.executable:
        # These belong to the running interpreter's installation.
        for name in ("PYTHONPATH", "PYTHONHOME"):
            environment.pop(name, None)
    environment |= {"OMP_NUM_THREADS": str(num_threads), "HF_HUB_OFFLINE": "1"}
    return environment
