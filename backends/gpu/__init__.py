"""The GPU backend: CuPy's memory, CUDA kernels, cuBLASLt, and CUDA graphs."""

from backends.gpu.backend import GPUBackend

__all__ = ["GPUBackend"]
