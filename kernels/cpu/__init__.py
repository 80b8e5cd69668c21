"""Kernels of the CPU target."""
