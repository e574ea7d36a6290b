"""ONNX files as trees: the nodes of a graph, in order, by the operators that op-tree has."""

from __future__ import annotations

import inspect
import os
from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from functools import cached_property, partial
from math import prod
from types import FunctionType, MethodType
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import AttributeProto, numpy_helper

from optree.arrays import Array
from optree.compile.program import flatten
from optree.dtypes import is_floating
from optree.errors import BackendError, ModelError, OptreeError
from optree.onnx.arrangement import Arrangement
from optree.onnx.control import Control
from optree.onnx.expressions import AS_FUNCTIONS, AS_NUMPY, EXPRESSIONS
from optree.onnx.normalisation import Normalisation
from optree.onnx.quantisation import Quantisation
from optree.onnx.recurrent import Recurrent
from optree.onnx.reduction import Reduction
from optree.onnx.values import LARGEST, Operators, as_tree, as_values, check_size, dtype_of, known_array
from optree.onnx.windows import Windows
from optree.registry import f
from optree.run.function import Function, function, last_backend
from optree.tree.tensor import Tensor
from optree.tree.types import TensorType
from optree.tree.variable import Variable

#: The oldest version of ONNX's operators that is read: before it, operands had to say that they are broadcast.
OLDEST = 7

#: The most nodes that are read, and the most graphs and functions inside each other.
NODES, DEPTH = 200_000, 32

#: The operators whose operands of one element are parameters.
BIASED = ("Add", "Conv", "ConvTranspose", "Gemm")

#: Values by name, the versions of operators by domain, and the attributes of a function by name.
Values = MutableMapping[str, Any]
Versions = Mapping[str, int]
Attributes = Mapping[str, Any]

FAMILIES: tuple[type[Operators], ...] = (
    *(Arrangement, Reduction, Windows, Normalisation, Recurrent, Control, Quantisation),
)

#: The domains of ONNX's own operators; an empty one is the first.
OWN = ("ai.onnx", "ai.onnx.preview")


class Model:
    """A model that was read: a function, with its trees.

    Attributes
    ----------
    inputs : list of Input
    outputs : list of Variable
        Trees of the inputs and parameters, to differentiate and to train further.
    parameters : dict of str to Tensor
        The floating tensors that the outputs depend on, by their names in the file; not those of running statistics.
    """

    def __init__(self, inputs: list[Any], outputs: list[Any], parameters: dict[str, Tensor], name: str | None) -> None:
        self.inputs, self.outputs, self.parameters, self.name = inputs, outputs, parameters, name

    @cached_property
    def function(self) -> Function:
        """The function from inputs to a list of outputs."""
        return function(self.inputs, self.outputs, name=self.name, on_unused_input="ignore")

    def __call__(self, *args: Any, **kwargs: Any) -> list[Any]:
        """The outputs for these inputs, by order or name."""
        found: list[Any] = self.function(*args, **kwargs)
        return found

    def __repr__(self) -> str:
        listed = ", ".join(f"{x.label}: {x.type}" for x in self.inputs)
        return f"Model({listed}; {len(self.parameters)} parameters; {len(self.outputs)} outputs)"


def load(
    path: str | os.PathLike[str] | onnx.ModelProto,
    be: Any = None,
    *,
    sizes: Mapping[str, int] | None = None,
    constants: Mapping[str, Any] | None = None,
) -> Model:
    """Read an ONNX model as trees. Nothing in it is executed.

    Parameters
    ----------
    path : path or onnx.ModelProto
        The file, whose external data is in its folder; or the model itself.
    be : Backend, optional
        The backend of the parameters; by default the current one.
    sizes : dict, optional
        Sizes of named dimensions; others stay open.
    constants : dict, optional
        Values of inputs that are constants, such as a shape.

    Returns
    -------
    Model
        A function with its inputs, outputs and parameters.

    Raises
    ------
    ModelError
        If the file is malformed, or a node cannot be computed; the error says its name, operator and version.
    BackendError
        If there is no backend.

    Examples
    --------
    >>> from onnx import TensorProto, helper
    >>> x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"]) for name in "xy")
    >>> proto = helper.make_model(helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "graph", [x], [y]))
    >>> load(proto, be)([-1.0, 2.0])[0].get()
    array([0., 2.], dtype=float32)
    """
    be = last_backend() if be is None else be
    if be is None:
        raise BackendError("onnx.load: no backend holds the parameters; be = gen_backend('cpu') makes one")
    try:
        model = path if isinstance(path, onnx.ModelProto) else onnx.load(os.fspath(path))
        onnx.checker.check_model(model)
    except (DecodeError, onnx.checker.ValidationError, OSError, ValueError, TypeError, KeyError, RuntimeError) as error:
        raise ModelError(f"{'the model' if isinstance(path, onnx.ModelProto) else path}: {error}") from error
    return _Reader(model, be, sizes or {}, constants or {}).model()


