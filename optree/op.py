"""What an operation is: the Op contract with its defaults, and the registry's entry.

The contract is Theano's and Aesara's; `generate_adjoints` is Nervana graph's.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from typing import Any, ClassVar
from weakref import WeakValueDictionary

import numpy as np

from optree.errors import (
    AxisError,
    DefinitionError,
    DTypeError,
    NumberOverflowError,
    OperandError,
    ShapeError,
    caller_origin,
    describe,
)
from optree.node import ARGS, OpDict, OpTreeNode
from optree.registry import FUNCTIONS, NUMPY_FUNCTIONS, OPS
from optree.types import Shape, Spec, TensorType, promote, weak_dtype
from optree.variable import Variable, as_columns, as_operand, as_variable, check_same_backend, spec_of

#: An op forgets what it inferred for operand types when it has seen this many.
INFERENCES = 4096


class _Token:
    """A mark that is equal to itself alone, as a part of keys."""

    __slots__ = ("__weakref__",)


#: One for each op, by what makes it equal to others, and each pattern of its value.
_tokens: WeakValueDictionary[Any, _Token] = WeakValueDictionary()


class Op:
    """An operation with its parameters, and never its operands.

    A subclass with a `name` is registered: it gets a method on every backend,
    a place in NumPy's protocols, and its tests. Ops are immutable and compare
    equal by class and `__props__`; without `__props__`, by identity.

    Attributes
    ----------
    name : str
        What the op is called in trees and on backends.
    operands : tuple of str, or None
        The operands' names, in order; None for any number of them, two at the least.
    __props__ : tuple of str
        The parameters, each with its default as a class attribute.
    numpy : callable
        The value, as a function of NumPy arrays and of the parameters by name.
    numpy_names : tuple of callable
        The NumPy functions that, called on a tensor, build this op; by default
        `numpy`, if it is NumPy's own.
    kernel : str or None
        The value of one element as a C expression of ``{0}``, ``{1}``, ...;
        functions by their generic names (<tgmath.h>), the type of the result as
        ``T``, literals as ``(T)0.5``. None where an op is no elementwise one.
    aliases : tuple of str
        Other names for the op's function (neon's, where they differ).
    operator : tuple of str
        Python's methods for it: ``("__add__", "__radd__")``.
    sample : tuple of float
        Bounds between which the op is smooth, where the tests draw values.
    examples : tuple
        Operands and parameters that show the op at work; the tests run every
        promise on them. Each is ``((operand, ...), {parameter: value})``, where a
        tuple is the shape of a floating operand drawn from `sample`, a list holds
        an integer operand's values, and a number is itself. An elementwise op
        needs none: its tests follow from its operands.
    takes_columns : bool
        Whether on a backend in neon's mode a 1-D array among the operands is a
        column. It is where operands are broadcast or multiplied, not where an
        array is of indices.
    destroy_map, view_map : dict
        Output index to the indices of the inputs that it overwrites, or looks into.
    """

    name: ClassVar[str | None] = None
    operands: ClassVar[tuple[str, ...] | None] = ()
    __props__: ClassVar[tuple[str, ...] | None] = None
    numpy: ClassVar[Any] = None
    numpy_names: ClassVar[tuple[Any, ...]] = ()
    kernel: ClassVar[str | None] = None
    aliases: ClassVar[tuple[str, ...]] = ()
    operator: ClassVar[tuple[str, ...]] = ()
    sample: ClassVar[tuple[float, float]] = (-2.0, 2.0)
    examples: ClassVar[tuple[tuple[tuple[Any, ...], dict[str, Any]], ...]] = ()
    takes_columns: ClassVar[bool] = False
    destroy_map: ClassVar[dict[int, list[int]]] = {}
    view_map: ClassVar[dict[int, list[int]]] = {}

    _instances: ClassVar[dict[tuple[Any, ...], Any]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "numpy" in cls.__dict__ and not isinstance(cls.numpy, staticmethod):
            cls.numpy = staticmethod(cls.__dict__["numpy"])
        cls._instances = {}
        if "name" in cls.__dict__:
            _register(cls)

    def __init__(self, *args: Any, **props: Any) -> None:
        names = self.prop_names()
        if len(args) > len(names):
            raise TypeError(f"{type(self).__name__} takes the parameters {names}, not {len(args)} values")
        for name, value in {**dict(zip(names, args, strict=False)), **props}.items():
            if name not in names:
                raise TypeError(f"{self.name or type(self).__name__} has no parameter {name!r}; it has {names}")
            setattr(self, name, value)

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        op = super().__new__(cls)
        op.applications = {}
        return op

    applications: dict[tuple[Any, ...], OpDict]

    # Parameters

    @classmethod
    def prop_names(cls) -> tuple[str, ...]:
        """The parameters' names."""
        return cls.__props__ or ()

    @property
    def props(self) -> dict[str, Any]:
        """The parameters by name."""
        return {name: getattr(self, name) for name in self.prop_names()}

    @classmethod
    def make(cls, **props: Any) -> Any:
        """The op with these parameters; the same object for the same parameters.

        Raises
        ------
        TypeError
            If there is no parameter of a given name.
        """
        try:
            key = tuple(sorted((name, _hashable(value)) for name, value in props.items()))
            found = cls._instances.get(key)
        except TypeError:  # a parameter that cannot be hashed or ordered
            return cls(**props)
        if found is None:
            found = cls(**props)
            if len(cls._instances) >= INFERENCES:
                cls._instances.clear()
            cls._instances[key] = found
        return found

    def _identity(self) -> Any:
        return self if self.__props__ is None else (type(self), tuple(map(_hashable, self.props.values())))

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if type(self) is not type(other) or self.__props__ is None or self.__hash__() != hash(other):
            return False
        return self._identity() == other._identity()  # type: ignore[attr-defined]

    def __hash__(self) -> int:
        return object.__hash__(self) if self.__props__ is None else hash(self._identity())

    def __str__(self) -> str:
        props = ", ".join(f"{key}={value!r}" for key, value in self.props.items())
        name = self.name or type(self).__name__
        return f"{name}{{{props}}}" if props else name

    __repr__ = __str__

    def __copy__(self) -> Any:
        return self  # it cannot change

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _made_again, (type(self), self.props)

    # Building

    @classmethod
    def children(cls) -> int:
        """How many branches a node of this op has in the binary tree."""
        return 2 if cls.operands is None else min(len(cls.operands), 2)

    @classmethod
    def function(cls, *args: Any, **kwargs: Any) -> Any:
        """The op applied, its parameters given after its operands or by name."""
        names = cls.operands
        if names is None:
            raise NotImplementedError(f"{cls.__name__}: an op of any number of operands defines function")
        operands = list(args[: len(names)])
        for name in names[len(operands) :]:
            if name not in kwargs:
                raise TypeError(f"{cls.name} takes the operands {', '.join(names)}; {name} is missing")
            operands.append(kwargs.pop(name))
        extra = dict(zip(cls.prop_names(), args[len(names) :], strict=False))
        if len(extra) < len(args) - len(names) or extra.keys() & kwargs.keys():
            raise TypeError(f"{cls.name} takes the parameters {cls.prop_names()}, each once")
        return cls.make(**extra, **kwargs)(*operands)

    @classmethod
    def parameters(cls) -> list[inspect.Parameter]:
        """The parameters of `function`, for its signature."""
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        operands = [inspect.Parameter(name, kind) for name in cls.operands or ()]
        return operands + [inspect.Parameter(n, kind, default=getattr(cls, n)) for n in cls.prop_names()]

    def __call__(self, *inputs: Any) -> Any:
        """A node that applies the op to the inputs.

        Raises
        ------
        OperandError, ShapeError, DTypeError, AxisError, BackendError
            If it cannot be applied to them.
        """
        op_dict = self.applications.get(tuple([getattr(x, "spec", x.__class__) for x in inputs]))
        if op_dict is not None:
            return _node(op_dict, inputs)
        operands = [as_operand(x, str(self)) for x in inputs]
        if self.takes_columns:
            operands = as_columns(operands)
        return _node(self._apply(operands, tuple(map(spec_of, operands))), operands)

    def _apply(self, operands: list[Any], specs: tuple[Any, ...]) -> OpDict:
        """What the op makes of operands of these specs; remembered unless a number's value matters."""
        known = self.applications.get(specs)
        if known is not None:
            return known
        self._check_count(operands)
        backend = check_same_backend(str(self), operands)
        types = [as_variable(x).type for x in operands]
        try:
            bound = self.bind(types, backend)
            shape = bound.output_shape(*(t.shape for t in types))
        except AxisError as error:
            raise AxisError(f"{error}: {describe(operands[0])}") from None
        except ShapeError as error:
            listed = " and ".join(describe(x) for x in operands)
            raise ShapeError(f"{self.name}: {listed}: {error}") from None
        dtypes = [weak_dtype(spec) for spec in specs]
        try:
            *loop, out = bound.resolve_dtypes(*dtypes)
        except TypeError:
            listed = ", ".join(describe(x) for x in operands)
            raise DTypeError(f"{self.name}: there is no {self.name} for {listed}") from None
        op_dict = bound.op_dict(TensorType(out, shape), backend)
        if not _check_numbers(str(self), operands, loop):
            if len(self.applications) >= INFERENCES:
                self.applications.clear()
            self.applications[specs] = op_dict
        return op_dict

    def _check_count(self, operands: Sequence[Any]) -> None:
        names = self.operands
        if len(operands) != len(names) if names is not None else len(operands) < 2:
            wanted = "two operands or more" if names is None else f"{len(names)} operands ({', '.join(names)})"
            raise OperandError(f"{self} takes {wanted}, not {len(operands)}")

    def op_dict(self, type: TensorType, backend: Any) -> OpDict:
        """The first element of a node that applies the op and has this type."""
        return self._op_dict_of({"shape": type.shape, "op": self.name or str(self), **self.props}, type, backend)

    def _op_dict_of(self, entries: dict[str, Any], type: TensorType, backend: Any) -> OpDict:
        spec = Spec(type, backend)
        return OpDict(entries, self, spec, self._token(spec.token))

    def _token(self, pattern: object) -> _Token:
        if self.__props__ is None:
            return self.__dict__.setdefault("tokens", {}).setdefault(pattern, _Token())
        # Not by the op itself, which holds its op_dicts and so the token: neither would ever go.
        return _tokens.setdefault((self._identity(), pattern), _Token())

    @classmethod
    def unchecked_op_dict(cls, entries: dict[str, Any], operands: list[Any]) -> OpDict:
        """The first element of a node from a user's own dict, whose shape is taken as it stands."""
        op = cls.make(**{key: entries[key] for key in cls.prop_names() if key in entries})
        dtype = entries.get("dtype")
        if dtype is None:
            dtype = op.resolve_dtypes(*(weak_dtype(spec_of(x)) for x in operands))[-1]
        backend = next((x.backend for x in operands if getattr(x, "backend", None) is not None), None)
        return op._op_dict_of(entries, TensorType(dtype, entries["shape"]), backend)

    def bind(self, types: Sequence[TensorType], backend: Any) -> Any:
        """The op with its parameters in their normal form for operands of these types."""
        return self

    def output_shape(self, *shapes: Shape) -> Shape:
        """The value's shape from the operands' shapes.

        Raises
        ------
        ShapeError
            If the shapes do not fit; the message need not name the operands.
        """
        raise DefinitionError(f"{self}: define output_shape, or take it from a trait such as ElementwiseOperator")

    def resolve_dtypes(self, *dtypes: Any) -> tuple[np.dtype, ...]:
        """The dtypes that the operands are computed in, and the value's after them.

        By default those of the op's ufunc, or else the operands' common one. A
        weak Python number's dtype is `int` or `float`.
        """
        if isinstance(self.numpy, np.ufunc):
            return self.numpy.resolve_dtypes((*dtypes, None))
        common = promote(*dtypes)
        return (common,) * (len(dtypes) + 1)

    # Running

    def value(self, *arrays: Any) -> Any:
        """The value on NumPy arrays and Python numbers."""
        return self.numpy(*arrays, **self.props)

    def kernel_for(self, *dtypes: np.dtype) -> str | None:
        """The kernel expression for operands computed in these dtypes; None where there is none."""
        return self.kernel

    def perform(self, node: Any, inputs: Sequence[Any], output_storage: Sequence[list[Any]]) -> None:
        """Compute the outputs from the inputs' values into one-element lists."""
        output_storage[0][0] = self.value(*inputs)

    # Derivatives

    def grad(self, inputs: Sequence[Variable], output_gradients: Sequence[Any]) -> Sequence[Any]:
        """The gradient for each input, None where there is none.

        The deltas may have the output's shape where an input was broadcast: they
        are summed back.
        """
        raise DefinitionError(f"{type(self).__name__}: write grad, or be a NonDifferentiableOperator")

    def generate_adjoints(self, adjoints: dict[Variable, Any], delta: Any, *args: Variable) -> None:
        """Send each operand its delta; by default what `grad` returns."""
        gradients = self.grad(list(args), [delta])
        if not isinstance(gradients, list | tuple) or len(gradients) != len(args):
            raise DefinitionError(f"{self}.grad returns a list of {len(args)} gradients, not {gradients!r}")
        for operand, gradient in zip(args, gradients, strict=True):
            if gradient is not None:
                operand.generate_add_delta(adjoints, gradient)


