"""Lowering of trees to steps, for any backend: programs, passes, fusion and loop nests."""
