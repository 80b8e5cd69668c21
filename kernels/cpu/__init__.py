"""Kernels of the CPU target."""

from .target import CpuKernels

__all__ = ["CpuKernels"]
