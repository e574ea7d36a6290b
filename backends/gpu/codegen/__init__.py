"""Loop nests as CUDA."""
