"""Which backends would run on a machine, and what keeps the others from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ...kernels.neuron.generations import OLD_GENERATIONS, old_generation_text
from ...kernels.neuron.packages import NKI, TORCH, Kind, Lack
from ..backends import RUNNABLE
from .facts import MachineFacts
from .neuron_advice import neuron_advice
from .neuron_lacks import neuron_lacks
from .sources import Sources
from .system import Distribution

DEFAULT_TARGET = "trn2"
_TORCH = (2, 13)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a backend would run, as far as can be told without running it.

    Attributes:
        how: what it would run on, in a few words.
        lacks: what keeps it from running, in the order to put it right; none: it would run.
        advice: what it runs without, and worse.
    """

    how: str
    lacks: tuple[Lack, ...] = ()
    advice: tuple[Lack, ...] = ()

    @property
    def runs(self) -> bool:
        """Whether it would run."""
        return not self.lacks


def verdicts(facts: MachineFacts, sources: Sources, target: str) -> Mapping[str, Verdict]:
    """Return the verdict on each backend; ``target`` is the generation for neuron ones."""
    found = {
        "cpu": _cpu(facts, sources),
        "reference": Verdict("plain torch, slow", _torch_lacks(facts, sources)),
        "neuron-sim": _neuron_sim(facts, sources, target),
        "neuron": _neuron(facts, sources, target),
    }
    return MappingProxyType(found)


def _cpu(facts: MachineFacts, sources: Sources) -> Verdict:
    lacks = _torch_lacks(facts, sources)
    if facts.compiler:
        vectors = facts.instruction_set or "an instruction set that is not known here"
        return Verdict(f"C++ kernels for {vectors}, built by {facts.compiler}", lacks)
    text = "no C++ compiler is on PATH: graphs run in plain torch, several times slower"
    advice = (Lack(text, (_compiler_line(facts.distribution, sources),)),)
    return Verdict("plain torch, for want of a C++ compiler", lacks, advice)


def _neuron_sim(facts: MachineFacts, sources: Sources, target: str) -> Verdict:
    lacks = [*_old_target(target), *_torch_lacks(facts, sources)]
    if "ml_dtypes" not in facts.packages:
        line = f'{sources.python_command} -m pip install "ml_dtypes>=0.5"'
        lacks.append(Lack("ml_dtypes is not installed", (line,)))
    nki = facts.packages.get(NKI)
    if nki is not None and nki.kind is Kind.REAL:
        text = f"nki {nki.version} is installed, and the simulator gives way to it"
        lines = ("python -m venv .venv-sim && . .venv-sim/bin/activate",)
        lacks.append(Lack(text, (*lines, "python -m pip install -e '.[nki]'")))
    return Verdict(f"NKI kernels for {target}, simulated, slow", tuple(lacks))


def _neuron(facts: MachineFacts, sources: Sources, target: str) -> Verdict:
    lacks = neuron_lacks(facts, sources, target)
    if not lacks and "neuron" not in RUNNABLE:
        text = "this version of Noria checks and plans for backend: neuron only"
        lacks.append(Lack(text, ("noria plan CONFIG",)))
    advice = neuron_advice(facts, sources) if facts.devices.files else ()
    how = f"{len(facts.devices.files)} Neuron devices of {target}; never tried on hardware"
    return Verdict(how, tuple(lacks), tuple(advice))


def _old_target(target: str) -> list[Lack]:
    if target not in OLD_GENERATIONS:
        return []
    return [Lack(f"target: {target}: {old_generation_text(target)}", ("set target: trn2",))]


def _torch_lacks(facts: MachineFacts, sources: Sources) -> tuple[Lack, ...]:
    torch = facts.packages.get(TORCH)
    if torch is not None and torch.numbers >= _TORCH:
        return ()
    text = "torch is not installed" if torch is None else f"torch {torch.version}: 2.13 is needed"
    return (Lack(text, (f'{sources.python_command} -m pip install "torch>=2.13"',)),)


def _compiler_line(system: Distribution, sources: Sources) -> str:
    if system.has_apt:
        return f"{sources.sudo}apt-get install -y g++"
    if "fedora" in (system.identity, *system.like.split()):
        return f"{sources.sudo}dnf install -y gcc-c++"
    return "install g++ with OpenMP"
