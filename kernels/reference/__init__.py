"""Plain torch kernels: the oracle of every other target."""

from .target import ReferenceKernels

__all__ = ["ReferenceKernels"]
