"""neon's backend over ours: its tensors, buffers, layers and calls, of which none computes by itself."""