class _Reader:
    """The trees of a model's graph."""

    def __init__(self, model: onnx.ModelProto, be: Any, sizes: Mapping[str, int], constants: Mapping[str, Any]) -> None:
        self.graph, self.be, self.sizes, self.constants = model.graph, be, sizes, constants
        self.functions = {(_domain(x.domain), x.name): x for x in model.functions}
        self.versions = {_domain(x.domain): x.version for x in model.opset_import}
        self.count = self.depth = 0
        if self.versions.get("", OLDEST) < OLDEST:
            raise ModelError(f"the model is of version {self.versions['']}, and {OLDEST} or newer are read")

    def model(self) -> Model:
        """The model."""
        values = self._initializers(self.graph)
        # Of one element, most are numbers in formulas, as an epsilon.
        summed = (node.input for node in self.graph.node if node.op_type in BIASED)
        biases = {name for inputs in summed for name in inputs}
        parameters = {
            name: self.be.array(x, x.dtype, name)
            for name, x in values.items()
            if is_floating(x.dtype) and (x.size > 1 or (x.ndim and name in biases))
        }
        environment: dict[str, Any] = {"": None, **values, **parameters, **self.constants}
        inputs = [self._input(x) for x in self.graph.input if x.name not in environment]
        environment |= {x.name: x for x in inputs}
        self.run(self.graph.node, environment, self.versions)
        outputs = [_output(x.name, environment[x.name]) for x in self.graph.output]
        leaves = {id(x) for x in flatten(outputs).leaves}
        normalised = (node for node in self.graph.node if node.op_type == "BatchNormalization")
        statistics = {name for node in normalised for name in node.input[3:5]}
        parameters = {name: x for name, x in parameters.items() if id(x) in leaves and name not in statistics}
        outputs = [x if x.__class__ is not Tensor else f.copy(x) for x in outputs]
        return Model(inputs, outputs, parameters, self.graph.name or None)

    def _initializers(self, graph: onnx.GraphProto) -> dict[str, np.ndarray]:
        if graph.sparse_initializer:
            raise ModelError(f"initializer {graph.sparse_initializer[0].values.name}: it is sparse")
        found = {}
        for x in graph.initializer:
            try:
                found[x.name] = numpy_helper.to_array(x)
            except (ValueError, TypeError, KeyError, OverflowError, MemoryError, OSError) as error:
                raise ModelError(f"initializer {x.name}: {error}") from error
        return found

    def _input(self, x: onnx.ValueInfoProto) -> Any:
        """An input of a graph, its sizes open where the model has no number."""
        if not x.type.HasField("tensor_type"):
            raise ModelError(f"input {x.name}: it is no tensor")
        if not x.type.tensor_type.HasField("shape"):
            raise ModelError(f"input {x.name}: its number of axes is unknown")
        dims = x.type.tensor_type.shape.dim
        shape = tuple(
            self.sizes.get(d.dim_param) if d.HasField("dim_param") else d.dim_value if d.HasField("dim_value") else None
            for d in dims
        )
        try:
            return TensorType(dtype_of(x.type.tensor_type.elem_type), shape)(x.name)
        except (OptreeError, ValueError, TypeError, KeyError) as error:
            raise ModelError(f"input {x.name}: {error}") from error

    def run(
        self,
        nodes: Iterable[Any],
        environment: Values,
        versions: Versions,
        given: Attributes | None = None,
    ) -> None:
        """Add the outputs of nodes to the values by name.

        `given`: the attributes of the function that the nodes are of.
        """
        self.depth += 1
        for node in nodes:
            self.count += 1
            try:
                if self.count > NODES or self.depth > DEPTH:
                    raise ModelError(f"more than {NODES} nodes, or {DEPTH} graphs inside each other")
                found = self._applied(node, environment, versions, given or {})
            except _NodeError:
                raise
            except Exception as error:  # whatever a stranger's file makes of the functions that it calls
                version = versions.get(_domain(node.domain), "none")
                name = node.name or ", ".join(node.output)
                raise _NodeError(f"node {name} ({node.op_type}, version {version}): {error}") from error
            environment.update({name: x for name, x in zip(node.output, found, strict=False) if name})
        self.depth -= 1

    def _applied(
        self, node: onnx.NodeProto, environment: Values, versions: Versions, given: Attributes
    ) -> Sequence[Any]:
        """The outputs of a node; those of constants alone are arrays, or trees of constants."""
        inputs = [environment[name] for name in node.input]
        attributes = self._attributes(node, environment, versions, given)
        local = self.functions.get((_domain(node.domain), node.op_type))
        if local is not None:
            return self._expanded(local, inputs, attributes)
        operator = self._operator(node, versions)
        if operator is None or not _takes(operator, attributes):
            body, defaults = self._body(node, inputs, attributes, versions)
            return self._expanded(body, inputs, {**defaults, **attributes})
        while inputs and inputs[-1] is None:
            inputs.pop()
        most = prod(max(np.size(x), 1) for x in inputs if not isinstance(x, Variable | None))
        if most > LARGEST:  # computed when the model runs
            inputs = [x if x is None or x.dtype == object else as_tree(x) for x in inputs]
        if node.op_type in AS_NUMPY and any(isinstance(x, Variable) for x in inputs):
            inputs = [as_values(x) for x in inputs]
        if isinstance(operator, MethodType) and "outputs" in inspect.signature(operator).parameters:
            attributes["outputs"] = len(node.output)
        found = operator(*inputs, **attributes)
        found = found if isinstance(found, list) else [found]
        if len(found) < len(node.output) and any(node.output[len(found) :]):
            raise ModelError(f"its output {node.output[len(found)]} is not computed")
        found = [x if isinstance(x, Variable) else known_array(x) for x in found]
        for x in found:
            check_size(0 if isinstance(x, Variable) else x.size)
        return found

    def _operator(self, node: onnx.NodeProto, versions: Versions) -> Callable[..., Any] | None:
        """The function of an operator; None for one that op-tree has not."""
        name = node.op_type
        if _domain(node.domain) != "" or not name[:1].isupper():
            return None
        if name in AS_NUMPY:
            return AS_NUMPY[name]
        if name in EXPRESSIONS:
            return EXPRESSIONS[name]
        if name in AS_FUNCTIONS:
            function = getattr(f, AS_FUNCTIONS[name])
            return lambda *given: function(*given)
        family = next((family for family in FAMILIES if hasattr(family, name)), None)
        return None if family is None else getattr(family(versions.get("", OLDEST)), name)

    def _attributes(
        self, node: onnx.NodeProto, environment: Values, versions: Versions, given: Attributes
    ) -> dict[str, Any]:
        """The attributes of a node by name: arrays, numbers, texts, and functions of graphs."""
        found = {}
        for x in node.attribute:
            if x.ref_attr_name:
                if x.ref_attr_name in given:
                    found[x.name] = given[x.ref_attr_name]
                continue
            value = onnx.helper.get_attribute_value(x)
            if x.type == AttributeProto.TENSOR:
                value = numpy_helper.to_array(value)
            elif x.type == AttributeProto.GRAPH:
                value = partial(self._inner, value, environment, versions, given)
            elif isinstance(value, bytes):
                value = value.decode()
            found[x.name] = value
        return found

    def _inner(
        self,
        graph: onnx.GraphProto,
        environment: Values,
        versions: Versions,
        given: Attributes,
        *inputs: Array,
    ) -> list[Any]:
        """The outputs of a graph inside a node, which knows the values outside."""
        names = [x.name for x in graph.input]
        own = ChainMap({**self._initializers(graph), **dict(zip(names, inputs, strict=True))}, environment)
        self.run(graph.node, own, versions, given)
        return [own[x.name] for x in graph.output]

    def _body(
        self, node: onnx.NodeProto, inputs: Sequence[Any], attributes: Attributes, versions: Versions
    ) -> tuple[Any, dict[str, Any]]:
        """The function by which ONNX defines an operator, and its attributes' defaults; ModelError if there is none."""
        domain = _domain(node.domain)
        if (domain or "ai.onnx") not in OWN:
            raise ModelError(f"operators of {domain} are unknown")
        try:
            schema = onnx.defs.get_schema(node.op_type, versions[domain], domain)
        except onnx.defs.SchemaError as error:
            raise ModelError("there is no such operator") from error
        made, fixed = onnx.FunctionProto(), schema.function_opset_versions
        own = schema.context_dependent_function_opset_versions
        if fixed:
            made.ParseFromString(schema.get_function_with_opset_version(_newest(fixed, versions)))
        elif own:  # it depends on the types of the inputs
            whole = onnx.NodeProto(op_type=node.op_type, domain=node.domain, input=node.input, output=node.output)
            plain = {**_defaults(schema), **_plain(attributes)}
            whole.attribute.extend(onnx.helper.make_attribute(name, x) for name, x in plain.items())
            whole.attribute.extend(x for x in node.attribute if x.name not in plain and not x.ref_attr_name)
            types = [_type_of(x).SerializeToString() for x in inputs]
            text = whole.SerializeToString()
            made.ParseFromString(
                schema.get_context_dependent_function_with_opset_version(_newest(own, versions), text, types)
            )
        if not made.node:
            raise ModelError("op-tree has no such operator, or not with these attributes")
        return made, _defaults(schema)

    def _expanded(self, body: onnx.FunctionProto, inputs: Sequence[Any], attributes: dict[str, Any]) -> list[Any]:
        """The outputs of a function of nodes."""
        given = {x.name: _value_of(x) for x in body.attribute_proto} | attributes
        environment: dict[str, Any] = {"": None, **dict.fromkeys(body.input)}
        environment |= dict(zip(body.input, inputs, strict=False))
        self.run(body.node, environment, {_domain(x.domain): x.version for x in body.opset_import}, given)
        return [environment.get(name) for name in body.output]


