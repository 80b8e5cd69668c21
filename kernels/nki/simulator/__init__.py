"""A strict simulator of the part of NKI that the kernels use, on numpy and ml_dtypes."""

from .errors import SimulationError
from .install import RealNkiError, install, require_simulator
from .simulate import simulate
from .trace import Instruction, Operand, Trace, Transfer

__all__ = [
    "Instruction",
    "Operand",
    "RealNkiError",
    "SimulationError",
    "Trace",
    "Transfer",
    "install",
    "require_simulator",
    "simulate",
]