def _made_again(cls: type[Op], props: dict[str, Any]) -> Any:
    return cls.make(**props)


def _hashable(value: Any) -> Any:
    """A parameter as something that tells 0.0 from -0.0 and 1 from True when compared."""
    return (type(value), repr(value)) if isinstance(value, bool | int | float | tuple) else value


def _node(op_dict: OpDict, operands: Sequence[Any]) -> OpTreeNode:
    """A node, operands beyond two in a chain of ``args`` nodes."""
    count = len(operands)
    right = operands[-1] if count > 1 else None
    for i in range(count - 2, 0, -1):
        right = OpTreeNode(ARGS, operands[i], right)
    node = tuple.__new__(OpTreeNode, (op_dict, operands[0] if count else None, right))
    node.spec = op_dict.spec
    node.origin = caller_origin()
    return node


def _check_numbers(what: str, operands: Sequence[Any], dtypes: Sequence[np.dtype]) -> bool:
    """Whether a Python integer meets an integer dtype, having checked that it fits.

    Raises
    ------
    NumberOverflowError
        If it does not.
    """
    found = False
    for operand, dtype in zip(operands, dtypes, strict=False):
        if type(operand) is int and dtype.kind in "iu":
            found = True
            limits = np.iinfo(dtype)
            if not limits.min <= operand <= limits.max:
                raise NumberOverflowError(f"{what}: {operand} does not fit {dtype} ({limits.min} to {limits.max})")
    return found


