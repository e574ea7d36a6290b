"""The CPU backend: NumPy's memory, C kernels, and NumPy without a compiler."""
