"""neon's backend API (tensors, buffers, layers and calls), implemented by op-tree's backends."""