# The registry


def _register(cls: type[Op]) -> None:
    """Check a named op's definition and offer it wherever ops are offered."""
    _check_definition(cls)
    name = str(cls.name)
    earlier = OPS.get(name)
    if earlier is not None and (earlier.__module__, earlier.__qualname__) != (cls.__module__, cls.__qualname__):
        raise DefinitionError(f"{cls.__name__}: the name {name!r} is {earlier.__module__}.{earlier.__qualname__}'s")
    OPS[name] = cls
    call = _function_of(cls)
    for alias in (name, *cls.aliases):
        FUNCTIONS[alias] = call
    mine = getattr(cls.numpy, "__module__", "") or ""
    own = (cls.numpy,) if isinstance(cls.numpy, np.ufunc) or mine.startswith("numpy") else ()
    for numpy_function in cls.numpy_names or own:
        NUMPY_FUNCTIONS[numpy_function] = call
    for method, operator in zip(cls.operator, (_operator, _reflected), strict=False):
        setattr(Variable, method, operator(cls, method))


def _check_definition(cls: type[Op]) -> None:
    from_base = {name for name in ("grad", "value", "perform") if getattr(cls, name) is getattr(Op, name)}
    adjoints = cls.generate_adjoints is not Op.generate_adjoints
    if "grad" in from_base and not adjoints:
        raise DefinitionError(f"{cls.__name__}: write grad, or be a NonDifferentiableOperator")
    if cls.numpy is None and {"value", "perform"} <= from_base:
        raise DefinitionError(f"{cls.__name__}: write numpy, value or perform")
    if cls.__props__ is None:
        raise DefinitionError(f"{cls.__name__}: list its parameters in __props__, or take () from a trait")
    missing = [prop for prop in cls.__props__ if not hasattr(cls, prop)]
    if missing:
        raise DefinitionError(f"{cls.__name__}: give {', '.join(missing)} a default as a class attribute")


