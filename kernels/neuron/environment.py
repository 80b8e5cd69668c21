"""Variables that torch-neuronx, its compiler and its runtime read, as `backend: neuron` needs them.

They are set before torch_neuronx is imported, which reads some of them then. What the user has set
to another value is refused, never replaced: compiled graphs would not be what their key says.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Container, Mapping, MutableMapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

LOGICAL_CORES = "1"
"""Physical cores of a logical one. Our kernels are written for one: they ask for no program id."""
LOGICAL_CORE_VARIABLE = "NEURON_LOGICAL_NC_CONFIG"
TARGET_VARIABLE = "NEURON_PLATFORM_TARGET_OVERRIDE"
FLAGS_VARIABLE = "NEURON_CC_FLAGS"
LEVEL_VARIABLE = "NEURON_COMPILER_OPT_LEVEL"
VISIBLE_CORES, NUM_CORES = "NEURON_RT_VISIBLE_CORES", "NEURON_RT_NUM_CORES"


class EnvironmentConflict(RuntimeError):
    """A variable of the user's is not what is needed; one line names both."""


@dataclass(frozen=True, slots=True)
class CacheFolders:
    """Where the vendor's packages keep what they compile; of this process, empty at its start."""

    root: Path

    @property
    def neff(self) -> Path:
        """Compiled graphs, one file each."""
        return self.root / "neff"

    @property
    def variables(self) -> Mapping[str, str]:
        """What names these folders to the vendor's packages."""
        return {
            "TORCH_NEURONX_NEFF_CACHE_DIR": str(self.neff),
            "TORCH_NEURONX_NEFF_LOCAL_CACHE_DIR": str(self.root / "local"),
            "TORCH_NEURONX_HLO_CACHE_DIR": str(self.root / "hlo"),
            "NKI_COMPILE_CACHE_URL": str(self.root / "nki"),
        }


def needed(target: str, folders: CacheFolders) -> Mapping[str, str]:
    """Return the variables and the values that they must have.

    ``NEURON_LOGICAL_NC_CONFIG``: the compiler takes 2 by default where an NKI kernel takes 1, and
    then refuses the kernel (NCC_EVRF066).
    """
    return {
        LOGICAL_CORE_VARIABLE: LOGICAL_CORES,
        TARGET_VARIABLE: target,
        # a graph that does not compile is an error, and so is an input that is not on the device
        "TORCH_NEURONX_DISABLE_FALLBACK_EXECUTION": "1",
        "TORCH_NEURONX_DYNAMO_DISABLE_CPU_AUTOCOPY": "1",
        **folders.variables,
    }


def prepare(
    target: str,
    folders: CacheFolders,
    environ: MutableMapping[str, str] = os.environ,
    imported: Container[str] = sys.modules,
) -> None:
    """Set what is needed and not set yet.

    One core is asked for where the user names neither cores nor their number: a process takes
    all of them else, and a core belongs to one process.

    Raises:
        EnvironmentConflict: a variable has another value, or torch_neuronx was imported before.
    """
    wanted = needed(target, folders)
    for name, value in wanted.items():
        if environ.get(name, value) != value:
            raise EnvironmentConflict(
                f"{name}={environ[name]} is set, but {name}={value} is needed; unset it"
            )
    _check_flags(environ.get(FLAGS_VARIABLE, ""))
    late = [name for name in wanted if name not in environ]
    if late and "torch_neuronx" in imported:
        raise EnvironmentConflict(
            f"torch_neuronx was imported before {late[0]}={wanted[late[0]]} could be set; import "
            f"noria.runtime before torch, or set TORCH_DEVICE_BACKEND_AUTOLOAD=0"
        )
    environ.update(wanted)
    if VISIBLE_CORES not in environ:
        environ.setdefault(NUM_CORES, "1")


def compiler_settings(environ: Mapping[str, str] = os.environ) -> Mapping[str, str]:
    """Return what of the environment changes what the compiler makes of a graph."""
    names = (FLAGS_VARIABLE, LEVEL_VARIABLE)
    return {LOGICAL_CORE_VARIABLE: LOGICAL_CORES} | {n: environ.get(n, "") for n in names}


@cache
def process_folders() -> CacheFolders:
    """Return the folders of this process, which vanish with it."""
    root = Path(tempfile.mkdtemp(prefix="noria-neuron-"))
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    folders = CacheFolders(root)
    for path in folders.variables.values():
        Path(path).mkdir()
    return folders


def _check_flags(flags: str) -> None:
    found = re.search(r"--lnc[ =](\S+)", flags)
    if found and found[1] != LOGICAL_CORES:
        raise EnvironmentConflict(
            f"{FLAGS_VARIABLE}={flags} is set, but --lnc={LOGICAL_CORES} is needed; take it out"
        )
