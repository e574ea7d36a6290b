"""Every op, one class each, in a file a family. Importing this fills the registry."""

from optree.ops import assignment, contraction, elementwise, indexing, random, reduction, shape

__all__ = ["assignment", "contraction", "elementwise", "indexing", "random", "reduction", "shape"]
