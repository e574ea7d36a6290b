"""Models in the ONNX format: `load` reads a file as trees, and `save` writes a function as a file.

It needs the package onnx: ``pip install '.[onnx]'``. `optree.onnx.reading` goes through the nodes of a
graph. `optree.onnx.expressions` has operators that are one expression, and each module of a family (`arrangement`,
`windows`, ...) a class whose methods are operators, composed of op-tree's functions. An operator in neither is expanded
by the function of operators that ONNX defines it as, if there is one. `optree.onnx.saving` goes through a function's
program, and `optree.onnx.writers` has a row for each op.
"""

from optree.onnx.reading import Model, load
from optree.onnx.saving import save

__all__ = ["Model", "load", "save"]