class _NodeError(ModelError):
    """An error that names its node."""


def _output(name: str, x: Array | None) -> Any:
    """An output as a tree."""
    if x is None:
        raise ModelError(f"output {name}: it is not computed")
    return as_tree(as_values(x))


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name


def _newest(known: Sequence[int], versions: Versions) -> int:
    """The newest version of a function that a model's version has, or else the oldest."""
    return max((x for x in known if x <= versions.get("", OLDEST)), default=min(known))


def _value_of(attribute: AttributeProto) -> Any:
    value = onnx.helper.get_attribute_value(attribute)
    return value.decode() if isinstance(value, bytes) else value


def _defaults(schema: onnx.defs.OpSchema) -> dict[str, Any]:
    return {name: _value_of(x.default_value) for name, x in schema.attributes.items() if x.default_value.name}


def _plain(attributes: Attributes) -> dict[str, Any]:
    """The attributes that are numbers, texts, and lists of them."""
    return {name: x for name, x in attributes.items() if not callable(x) and not isinstance(x, np.ndarray)}


def _type_of(x: Array | None) -> Any:
    """ONNX's type of a value."""
    if x is None:
        return onnx.TypeProto()
    return onnx.helper.make_tensor_type_proto(onnx.helper.np_dtype_to_tensor_dtype(np.dtype(x.dtype)), x.shape)


def _takes(operator: Callable[..., Any], attributes: Attributes) -> bool:
    """Whether an operator is computed with these attributes."""
    parameters = inspect.signature(operator).parameters if isinstance(operator, FunctionType | MethodType) else {}
    takes_any = any(x.kind is inspect.Parameter.VAR_KEYWORD for x in parameters.values())
    return takes_any or attributes.keys() <= parameters.keys()
