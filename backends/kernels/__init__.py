"""Fused kernels: how one is described, printed, compiled and kept."""
