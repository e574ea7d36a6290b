"""Functions as ONNX files: the instructions of a program, in order, as nodes of a graph."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper

from optree.compile.program import Instruction, Program, Sizes, flatten
from optree.dtypes import is_floating
from optree.errors import ExportError, OperandError, built_at, describe
from optree.onnx.graph import Graph, Value
from optree.onnx.writers import COMPOSED, WRITERS, operator_of
from optree.op.traits import CompositeOperator, ElementwiseOperator
from optree.ops.loops import Scan
from optree.ops.structure import Output
from optree.run.function import Function
from optree.tree.types import TensorType, TupleType, promote
from optree.tree.variable import Constant, Input, Variable, as_variable, is_complex_operand

#: The version of ONNX's operators that are written, and that of the file format.
VERSION, FORMAT = 20, 9

#: Bytes of weights from which they are written to a file of their own: a model's own file has less than 2 GiB.
LARGEST_FILE = 1 << 30


def save(f: Function, path: str | os.PathLike[str]) -> Path:
    """Write a function as an ONNX model, with its tensors as initializers.

    Open sizes are named dimensions. Weights of more than 1 GiB are in a file of their own beside the model,
    ``path.data``.

    Parameters
    ----------
    f : Function
        A function without updates.
    path : path
        The file, which is replaced if it exists.

    Returns
    -------
    Path
        The file.

    Raises
    ------
    ExportError
        If an op of the function has no operator of ONNX's; it is named, with the line that built it. Nothing is
        written then.
    OperandError
        If `f` is no function.

    Examples
    --------
    >>> import tempfile
    >>> import optree
    >>> w = be.array([[1.0], [2.0], [3.0]], name="w")
    >>> x = optree.TensorType("float32", (None, 3))("x")
    >>> layer = optree.function([x], be.tanh(be.dot(x, w)), name="layer")
    >>> file = save(layer, tempfile.mkdtemp() + "/layer.onnx")
    >>> [node.op_type for node in onnx.load(file).graph.node]
    ['MatMul', 'Tanh', 'Identity']
    """
    if not isinstance(f, Function):
        raise OperandError(f"onnx.save: a function is wanted, not {describe(f)}; optree.function makes one of trees")
    if f.updates:
        raise ExportError("onnx.save: a model has no tensors to update; build the function without its updates")
    model, to = model_of(f), Path(path)
    weights = sum(len(x.raw_data) for x in model.graph.initializer)
    if weights < LARGEST_FILE:
        to.write_bytes(model.SerializeToString())
    else:
        onnx.save(model, to, save_as_external_data=True, location=f"{to.name}.data")
    return to


def model_of(f: Function) -> Any:
    """The model of a function."""
    program, graph = f.written, _Writing()
    for x in (*program.leaves, *(each.node for each in program.instructions)):
        if is_complex_operand(x):
            raise ExportError(f"onnx.save: ONNX's operators have no complex numbers, as {describe(x)}")
    dims = Sizes(program).dims
    inputs, known = [], dict[int, Value]()
    for n, leaf in enumerate(f.arguments_of.values()):
        known[id(leaf)] = own = Value(graph.unique(leaf.name or f"input{n}"), leaf.type)
        number = next((i for i, found in enumerate(program.leaves) if found is leaf), None)
        inputs.append(_info(own.name, own.type, None if number is None else dims[number]))
    values = [known[id(x)] if id(x) in known else graph.leaf(x) for x in program.leaves]
    values += graph.run(program, values)
    outputs = []
    for n, number in enumerate(program.outputs):
        type = as_variable(f.outputs[n]).type
        name = graph.unique("output" if len(program.outputs) == 1 else f"output{n}")
        graph.nodes.append(helper.make_node("Identity", [graph.name(values[number], type.dtype)], [name]))
        outputs.append(_info(name, type, dims[number]))
    made = helper.make_graph(graph.nodes, f.name or "function", inputs, outputs, graph.initializers)
    versions = {"opset_imports": [helper.make_opsetid("", VERSION)], "ir_version": FORMAT}
    model = helper.make_model(made, producer_name="op-tree", **versions)
    graph.check(model)
    return model


def _info(name: str, type: TensorType, dims: Sequence[int] | None) -> Any:
    """The type of an input or output, whose open sizes are named by their dimension."""
    names = [f"n{dim}" for dim in dims] if dims else [f"{name}_{axis}" for axis in range(type.ndim)]
    shape = [own if size is None else size for size, own in zip(type.shape, names, strict=True)]
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(type.dtype), shape)


class _Writing(Graph):
    """A graph into which programs are written."""

    def __init__(self, outer: _Writing | None = None) -> None:
        super().__init__(outer)
        #: The instructions, by the names of the nodes that they were written as.
        self._made: dict[str, Instruction] = {} if outer is None else outer._made

    def check(self, model: onnx.ModelProto) -> None:
        """Raise an error for an operator that ONNX does not have for the dtypes of its inputs."""
        if sum(len(x.raw_data) for x in self.initializers) > LARGEST_FILE:
            return
        try:
            onnx.checker.check_model(model, full_check=True)
        except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
            found = re.search(r"node name: (\w+)", str(error))
            instruction = None if found is None else self._made.get(found[1])
            where = "" if instruction is None else f"{instruction.op}{built_at(instruction.node.origin)}: "
            raise ExportError(f"onnx.save: {where}ONNX has no such operator: {error}") from error

    def run(self, program: Program, leaves: Sequence[Value]) -> list[Any]:
        """The values of a program's instructions, from those of its leaves."""
        values: list[Any] = list(leaves)
        for instruction in program.instructions:
            first = len(self.nodes)
            values.append(self._written(instruction, [values[i] for i in instruction.inputs]))
            for node in self.nodes[first:]:
                self._made[node.name] = instruction
        return values[len(leaves) :]

    def _written(self, instruction: Instruction, inputs: list[Any]) -> Any:
        type: Any = instruction.type
        op = instruction.op
        if isinstance(op, Output):
            return inputs[0][op.index]
        write = next((WRITERS[cls] for cls in op.__class__.__mro__ if cls in WRITERS), None)
        found: Any = None if write is None else write(self, op, inputs, type)
        found = self.loop(op, inputs, type) if isinstance(op, Scan) else found
        if isinstance(found, list):
            return [Value(name, each) for name, each in zip(found, type.types, strict=False)]
        if found is None and operator_of(op) is not None:
            found = elementwise(self, operator_of(op), inputs, type)
        if found is not None:
            return Value(found, type)
        if len(op.index_map.shape_only) == len(inputs) and not any(None in x.shape for x in inputs):
            value = op.value(*(np.broadcast_to(x.type.dtype.type(0), x.shape) for x in inputs))
            return Value(self.constant(value, type.dtype), type)
        compose = next((COMPOSED[cls] for cls in op.__class__.__mro__ if cls in COMPOSED), None)
        compose = op.__class__.decompose if compose is None and isinstance(op, CompositeOperator) else compose
        if isinstance(op, ElementwiseOperator) and is_floating(type.dtype):
            inputs = [
                x if x.number is not None else Value(self.name(x, type.dtype), TensorType(type.dtype, x.shape))
                for x in inputs
            ]
        operands = [Input(x.type) if x.number is None else Constant.weak(x.number) for x in inputs]
        tree = None if compose is None else compose(op, *operands)
        if tree is None:
            raise ExportError(f"onnx.save: {op} has no operator of ONNX's{built_at(instruction.node.origin)}")
        known = {id(x): value for x, value in zip(operands, inputs, strict=True)}
        return [self.tree(tree, known, type.types[0])] if isinstance(type, TupleType) else self.tree(tree, known, type)

    def loop(self, op: Scan, inputs: Sequence[Value], type: Any) -> list[str] | None:
        """The outputs of a Scan: the states after the last step, and the joined outputs; None for a while loop."""
        body, inner, count = op.body, _Writing(self), len(op.body.states) + len(op.body.slices)
        if op.flag is not None or not body.slices:
            return None
        own = [Value(inner.unique("given"), x.type) for x in (*body.states, *body.slices)]
        given = (*body.states, *body.slices, *body.constants)
        known = {id(x): value for x, value in zip(given, (*own, *inputs[count:]), strict=True)}
        wanted = [*body.new_states, *body.outputs]
        named = [inner.tree(x, known, as_variable(x).type) for x in wanted]
        outputs = [inner.add("Identity", inner.name(x)) for x in named]
        graph = helper.make_graph(
            inner.nodes,
            "step",
            [_info(x.name, x.type, None) for x in own],
            [_info(name, x.type, None) for name, x in zip(outputs, named, strict=True)],
        )
        turned = [int(op.reverse)]
        options = {
            "scan_input_axes": op.axes,
            "scan_input_directions": turned * len(body.slices),
            "scan_output_axes": op.out_axes,
            "scan_output_directions": turned * len(op.out_axes),
        }
        names = [self.name(x, y.type.dtype) for x, y in zip(inputs[:count], own, strict=True)]
        found: list[str] = self.add(
            "Scan", *names, outputs=len(wanted), body=graph, num_scan_inputs=len(body.slices), **options
        )
        return found

    def tree(self, tree: Variable, known: Mapping[int, Value], type: Any) -> Value:
        """The value of a tree of inputs that have values."""
        program = flatten([tree])
        leaves = [known[id(x)] if isinstance(x, Input) else self.leaf(x) for x in program.leaves]
        values = [*leaves, *self.run(program, leaves)]
        return Value(self.name(values[program.outputs[0]], type.dtype), type)


#: The operators that have other names on bools.
ON_BOOLS = {"Add": "Or", "Mul": "And", "Max": "Or", "Min": "And", "BitwiseNot": "Not"}
ON_BOOLS |= {f"Bitwise{name}": name for name in ("And", "Or", "Xor")}


def elementwise(graph: Graph, operator: str | None, inputs: Sequence[Value], type: TensorType) -> str:
    """The name of an elementwise operator's value, of inputs in one dtype."""
    dtype = promote(*(x.kind for x in inputs)) if type.dtype == bool else type.dtype
    if operator in ("And", "Or", "Xor", "Not"):
        dtype = np.dtype(bool)
    elif dtype.kind == "b":
        operator = ON_BOOLS.get(str(operator), operator)
        dtype = np.dtype(np.int32) if str(operator).startswith(("Greater", "Less")) else dtype
    if operator in ("Ceil", "Floor", "Round") and not is_floating(dtype):
        operator = "Identity"
    return graph.add(operator, *(graph.name(x, dtype) for x in inputs))  # type: ignore[arg-type, no-any-return]
