"""A strict simulator of the part of NKI that the kernels use, on numpy and ml_dtypes."""

from .errors import SimulationError
from .install import install
from .simulate import simulate
from .trace import Instruction, Operand, Trace, Transfer

__all__ = [
    "Instruction",
    "Operand",
    "SimulationError",
    "Trace",
    "Transfer",
    "install",
    "simulate",
]