def _function_of(cls: type[Op]) -> Callable[..., Any]:
    """The op's function, with the class's documentation and the signature of its operands and parameters."""
    if cls.__props__ == () and cls.function.__func__ is Op.function.__func__:  # type: ignore[attr-defined]
        op, count = cls.make(), len(cls.operands or ())

        def call(*args: Any, **kwargs: Any) -> Any:
            return cls.function(*args, **kwargs) if kwargs or len(args) != count else op(*args)

    else:

        def call(*args: Any, **kwargs: Any) -> Any:
            return cls.function(*args, **kwargs)

    call.__name__ = call.__qualname__ = str(cls.name)
    call.__doc__ = cls.__doc__
    call.__signature__ = inspect.Signature(cls.parameters())  # type: ignore[attr-defined]
    return call


def _operator(cls: type[Op], name: str) -> Callable[..., Any]:
    """Python's operator for an op: the quickest way to a node, where its operands' specs are known."""
    op = cls.make()
    applications, new, frame_at = op.applications, tuple.__new__, sys._getframe

    if len(cls.operands or ()) == 1:

        def unary(self: Variable) -> Any:
            return op(self)

        method: Callable[..., Any] = unary
    else:

        def binary(self: Variable, other: Any) -> Any:
            op_dict = applications.get((self.spec, getattr(other, "spec", other.__class__)))
            if op_dict is None:
                return op(self, other)
            node = new(OpTreeNode, (op_dict, self, other))
            node.spec = op_dict.spec
            frame = frame_at(1)
            node.origin = (frame.f_code, frame.f_lasti)
            return node

        method = binary
    method.__name__ = name
    return method


def _reflected(cls: type[Op], name: str) -> Callable[..., Any]:
    """Python's operator for an op with the variable on the right."""
    op = cls.make()

    def reflected(self: Variable, other: Any) -> Any:
        return op(other, self)

    reflected.__name__ = name
    return reflected
