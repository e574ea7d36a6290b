"""The GPU backend: CuPy's memory, CUDA kernels, cuBLASLt, and CUDA graphs."""
