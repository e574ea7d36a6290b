"""Real CuPy on simulated devices: its calls of CUDA come to functions of ours, and its kernels run on the CPU."""
