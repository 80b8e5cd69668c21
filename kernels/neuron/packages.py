"""The vendor's Python packages: what is installed, and what `backend: neuron` lacks.

Everything is read from the metadata of what is installed: nothing of the vendor's is imported, nor
is torch. The rules are those of Neuron SDK 2.33.1.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import Distribution, distributions
from types import MappingProxyType

INDEX = "https://pip.repos.neuron.amazonaws.com"
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
TORCH, NATIVE, COMPILER, NKI = "torch", "torch-neuronx", "neuronx-cc", "nki"
VENDOR_PACKAGES = (NATIVE, COMPILER, NKI)
FAMILIES = ("2.13", "2.14")
"""Of torch-neuronx; each goes with the torch of that number and with no other."""
WRITTEN_FOR = "2.13"
"""The family that Noria is written for and pins in its extra `neuron`."""
PYTHONS = ((3, 12), (3, 13), (3, 14))

_EMPTY_TEXT = "WRONG PACKAGE"
_EMPTY_VERSIONS = MappingProxyType({NATIVE: "1.0", COMPILER: "1.0.post1", NKI: "0.0.1"})
_DYNAMO_BACKENDS = "torch_dynamo_backends"
_FIRST_NATIVE = (2, 13)


class Kind(StrEnum):
    """What an installed package is.

    EMPTY ones have a vendor's name on the general index, and nothing in them but an error. XLA is
    a torch-neuronx of the time before native ones.
    """

    REAL = "real"
    EMPTY = "empty"
    XLA = "xla"


@dataclass(frozen=True, slots=True)
class Package:
    """An installed package."""

    name: str
    version: str
    kind: Kind = Kind.REAL

    @property
    def numbers(self) -> tuple[int, ...]:
        """The numbers that its version begins with."""
        return version_numbers(self.version)

    @property
    def family(self) -> str:
        """The first two of them, as text."""
        return ".".join(map(str, self.numbers[:2]))


@dataclass(frozen=True, slots=True)
class Lack:
    """Something that keeps a backend from running.

    Attributes:
        text: what it is, in one line without a full stop.
        lines: what to run next, in order; where no command helps, what to do.
    """

    text: str
    lines: tuple[str, ...]


Packages = Mapping[str, Package]


def installed_packages(
    folders: Sequence[str] | None = None, names: Sequence[str] = (TORCH, *VENDOR_PACKAGES)
) -> Packages:
    """Return those of the named packages that are installed.

    Args:
        folders: where to look; None looks where Python imports from.
        names: of distributions.
    """
    paths = list(sys.path if folders is None else folders)
    found = ((name, next(iter(distributions(name=name, path=paths)), None)) for name in names)
    return {name: _described(name, dist) for name, dist in found if dist is not None}


def version_numbers(version: str) -> tuple[int, ...]:
    """Return the numbers that a version begins with.

    >>> version_numbers("2.13.0+cpu"), version_numbers("1.0.post1"), version_numbers("any")
    ((2, 13, 0), (1, 0), ())
    """
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, match[0].split("."))) if match else ()


def package_lacks(
    packages: Packages,
    python: tuple[int, int] = sys.version_info[:2],
    python_command: str = "python",
    which: Callable[[str], str | None] = shutil.which,
) -> list[Lack]:
    """Return what ``backend: neuron`` lacks of Python and packages, in the order to mend it.

    Args:
        packages: what is installed.
        python: the version that runs.
        python_command: what starts it.
        which: finds a program on PATH.
    """
    problems = [*_missing(packages), *_wrong_versions(packages)]
    if python not in PYTHONS:
        return [_python_lack(python, which), _lack_in_new_environment(problems)]
    lacks = []
    empty = [one for one in _vendor(packages) if one.kind is Kind.EMPTY]
    if empty:
        names = " ".join(one.name for one in empty)
        verb = "is an empty package" if len(empty) == 1 else "are empty packages"
        text = f"{listed(map(_named, empty))} {verb} of the general index, not AWS's"
        lacks.append(Lack(text, (f"{python_command} -m pip uninstall -y {names}",)))
    if problems:
        line = install_line(_family_to_install(packages), python_command)
        lacks.append(Lack("; ".join(problems), (line,)))
    return lacks


def refusal(
    packages: Packages | None = None, python: tuple[int, int] = sys.version_info[:2]
) -> str | None:
    """Return one line that refuses ``backend: neuron`` for its packages; None: they are there."""
    lacks = package_lacks(installed_packages() if packages is None else packages, python)
    if not lacks:
        return None
    texts = "; ".join(lack.text for lack in lacks)
    return f"backend: neuron: {texts}; `noria doctor` prints the lines to run"


def requirements(family: str = WRITTEN_FOR) -> tuple[str, ...]:
    """Return what pip must be asked for, so that all of it fits together.

    pip prefers the highest version of all indexes: without the pins it would take a torch-neuronx
    for another torch, or an empty package where AWS's index does not answer.
    """
    return (
        f"{TORCH}=={family}.*",
        f"{NATIVE}=={family}.*",
        f"{COMPILER}>=2.28,<3",
        f"{NKI}>=0.7,<0.8",
    )


def install_line(family: str = WRITTEN_FOR, python_command: str = "python") -> str:
    """Return the command that installs a family."""
    wanted = " ".join(f'"{one}"' for one in requirements(family))
    indexes = f"--extra-index-url {INDEX} --extra-index-url {TORCH_INDEX}"
    return f"{python_command} -m pip install {wanted} {indexes}"


def _described(name: str, dist: Distribution) -> Package:
    return Package(name, dist.version, _kind(name, dist))


def _kind(name: str, dist: Distribution) -> Kind:
    text = dist.read_text("METADATA") or dist.read_text("PKG-INFO") or ""
    if name in VENDOR_PACKAGES and (_EMPTY_TEXT in text or dist.version == _EMPTY_VERSIONS[name]):
        return Kind.EMPTY
    if name != NATIVE or Package(name, dist.version).numbers >= _FIRST_NATIVE:
        return Kind.REAL
    # assumed: native builds of lower numbers name themselves as a backend of torch.compile
    is_native = any(one.group == _DYNAMO_BACKENDS for one in dist.entry_points)
    return Kind.REAL if is_native else Kind.XLA


def _vendor(packages: Packages) -> list[Package]:
    return [packages[name] for name in VENDOR_PACKAGES if name in packages]


def _python_lack(python: tuple[int, int], which: Callable[[str], str | None]) -> Lack:
    text = f"Python {_dotted(python)}: torch-neuronx is for {listed(map(_dotted, PYTHONS))} only"
    programs = [f"python{_dotted(one)}" for one in reversed(PYTHONS)]
    program = next(filter(which, programs), None)
    if program is None:
        text += ", none of which is on PATH: install one first"
    environment = ".venv-neuron"
    line = f"{program or programs[0]} -m venv {environment} && . {environment}/bin/activate"
    return Lack(text, (line,))


def _lack_in_new_environment(problems: Sequence[str]) -> Lack:
    text = "; ".join(problems) or "the packages are in the environment of another Python"
    return Lack(text, (install_line(), "python -m pip install -e .  # in Noria's own folder"))


def _missing(packages: Packages) -> Iterator[str]:
    real = {one.name for one in _vendor(packages) if one.kind is not Kind.EMPTY}
    names = [name for name in VENDOR_PACKAGES if name not in real]
    if names:
        verb = "is" if len(names) == 1 else "are"
        yield f"{listed(names)} of AWS's package index {verb} not installed"


def _wrong_versions(packages: Packages) -> Iterator[str]:
    torch, native = packages.get(TORCH), packages.get(NATIVE)
    if torch is None:
        yield "torch is not installed"
    elif torch.family not in FAMILIES:
        yield f"{_named(torch)}: torch-neuronx is for torch {listed(FAMILIES)} only"
    if native is not None and native.kind is Kind.XLA:
        yield f"{_named(native)} is the XLA-based package, which Noria cannot use"
    if native is not None and native.kind is Kind.REAL and torch is not None:
        yield from _unpaired(torch, native)
    yield from _out_of_range(packages.get(COMPILER), (2, 28), (3,))
    yield from _out_of_range(packages.get(NKI), (0, 7), (0, 8))


def _unpaired(torch: Package, native: Package) -> Iterator[str]:
    if native.family != torch.family:
        yield f"{_named(native)} is for torch {native.family}, and torch is {torch.version}"


def _out_of_range(
    package: Package | None, first: tuple[int, ...], end: tuple[int, ...]
) -> Iterator[str]:
    if package is None or package.kind is Kind.EMPTY or first <= package.numbers < end:
        return
    yield f"{_named(package)}: must be at least {_dotted(first)} and below {_dotted(end)}"


def _family_to_install(packages: Packages) -> str:
    """Return the family of the torch that is there, where it has one."""
    torch = packages.get(TORCH)
    return torch.family if torch is not None and torch.family in FAMILIES else WRITTEN_FOR


def _named(package: Package) -> str:
    return f"{package.name} {package.version}"


def _dotted(numbers: Sequence[int]) -> str:
    return ".".join(map(str, numbers))


def listed(words: Iterable[str]) -> str:
    """Return words as an enumeration.

    >>> listed(["a"]), listed(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last
