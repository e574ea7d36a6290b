"""The CPU backend: NumPy's memory, C kernels, and NumPy without a compiler."""

from backends.cpu.backend import CPUBackend

__all__ = ["CPUBackend"]
